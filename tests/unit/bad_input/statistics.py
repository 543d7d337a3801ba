"""Statistics: correlations, power, frames of languages and the mediation chain."""

import numpy as np

from fairbits import stats
from fairbits.measure.audit.founding_documents import founding_statistics
from fairbits.science import stats as science_stats
from fairbits.stats import LanguageFrame
from fairbits.stats.resample import link_languages

SOURCE = np.random.default_rng(0)
X, Y, Z = SOURCE.normal(size=(3, 12))
T = SOURCE.normal(size=24)
A = 0.8 * T + SOURCE.normal(size=24) / 5
R = 6 + A / 2 + SOURCE.normal(size=24) / 9
D = 2 / R + SOURCE.normal(size=24) / 50
LANG, DOCUMENT = np.repeat(["deu", "heb"], 24), np.tile(np.arange(24), 2)
VALUES, SIZES = SOURCE.normal(np.repeat([3.0, 9.0], 24)), np.full(48, 100.0)
CHANGES = SOURCE.integers(-1, 2, 48).astype(float)
FRAME = LanguageFrame(LANG, DOCUMENT, values=VALUES, weights=SIZES, resamples=200)
OTHER_FRAME = LanguageFrame(LANG, DOCUMENT + 1, values=VALUES, weights=SIZES, resamples=200)
REPLICATES = FRAME.replicates
LINKED = link_languages(np.repeat([0, 1], 24), DOCUMENT, values=VALUES, weights=SIZES)

SIDE = ("array", "required", "shaped", "flat", "not all zero")
LABELS = {"longer": np.arange(13), "two axes": np.zeros((12, 1)), "one unit each": np.arange(12), "scalar": 1}
ODD_LABELS = {"nan": np.full(12, np.nan), "objects": np.full(12, object()), "ragged": [[1], [1, 2]]}
CONFIDENCE, SEED = (0.9, "share"), (0, "generator")
RESAMPLES = (200, "count", {"few": 50})
PAIR = {"x": (X, *SIDE), "y": (Y, *SIDE)}
RECORD = ("array", "required", "shaped", "flat")
FRAME_OPTIONS = {
    "unit": ("nats_per_token", "choice"),
    "confidence": CONFIDENCE,
    "resamples": RESAMPLES,
    "seed": (0, "whole"),
}
CODES = {"numbers": np.arange(48), "empty": [], "none": None, "two axes": LANG[None], "longer": [*LANG, "heb"]}
IDS = {"floats": DOCUMENT / 2, "twice": 0 * DOCUMENT, "none": None, "two axes": DOCUMENT[None], "longer": np.arange(49)}
REPLICATED = (REPLICATES, "object")
TWO_RAGGED = {"ragged": [["a"], ["a", "b"]]}
FAMILIES = {"two": np.arange(24) % 2, "longer": np.arange(25), "ragged": [[1], [1, 2]], "nan": np.full(24, np.nan)}
OF_CHAIN = ("array", "required", "shaped", "flat", "not all zero")


def correlation(function):
    """A correlation's row with a bootstrap interval, so that every option is read."""
    options = {"interval": ("percentile", "choice"), "confidence": CONFIDENCE, "resamples": RESAMPLES, "rng": SEED}
    return function, PAIR | options


