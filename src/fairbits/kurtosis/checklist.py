"""The research notes' assessment of a model before it is quantized, and the table of measurements they published.

`risk_assessment` applies the notes as they are written: conditions C1–C3 (section 2.3 of document 001), the risk
class of their table of models (3.1), the strategy (7.2) and the checklist (7.1). Each remark states what this project
found about it. The cut-offs 5 and 50 are from the notes and have no support (001-23). For a proved bound see
`certificate`. Outlier blocks are found by excess kurtosis, with the notes' rule and with a robust one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError
from fairbits.core.table import Cell, Table, dim

LOW_KAPPA = 5.0
"""κ_threshold of C1. The documents do not give it with C1; it is read from 3.2, where κ < 5 means that C1 fails."""
HIGH_KAPPA = 50.0  # from this κ on, section 7.2 requires special handling; above it, section 7.1 requires caution
MODERATE_KAPPA = float(np.sqrt(10.0 * 45.0))
"""Geometric mean of LOW-MODERATE (XLM-R, 10) and MODERATE (mT5, 45), between which the documents give no cut-off."""
LEAST_VARIANCE = 0.001  # ε of C2 (001-22)
CRITICAL_BITS = ((2.0, 3.0), (164.0, 6.0))
"""(κ, upper end of the critical range of bits): 2–3 bits for XGLM and 5–6 for BLOOM (001-17)."""

OUTLIER_KAPPA_THRESHOLD = 100.0
"""κ above which a layer is an outlier layer (001-03): it yields the layers 5, 21, 22 of BLOOM; 50 adds layer 4."""
CUTOFF = 2.5
"""How many scale units above the centre of the bulk a block must lie: the usual cut-off for a shortest-half scale."""
LEAST_FACTOR = 4.0
"""Least ratio of 1 + κ of an outlier block to the bulk's: next to a Gaussian bulk, κ must exceed Laplace's 3."""
LEAST_BLOCKS = 5

SHORT_REMARKS = {
    "C1": "not necessary (001-09)",
    "C2": "BLOOM-560M fails it (001-22)",
    "C3": "κ alone does not decide (001-17)",
}
C1_REMARK = (
    "Not necessary: blocks without outliers but with unequal σ, used unequally, also damage languages unequally "
    "(001-06, 001-09), and no data support the threshold (001-23)."
)
C2_REMARK = (
    "A variance of 0.001 needs shares with a range of 0.063 or more; BLOOM-560M, for which it was written, has a range "
    "of 0.033 and a variance of 0.00008, so it fails its own condition (001-15, 001-22)."
)
C3_REMARK = (
    "The documents do not define B_safe: it is read as the critical width, linear in ln κ between the two widths they "
    "give; the width at which languages diverge depends on the quantizer and the shape of the tails, not on κ alone "
    "(001-17)."
)


@dataclass(frozen=True)
class OutlierBlocks:
    """The outlier blocks of a model and the rule that chose them.

    `threshold` is None where the user named the blocks; `blocks` too is None where the rule cannot decide.
    """

    rule: str
    threshold: float | None
    blocks: tuple[int, ...] | None
    remark: str

    def __str__(self) -> str:
        if self.blocks is None:
            return "unknown (too few blocks)"
        chosen = "named" if self.threshold is None else f"κ > {self.threshold:.3g}"
        return f"{', '.join(map(str, self.blocks)) or 'none'} ({chosen})"


def outliers_above_threshold(kappa: ArrayLike, *, threshold: float = OUTLIER_KAPPA_THRESHOLD) -> OutlierBlocks:
    """Returns the blocks with κ_l > 100: the research notes' outlier layers (001-03)."""
    remark = "The research notes' threshold (001-03), set by hand; a handful of weights can cause such a κ."
    return OutlierBlocks("research_notes", threshold, _above(finite_array("kappa", kappa, ndim=1), threshold), remark)


