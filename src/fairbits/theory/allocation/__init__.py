"""The width of every block, and the blocks that stay in high precision, within a size budget."""

from fairbits.theory.allocation.problem import Allocation, Problem, block_bytes
from fairbits.theory.allocation.protection import (
    Protection,
    amplification_sensitivity,
    gateway_misses,
    gateway_set,
    protect,
)
from fairbits.theory.allocation.solve import allocate_mean, allocate_worst

__all__ = [
    "Allocation",
    "Problem",
    "Protection",
    "allocate_mean",
    "allocate_worst",
    "amplification_sensitivity",
    "block_bytes",
    "gateway_misses",
    "gateway_set",
    "protect",
]
