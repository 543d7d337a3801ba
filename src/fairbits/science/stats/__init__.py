"""Statistics that only the experiments need: permutation, power, mediation, sensitivity to what was not measured."""

from fairbits.science.stats.mediation import Link, Mediation, mediate
from fairbits.science.stats.permutation import (
    PartialCorrelation,
    PermutationTest,
    partial_correlation,
    permutation_test,
)
from fairbits.science.stats.power import correlation_power, e_value, robustness_value, sample_size_for_power

__all__ = [
    "Link",
    "Mediation",
    "PartialCorrelation",
    "PermutationTest",
    "correlation_power",
    "e_value",
    "mediate",
    "partial_correlation",
    "permutation_test",
    "robustness_value",
    "sample_size_for_power",
]
