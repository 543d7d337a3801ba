"""Statistics for paired, per-language measurements."""

from fairbits.stats.estimate import Estimate
from fairbits.stats.extremes import best_of, bias_corrected_range, worst_of
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.heterogeneity import random_effects_sd
from fairbits.stats.inference import Correlation, holm, pearson, spearman
from fairbits.stats.resample import Replicates, replicate

__all__ = [
    "Contrast",
    "Correlation",
    "Estimate",
    "LanguageFrame",
    "Replicates",
    "best_of",
    "bias_corrected_range",
    "holm",
    "pearson",
    "random_effects_sd",
    "replicate",
    "spearman",
    "worst_of",
]
