"""Which width each block is stored at, and which blocks stay in high precision, within a size budget."""

from fairbits.theory.allocation.greedy import allocate_greedy
from fairbits.theory.allocation.problem import Allocation, Problem, block_bytes
from fairbits.theory.allocation.protection import (
    Protection,
    Rank,
    amplification_sensitivity,
    gateway_misses,
    gateway_set,
    protect,
    rank_of_set,
)
from fairbits.theory.allocation.relaxation import DualBound, lagrangian_bound, reverse_waterfilling
from fairbits.theory.allocation.solve import allocate_mean, allocate_worst

__all__ = [
    "Allocation",
    "DualBound",
    "Problem",
    "Protection",
    "Rank",
    "allocate_greedy",
    "allocate_mean",
    "allocate_worst",
    "amplification_sensitivity",
    "block_bytes",
    "gateway_misses",
    "gateway_set",
    "lagrangian_bound",
    "protect",
    "rank_of_set",
    "reverse_waterfilling",
]
