"""Models: checkpoints read as a stream, their blocks, and the moments of their weights."""

from fairbits.model.checkpoint import Checkpoint, TensorInfo
from fairbits.model.moments import ModelMoments, WeightMoments, moments_of, weight_moments

__all__ = [
    "Checkpoint",
    "ModelMoments",
    "TensorInfo",
    "WeightMoments",
    "moments_of",
    "weight_moments",
]
