"""The founding documents' view of a model before it is quantized, as written; each remark says what became of it.

Conditions C1–C3 (section 2.3 of document 001), the class of their table of models (3.1), the strategy (7.2) and the
checklist (7.1). The cut-offs 5 and 50 are theirs and have no support (001-23): read `certificate` for what is proved.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import Floats, finite_array, in_range, instance, whole
from fairbits.measure.audit.outliers import OutlierBlocks, founders_outliers

LOW_KAPPA = 5.0
"""κ_threshold of C1. Not written where C1 is; read from 3.2, where κ < 5 stands for a C1 that fails."""
HIGH_KAPPA = 50.0
"""From here on 7.2 asks for special handling, and 7.1 for caution above it."""
MODERATE_KAPPA = float(np.sqrt(10.0 * 45.0))
"""Between the table's LOW-MODERATE (XLM-R, 10) and MODERATE (mT5, 45) no cut-off is written: their geometric middle."""
LEAST_VARIANCE = 0.001
"""ε of C2 (001-22)."""
CRITICAL_WIDTHS = ((2.0, 3.0), (164.0, 6.0))
"""(κ, upper end of the critical width in bits): 2–3 bits for XGLM and 5–6 for BLOOM (001-17)."""

C1_REMARK = (
    "Not necessary: blocks without outliers but of unequal σ, used unequally, part the languages too (001-06, 001-09), "
    "and no data stand behind the threshold (001-23)."
)
C2_REMARK = (
    "A variance of 0.001 needs shares that spread over 0.063 or more; BLOOM-560M, for which it was written, spreads "
    "over 0.033 and has a variance of 0.00008, so it fails its own condition (001-15, 001-22)."
)
C3_REMARK = (
    "B_safe is not written: it is read as the critical width, linear in ln κ between the two that are; where languages "
    "part depends on the quantizer and the shape of the tails, not on κ alone (001-17)."
)


@dataclass(frozen=True)
class Condition:
    """One of C1–C3: value > threshold, for C3 value < threshold; None where the value is unknown."""

    name: str
    statement: str
    value: float | None
    threshold: float
    holds: bool | None
    remark: str


@dataclass(frozen=True)
class Strategy:
    """What 7.2 recommends, and the options it leaves open (one of them is enough)."""

    text: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """One box of the checklist: passed when it is done and asks for nothing further; the number behind it, if known."""

    text: str
    passed: bool
    number: float | None
    detail: str