def robust_outliers(kappa: ArrayLike) -> OutlierBlocks:
    """Returns the blocks whose κ stands out from the model's own bulk of blocks (a heuristic).

    With x = ln(1 + max(κ, 0)), and [a, b] the shortest interval that holds more than half of the blocks, a block stands
    out when x > c + max(2.5·s, ln 4), c = (a + b)/2 and s = 1.4826·(b − a)/2: outliers are on one side, where they
    would bias a median and its MAD. Fewer than 5 blocks have no bulk, and the rule then cannot decide.
    """
    values = finite_array("kappa", kappa, ndim=1)
    if values.size < LEAST_BLOCKS:
        remark = f"Cannot tell: {values.size} block(s) are too few to show which κ is usual."
        return OutlierBlocks("robust", None, None, remark)
    x = np.sort(np.log1p(np.maximum(values, 0.0)))  # lighter tails than Gaussian count as Gaussian
    half = values.size // 2 + 1
    widths = x[half - 1 :] - x[: x.size - half + 1]
    first = int(np.argmin(widths))
    centre, scale = (x[first] + x[first + half - 1]) / 2, 1.4826 * widths[first] / 2
    threshold = float(np.expm1(centre + max(CUTOFF * scale, np.log(LEAST_FACTOR))))
    remark = f"A heuristic: stands out from the bulk of the blocks, which lies around κ = {np.expm1(centre):.3g}."
    return OutlierBlocks("robust", threshold, _above(values, threshold), remark)


def outlier_blocks(
    kappa: ArrayLike, *, layers: Sequence[int] | None = None, threshold: float | None = None
) -> OutlierBlocks:
    """Returns the outlier blocks that R̂ and C2 count: those that the user names, or those with κ above a threshold.

    Without either: the blocks with κ > 100 if there are any, as in BLOOM-560M, else those of the robust rule.
    """
    values = finite_array("kappa", kappa, ndim=1)
    if layers is not None and threshold is not None:
        raise InputError("outlier layers and a threshold of κ were both given; give one of them")
    if layers is not None:
        named = tuple(sorted({whole("an outlier layer", layer, least=0, most=values.size - 1) for layer in layers}))
        if not named:
            raise InputError("outlier layers is empty; name at least one block, such as 5,21,22")
        return OutlierBlocks("named", None, named, "Named by the user.")
    if threshold is not None:
        limit = in_range("the threshold of κ", threshold)
        return OutlierBlocks("threshold", limit, _above(values, limit), "A threshold that the user gave.")
    by_notes = outliers_above_threshold(values)
    return by_notes if by_notes.blocks else robust_outliers(values)


def _above(kappa: Floats, threshold: float) -> tuple[int, ...]:
    return tuple(np.flatnonzero(kappa > threshold).tolist())


@dataclass(frozen=True)
class Condition:
    """One of C1–C3: value > threshold, for C3 value < threshold; None where the value is unknown."""

    name: str
    statement: str
    value: float | None
    threshold: float
    holds: bool | None
    remark: str

    def row(self) -> tuple[Cell, ...]:
        """Returns name, numbers, whether it holds, and a short remark; C3 holds below its threshold."""
        what, sign = {"C1": ("max κ", ">"), "C2": ("variance of R̂", ">"), "C3": ("bits", "<")}[self.name]
        value = "?" if self.value is None else f"{self.value:.3g}"
        word, style = {True: ("holds", "yellow"), False: ("fails", ""), None: ("unknown", "")}[self.holds]
        return self.name, f"{what} {value} {sign} {self.threshold:.3g}", [(word, style)], dim(SHORT_REMARKS[self.name])


@dataclass(frozen=True)
class Strategy:
    """The recommendation of section 7.2, and its options (one of them is enough)."""

    text: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class ChecklistItem:
    """One item of the checklist: whether it passes and, if known, the number that decides it."""

    text: str
    passed: bool
    number: float | None
    detail: str


