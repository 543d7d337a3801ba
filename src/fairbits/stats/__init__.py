"""Statistics for paired, per-language measurements."""

from fairbits.stats.estimate import Estimate
from fairbits.stats.extremes import SplitHalf, best_of, bias_corrected_range, split_half, worst_of
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.heterogeneity import random_effects_sd
from fairbits.stats.inference import Correlation, holm, leave_one_out, pearson, spearman
from fairbits.stats.resample import Replicates, replicate

__all__ = [
    "Contrast",
    "Correlation",
    "Estimate",
    "LanguageFrame",
    "Replicates",
    "SplitHalf",
    "best_of",
    "bias_corrected_range",
    "holm",
    "leave_one_out",
    "pearson",
    "random_effects_sd",
    "replicate",
    "spearman",
    "split_half",
    "worst_of",
]