@dataclass(frozen=True)
class FoundersView:
    """All that the founding documents conclude of one model at one width.

    `risk` follows κ alone, as the table's column does; `expects_disparity` follows C1–C3: False if one fails, None if
    one is unknown. They can disagree: BLOOM-560M is HIGH in the table and fails C2 by its own shares.
    """

    max_kappa: float
    block: int
    bits: int
    outliers: OutlierBlocks
    conditions: tuple[Condition, ...]
    expects_disparity: bool | None
    risk: str
    strategy: Strategy
    checklist: tuple[Check, ...]

    def as_data(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


def founders_view(kappa: ArrayLike, *, outlier_share: Mapping[str, float] | None, bits: int) -> FoundersView:
    """Returns conditions, risk class, strategy and checklist of a model with excess kurtosis κ_l per block.

    `outlier_share` is ā_outlier(λ) by language, None without text.

    >>> view = founders_view([0.3, 164.0, 2.0], outlier_share={"eng": 0.205, "ara": 0.177}, bits=4)
    >>> view.risk, [condition.holds for condition in view.conditions], view.expects_disparity
    ('HIGH', [True, False, True], False)
    """
    values = finite_array("kappa", kappa, ndim=1)
    bits = whole("bits", bits, least=2, most=16)
    block, top = int(np.argmax(values)), float(values.max())
    shares = None if outlier_share is None else _shares(outlier_share)
    variance = None if shares is None or shares.size < 2 else float(np.var(shares))
    conditions = _conditions(top, variance, bits=bits)
    strategy = strategy_for(top)
    return FoundersView(
        max_kappa=top,
        block=block,
        bits=bits,
        outliers=founders_outliers(values),
        conditions=conditions,
        expects_disparity=_all(tuple(condition.holds for condition in conditions)),
        risk=risk_class(top),
        strategy=strategy,
        checklist=_checklist(values, shares, variance=variance, strategy=strategy),
    )


def risk_class(max_kappa: float) -> str:
    """Returns the class of the table of models (001-07) by their maximum κ.

    It says BLOOM (164) HIGH, mT5 (45) MODERATE, XLM-R (10) LOW-MODERATE, XGLM (1.9) LOW. Read here as LOW below 5 and
    HIGH from 50, the cut-offs of 7.2, and LOW-MODERATE below √(10·45) ≈ 21, where none is written. C2 plays no part:
    the table leaves it open for all models but BLOOM.

    >>> [risk_class(kappa) for kappa in (164, 45, 10, 1.9)]
    ['HIGH', 'MODERATE', 'LOW-MODERATE', 'LOW']
    """
    kappa = in_range("max_kappa", max_kappa)
    for limit, name in ((LOW_KAPPA, "LOW"), (MODERATE_KAPPA, "LOW-MODERATE"), (HIGH_KAPPA, "MODERATE")):
        if kappa < limit:
            return name
    return "HIGH"


def strategy_for(max_kappa: float) -> Strategy:
    """Returns the strategy of 7.2 for the maximum κ (001-23).

    >>> strategy_for(12.0).options
    ('evaluate every language',)
    """
    kappa = in_range("max_kappa", max_kappa)
    if kappa < LOW_KAPPA:
        return Strategy("Standard quantization, no special handling.", ())
    if kappa < HIGH_KAPPA:
        return Strategy("Standard quantization, with evaluation per language.", ("evaluate every language",))
    return Strategy(
        "Special handling, in one of three ways.",
        ("mixed precision: 8 bits for the outlier blocks", "calibration per language", "more bits everywhere"),
    )


def critical_width(max_kappa: float) -> float:
    """Returns the bits below which the founding documents expect disparity (001-17), read as linear in ln κ.

    Through the upper ends of their two ranges, 3 bits at κ = 2 and 6 at κ = 164 ("threshold ∝ log κ", 002-14); never
    below 3, because nothing is written for κ < 2.

    >>> [round(critical_width(kappa), 2) for kappa in (0.5, 2, 45, 164)]
    [3.0, 3.0, 5.12, 6.0]
    """
    (kappa_0, bits_0), (kappa_1, bits_1) = CRITICAL_WIDTHS
    kappa = max(in_range("max_kappa", max_kappa), kappa_0)
    return float(bits_0 + (bits_1 - bits_0) * np.log(kappa / kappa_0) / np.log(kappa_1 / kappa_0))


def _shares(outlier_share: Mapping[str, float]) -> Floats:
    shares = instance("outlier_share", outlier_share, Mapping)
    return np.array([in_range(f"outlier_share of {lang}", shares[lang], least=0, most=1 + 1e-9) for lang in shares])


def _conditions(top: float, variance: float | None, *, bits: int) -> tuple[Condition, ...]:
    safe = critical_width(top)
    varies = None if variance is None else variance > LEAST_VARIANCE
    return (
        Condition("C1", "outlier layers exist: max κ > κ_threshold", top, LOW_KAPPA, top > LOW_KAPPA, C1_REMARK),
        Condition("C2", "activation varies: Var[ā_outlier] > ε", variance, LEAST_VARIANCE, varies, C2_REMARK),
        Condition("C3", "quantization is applied: bits < B_safe", float(bits), safe, bits < safe, C3_REMARK),
    )


def _all(holds: tuple[bool | None, ...]) -> bool | None:
    """Whether all hold: False if one fails, else None if one is unknown."""
    if False in holds:
        return False
    return None if None in holds else True


def _checklist(
    kappa: Floats, shares: Floats | None, *, variance: float | None, strategy: Strategy
) -> tuple[Check, ...]:
    block, top = int(np.argmax(kappa)), float(kappa.max())
    languages = 0 if shares is None else int(shares.size)
    if shares is None or variance is None:
        spread = f"unknown: {languages} language(s) were measured, and a variance needs two"
    else:
        spread = f"variance {variance:.2g} over {languages} languages, from {shares.min():.3f} to {shares.max():.3f}"
    return (
        Check("extract κ of every block", True, float(kappa.size), f"{kappa.size} blocks"),
        Check(f"max κ is at most {HIGH_KAPPA:g}", top <= HIGH_KAPPA, top, f"κ = {top:.3g} in block {block}"),
        Check("compute activation patterns by language", languages > 0, float(languages), f"{languages} languages"),
        Check(
            f"variance of the outlier activation is at most {LEAST_VARIANCE:g}",
            variance is not None and variance <= LEAST_VARIANCE,
            variance,
            spread,
        ),
        Check(
            "no need to consider calibration per language or mixed precision",
            top < HIGH_KAPPA,
            top,
            strategy.text,
        ),
    )