@dataclass(frozen=True)
class RiskAssessment:
    """Everything that the research notes say about one model at one bit width.

    `risk` follows κ alone, as in their table; `expects_disparity` follows C1–C3: False if one fails, None if one is
    unknown. The two can disagree: BLOOM-560M is HIGH in the table and fails C2 by its own shares.
    """

    max_kappa: float
    block: int
    bits: int
    outliers: OutlierBlocks
    conditions: tuple[Condition, ...]
    expects_disparity: bool | None
    risk: str
    strategy: Strategy
    checklist: tuple[ChecklistItem, ...]

    def tables(self, ranges: str) -> list[Table]:
        """Returns what the notes predict and their checklist; `ranges` is a sentence on κ_eff and R̂."""
        strategy = self.strategy.text.rstrip(".")
        if len(self.strategy.options) > 1:
            strategy = f"{strategy}: {'; '.join(self.strategy.options)}"
        answer = {True: "is the case", False: "is not the case", None: "is unknown"}[self.expects_disparity]
        conditions = Table(
            "What the research notes predict",
            rows=tuple(condition.row() for condition in self.conditions),
            below=(f"They expect disparity if all three hold, which {answer} here.",),
            above=(["Risk class ", (self.risk, "bold"), f". {strategy}."], ranges, ""),
            left=(1, 2, 3),
        )
        rows: list[tuple[Cell, ...]] = []
        for item in self.checklist:
            mark: Cell = [("✓", "green")] if item.passed else [("✗", "red")]
            reason = f"max κ {item.number:.3g}" if item.detail == self.strategy.text else item.detail
            rows.append((mark, [item.text, (f": {reason}", "dim")]))
        return [conditions, Table("Checklist of the research notes", rows=tuple(rows), wrap=(1,))]


def risk_assessment(
    kappa: ArrayLike,
    *,
    outlier_share: Mapping[str, float] | None,
    bits: int,
    outliers: OutlierBlocks | None = None,
) -> RiskAssessment:
    """Returns what the notes say of a model with excess kurtosis κ_l; `outlier_share` is None without text.

    `outliers` are the blocks that `outlier_share` counts, `outlier_blocks(kappa)` unless they are given.
    """
    values, bits = finite_array("kappa", kappa, ndim=1), int(bits)
    block, top = int(np.argmax(values)), float(values.max())
    shares = None if outlier_share is None else np.array(list(outlier_share.values()))
    outliers = outlier_blocks(values) if outliers is None else outliers
    variance = None
    if shares is not None and shares.size > 1 and outliers.blocks is not None:
        variance = float(np.var(shares))
    conditions = _conditions(top, variance, bits=bits)
    holds = [condition.holds for condition in conditions]
    strategy = strategy_for(top)
    return RiskAssessment(
        max_kappa=top,
        block=block,
        bits=bits,
        outliers=outliers,
        conditions=conditions,
        expects_disparity=False if False in holds else None if None in holds else True,
        risk=risk_class(top),
        strategy=strategy,
        checklist=_checklist(values, shares, variance=variance, strategy=strategy),
    )


def risk_class(max_kappa: float) -> str:
    """Returns the class of the table of models (001-07) by their maximum κ.

    BLOOM (164) is HIGH, mT5 (45) MODERATE, XLM-R (10) LOW-MODERATE, XGLM (1.9) LOW; 5 and 50 are the cut-offs of 7.2.
    """
    for limit, name in ((LOW_KAPPA, "LOW"), (MODERATE_KAPPA, "LOW-MODERATE"), (HIGH_KAPPA, "MODERATE")):
        if max_kappa < limit:
            return name
    return "HIGH"


def strategy_for(max_kappa: float) -> Strategy:
    """Returns the strategy of 7.2 for the maximum κ (001-23)."""
    if max_kappa < LOW_KAPPA:
        return Strategy("Standard quantization, no special handling.", ())
    if max_kappa < HIGH_KAPPA:
        return Strategy(
            "Standard quantization, with evaluation per language.", ("evaluate every language (fairbits evaluate)",)
        )
    return Strategy(
        "Special handling, in one of three ways.",
        (
            f"mixed precision: 8 bits for the outlier blocks (--policy mixed --tau {HIGH_KAPPA:g})",
            "calibration per language (--policy laaciq)",
            "more bits everywhere (--bits)",
        ),
    )


def critical_bits(max_kappa: float) -> float:
    """Returns the bits below which the research notes expect disparity (001-17), read as linear in ln κ.

    The line goes through the upper ends of their two ranges, 3 bits at κ = 2 and 6 at κ = 164 ("threshold ∝ log κ",
    002-14). It never falls below 3, because the documents say nothing about κ < 2.
    """
    (kappa_0, bits_0), (kappa_1, bits_1) = CRITICAL_BITS
    kappa = max(max_kappa, kappa_0)
    return float(bits_0 + (bits_1 - bits_0) * np.log(kappa / kappa_0) / np.log(kappa_1 / kappa_0))


