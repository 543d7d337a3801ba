"""Models: checkpoints read as a stream, their blocks, and the moments of their weights."""

from fairbits.model.checkpoint import Checkpoint, TensorInfo
from fairbits.model.moments import ModelMoments, RowMoments, WeightMoments, moments_of, row_moments, weight_moments

__all__ = [
    "Checkpoint",
    "ModelMoments",
    "RowMoments",
    "TensorInfo",
    "WeightMoments",
    "moments_of",
    "row_moments",
    "weight_moments",
]
