"""Statistics that only the experiments need: tests of correlations, mediation, sensitivity to unmeasured causes."""

from fairbits.science.stats.correlation_tests import (
    PartialCorrelation,
    PermutationTest,
    correlation_power,
    e_value,
    partial_correlation,
    permutation_test,
    robustness_value,
    sample_size_for_power,
)
from fairbits.science.stats.mediation import Link, Mediation, mediate

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