ROWS = {
    "FoundingStatistics.rows": (
        lambda language: founding_statistics().rows(language),
        {"language": ("eng", {"unknown": "xxx", "none": None, "list": ["eng"]})},
    ),
    "Estimate": (
        stats.Estimate,
        {
            "value": (1.0, "number"),
            "low": (0.5, "number", {"above high": 3.0}),
            "high": (2.0, "number"),
            "n": (4, "count"),
            "confidence": CONFIDENCE,
        },
    ),
    "Estimate.without_interval": (
        lambda value, n, confidence: stats.Estimate.without_interval(value, n, confidence).value,  # its limits are not
        {"value": (1.0, "number"), "n": (4, "count"), "confidence": CONFIDENCE},
    ),
    "Estimate.transform": (
        stats.Estimate(1.0, 0.5, 2.0, 4).transform,
        {"function": (np.exp, {"none": None, "string": "exp", "number": 1.0})},
    ),
    "Estimate.excludes": (stats.Estimate(1.0, 0.5, 2.0, 4).excludes, {"x": (0.0, "number")}),
    "pearson": correlation(stats.pearson),
    "spearman": correlation(stats.spearman),
    "holm": (
        stats.holm,
        {"pvalues": (np.array([0.1, 0.5]), "array", "required", "flat", "nonnegative", {"above 1": [0.5, 1.1]})},
    ),
    "permutation_test": (
        science_stats.permutation_test,
        PAIR
        | {
            "method": ("spearman", "choice"),
            "blocks": (np.repeat([0, 1], 6), LABELS | ODD_LABELS),
            "resamples": RESAMPLES,
            "rng": SEED,
        },
    ),
    "partial_correlation": (
        science_stats.partial_correlation,
        PAIR
        | {
            "covariates": (Z, *SIDE[:3], "not all zero", {"collinear": np.column_stack([Z, 2 * Z]), "scalar": 1.0}),
            "blocks": (np.repeat([0, 1], 6), LABELS | ODD_LABELS),
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "rng": SEED,
        },
    ),
    "correlation_power": (
        science_stats.correlation_power,
        {
            "rho": (0.5, "number", {"one": 1.0, "minus one": -1.0}),
            "n": (14, "count", {"three": 3}),
            "alpha": (0.05, "share"),
            "method": ("fisher", "choice"),
        },
    ),
    "sample_size_for_power": (
        science_stats.sample_size_for_power,
        {
            "rho": (0.5, "number", {"zero": 0.0, "one": 1.0}),
            "power": (0.8, "share", {"below alpha": 0.01}),
            "alpha": (0.05, "share"),
            "method": ("exact", "choice"),
        },
    ),
    "e_value": (science_stats.e_value, {"effect": (0.5, "number"), "sd": (1.0, "positive")}),
    "robustness_value": (science_stats.robustness_value, {"t": (4.0, "number"), "df": (20, "count")}),
    "LanguageFrame": (
        LanguageFrame,
        {
            "lang": (LANG, CODES | TWO_RAGGED),
            "document": (DOCUMENT, IDS | TWO_RAGGED),
            "values": (VALUES, *RECORD),
            "weights": (SIZES, *RECORD, "nonnegative"),
        }
        | FRAME_OPTIONS,
    ),
    "OutcomeFrame": (
        stats.OutcomeFrame,
        {
            "lang": (LANG, CODES | TWO_RAGGED),
            "document": (DOCUMENT, IDS | TWO_RAGGED),
            "values": (CHANGES, *RECORD, {"half": CHANGES / 2}),
            "weights": (np.ones(48), *RECORD, "nonnegative", {"two": np.full(48, 2.0)}),
        }
        | FRAME_OPTIONS,
    ),
    "mcnemar_p": (
        stats.mcnemar_p,
        {
            "lost": (np.array([9.0, 0.0]), "array", "required", "shaped", "flat", "nonnegative"),
            "gained": (np.array([2.0, 0.0]), "array", "required", "shaped", "flat", "nonnegative"),
        },
    ),
    "LanguageFrame.from_nll": (
        LanguageFrame.from_nll,
        {
            "lang": (LANG, CODES | TWO_RAGGED),
            "document": (DOCUMENT, IDS | TWO_RAGGED),
            "reference": (SIZES, *RECORD, "nonnegative"),
            "quantized": (SIZES + 1, *RECORD, "nonnegative"),
            "tokens": (SIZES, *RECORD, "nonnegative"),
            "size_bytes": (SIZES, *RECORD, "nonnegative"),
        }
        | FRAME_OPTIONS,
    ),
    "LanguageFrame.from_nats": (
        LanguageFrame.from_nats,
        {
            "lang": (LANG, CODES | TWO_RAGGED),
            "document": (DOCUMENT, IDS | TWO_RAGGED),
            "nats": (VALUES, *RECORD),
            "tokens": (SIZES, *RECORD, "nonnegative"),
            "size_bytes": (SIZES, *RECORD, "nonnegative"),
        }
        | FRAME_OPTIONS,
    ),
    "LanguageFrame.language": (FRAME.language, {"lang": ("deu", {"unknown": "fra", "none": None, "list": ["deu"]})}),
    "LanguageFrame.contrast": (
        FRAME.contrast,
        {"other": (FRAME, "object", {"other documents": OTHER_FRAME})},
    ),
    "Contrast.significant": (FRAME.contrast(FRAME).significant, {"level": (0.05, "share")}),
    "LanguageFrame.minus": (FRAME.minus, {"other": (FRAME, "object", {"other documents": OTHER_FRAME})}),
    "LanguageFrame.worst_minus": (FRAME.worst_minus, {"other": (FRAME, "object", {"other documents": OTHER_FRAME})}),
    "worst_of": (stats.worst_of, {"replicates": REPLICATED, "confidence": CONFIDENCE}),
    "best_of": (stats.best_of, {"replicates": REPLICATED, "confidence": CONFIDENCE}),
    "bias_corrected_range": (
        stats.bias_corrected_range,
        {"replicates": REPLICATED, "confidence": CONFIDENCE, "method": ("naive", "choice")},
    ),
    "random_effects_sd": (stats.random_effects_sd, {"replicates": REPLICATED, "confidence": CONFIDENCE}),
    "replicate": (
        stats.replicate,
        {
            "linked": (LINKED, "objects"),
            "languages": (("deu", "heb"), {"one": ("deu",), "none": None, "empty": ()}),
            "resamples": RESAMPLES[:2],
            "rng": (SOURCE, {"none": None, "string": "0"}),
        },
    ),
    "mediate": (
        science_stats.mediate,
        {
            "T": (T, *OF_CHAIN),
            "A": (A, *OF_CHAIN),
            "R": (R, *OF_CHAIN, "nonnegative"),
            "D": (D, *OF_CHAIN),
            "covariates": (SOURCE.normal(size=24), *OF_CHAIN[:1], "shaped", "not all zero"),
            "families": (np.arange(24) % 12, FAMILIES),
            "change": (0.1, "number"),
            "levels": (None, {"one": (1.0,), "nan": (np.nan, 1.0), "a number": 1.0, "strings": ("a", "b")}),
            "interval": ("percentile", "choice"),
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "rng": SEED,
        },
    ),
}
