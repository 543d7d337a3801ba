"""Statistics of damage per language, paired by document."""

from fairbits.stats.contrast import Contrast
from fairbits.stats.correlation import Correlation, pearson, spearman
from fairbits.stats.extremes import best_of, bias_corrected_range, random_effects_sd, worst_of
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, holm
from fairbits.stats.outcomes import OutcomeFrame, mcnemar_p, noise_floor, score_limit, worst_by_chance
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
    "noise_floor",
    "pearson",
    "random_effects_sd",
    "replicate",
    "score_limit",
    "spearman",
    "worst_by_chance",
    "worst_of",
]