def _conditions(top: float, variance: float | None, *, bits: int) -> tuple[Condition, ...]:
    safe = critical_bits(top)
    varies = None if variance is None else variance > LEAST_VARIANCE
    return (
        Condition("C1", "outlier layers exist: max κ > κ_threshold", top, LOW_KAPPA, top > LOW_KAPPA, C1_REMARK),
        Condition("C2", "activation varies: Var[ā_outlier] > ε", variance, LEAST_VARIANCE, varies, C2_REMARK),
        Condition("C3", "quantization is applied: bits < B_safe", float(bits), safe, bits < safe, C3_REMARK),
    )


def _checklist(
    kappa: Floats, shares: Floats | None, *, variance: float | None, strategy: Strategy
) -> tuple[ChecklistItem, ...]:
    block, top = int(np.argmax(kappa)), float(kappa.max())
    languages = 0 if shares is None else int(shares.size)
    if shares is None or variance is None:
        spread = f"unknown: {languages} language(s) were measured; a variance needs two"
    else:
        spread = f"variance {variance:.2g} over {languages} languages, from {shares.min():.3f} to {shares.max():.3f}"
    small = variance is not None and variance <= LEAST_VARIANCE
    measured, special = f"{languages} languages", "no need to consider calibration per language or mixed precision"
    return (
        ChecklistItem("extract κ of every block", True, float(kappa.size), f"{kappa.size} blocks"),
        ChecklistItem(f"max κ is at most {HIGH_KAPPA:g}", top <= HIGH_KAPPA, top, f"κ = {top:.3g} in block {block}"),
        ChecklistItem("compute activation patterns by language", languages > 0, float(languages), measured),
        ChecklistItem(f"variance of the outlier activation is at most {LEAST_VARIANCE:g}", small, variance, spread),
        ChecklistItem(special, top < HIGH_KAPPA, top, strategy.text),
    )


@dataclass(frozen=True)
class PublishedStatistics:
    """The measurements that the research notes published for 14 languages. Nothing is fitted to them."""

    provenance: str
    languages: tuple[str, ...]
    script: tuple[str, ...]
    degradation: Floats
    outlier_activation: Floats
    kappa_weighted: Floats
    tokens: Floats
    outlier_layers: tuple[int, ...]
    kurtosis: dict[str, Floats]  # per-layer excess kurtosis of BLOOM-560M, XGLM-564M and GPT-2
    max_kurtosis: dict[str, float]
    published: dict[str, float | list[float]]

    @property
    def latin(self) -> Floats:
        return np.array([float(code == "Latn") for code in self.script])

    def rows(self, *languages: str) -> list[int]:
        return [self.languages.index(one_of("language", lang, self.languages)) for lang in languages]


@cache
def published_statistics() -> PublishedStatistics:
    """Returns the table as shipped in `assets/published_statistics.json`."""
    data = json.loads(resources.files("fairbits").joinpath("assets/published_statistics.json").read_bytes())
    columns = {key: [row[key] for row in data["languages"]] for key in data["languages"][0]}
    return PublishedStatistics(
        provenance=data["provenance"],
        languages=tuple(columns["lang"]),
        script=tuple(columns["script"]),
        degradation=np.array(columns["degradation"]),
        outlier_activation=np.array(columns["outlier_activation_fraction"]),
        kappa_weighted=np.array(columns["kappa_weighted"]),
        tokens=np.array(columns["tokens"], dtype=np.float64),
        outlier_layers=tuple(data["outlier_layers"]),
        kurtosis={
            "BLOOM-560M": np.array(data["bloom560m_mlp_kurtosis"]),
            "XGLM-564M": np.array(data["xglm564m_kurtosis"]),
            "GPT-2": np.array(data["gpt2_layer_kurtosis"]),
        },
        max_kurtosis=data["max_kurtosis_census"],
        published=data["published"],
    )
