"""Statistics of damage per language, paired by document."""

from fairbits.stats.contrast import Contrast
from fairbits.stats.correlation import Correlation, pearson, spearman
from fairbits.stats.extremes import best_of, bias_corrected_range, random_effects_sd, worst_of
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, holm
from fairbits.stats.outcomes import OutcomeFrame, mcnemar_p
from fairbits.stats.resample import Replicates, replicate

__all__ = [
    "Contrast",
    "Correlation",
    "Estimate",
    "LanguageFrame",
    "OutcomeFrame",
    "Replicates",
    "best_of",
    "bias_corrected_range",
    "holm",
    "mcnemar_p",
    "pearson",
    "random_effects_sd",
    "replicate",
    "spearman",
    "worst_of",
]
