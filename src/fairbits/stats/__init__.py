"""Statistics for paired, per-language measurements."""

from fairbits.stats.estimate import Estimate
from fairbits.stats.extremes import SplitHalf, best_of, bias_corrected_range, split_half, worst_of
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.heterogeneity import random_effects_sd
from fairbits.stats.inference import Correlation, holm, leave_one_out, pearson, spearman
from fairbits.stats.mediation import Link, Mediation, mediate
from fairbits.stats.permutation import (
    PartialCorrelation,
    PermutationTest,
    partial_correlation,
    permutation_test,
)
from fairbits.stats.power import correlation_power, sample_size_for_power
from fairbits.stats.resample import Replicates, replicate
from fairbits.stats.sensitivity import e_value, robustness_value

__all__ = [
    "Contrast",
    "Correlation",
    "Estimate",
    "LanguageFrame",
    "Link",
    "Mediation",
    "PartialCorrelation",
    "PermutationTest",
    "Replicates",
    "SplitHalf",
    "best_of",
    "bias_corrected_range",
    "correlation_power",
    "e_value",
    "holm",
    "leave_one_out",
    "mediate",
    "partial_correlation",
    "pearson",
    "permutation_test",
    "random_effects_sd",
    "replicate",
    "robustness_value",
    "sample_size_for_power",
    "spearman",
    "split_half",
    "worst_of",
]
