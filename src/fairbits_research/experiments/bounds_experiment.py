"""Bounds: those of the research notes and the proved one, compared with the measured disparity."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.forward.statistics import column_errors
from fairbits.kurtosis.certificate import certificate
from fairbits.kurtosis.checklist import OUTLIER_KAPPA_THRESHOLD
from fairbits.models.scales.scheme import Clip
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.laboratory import Blocks, Laboratory, ModelLab, knob_kappa, language_values
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    all_of,
    describe,
    estimate_text,
    number_text,
)
from fairbits_research.stats.pearson_correlation import pearson
from fairbits_research.theory.bounds import conjecture_bound, disparity, revised_estimate, tv_bound, variance_bound

SCHEMES: tuple[tuple[int, Clip], ...] = ((4, "absmax"), (4, "exact"), (3, "absmax"), (3, "exact"))
C_CONJECTURE, C_REVISED, SLOPE = 0.009, 0.01, 0.1
"""The documents' constants: C of conjecture 1 (000-28) and of the revised formula, |g′| of the theorem (001-15)."""
SLACK = 1e-9
"""A bound that is attained may be exceeded by rounding."""
CONJECTURE, THEOREM, REVISED = "conjecture 1", "theorem of variance", "revised formula"
TV_BLOCK, TV_CHANNEL = "total variation, blocks", "total variation, channels"
PROVED = (TV_BLOCK, TV_CHANNEL)
BY_BLOCK, BY_CHANNEL, DAMAGE = "error by block", "error by channel", "bits per byte"


@dataclass(frozen=True)
class Case:
    """A bound and the disparity that it bounds, for one model and scheme."""

    model: str
    scheme: str
    bound_name: str
    quantity: str
    actual: Estimate
    bound: float

    @property
    def answer(self) -> Answer:
        """Whether the bound holds; not supported if the whole interval lies above it."""
        limit = self.bound + SLACK * self.actual.high
        if self.actual.high <= limit:
            return Answer.SUPPORTED
        return Answer.NOT_SUPPORTED if self.actual.low > limit else Answer.UNDECIDED

    @property
    def ratio(self) -> str:
        """The actual disparity divided by the bound."""
        return number_text(self.actual.value / self.bound) if self.bound > 0 else "∞"


def bounds(laboratory: Laboratory) -> Result:
    """Returns the result: do the bounds on disparity hold?"""
    schemes = [f"{bits} bits, {clip}" for bits, clip in SCHEMES]
    subject = laboratory.subject(schemes=schemes, **laboratory.outlier_settings())
    lab = laboratory.lab()
    outliers, added = lab.outlier_text(), knob_kappa(lab.n_blocks)
    variant, note = None, "The model has blocks with κ over 100 already, so that none were added."
    if lab.kappa.max() <= OUTLIER_KAPPA_THRESHOLD:
        variant, note = laboratory.knob(added)
    names = f"κ {', '.join(f'{kappa:g}' for kappa in added.values())}"
    models = {"unchanged": None} | ({} if variant is None else {names: variant})
    cases: list[Case] = []
    for i, (name, model) in enumerate(models.items()):
        lab = laboratory.lab(model)
        for j, (bits, clip) in enumerate(SCHEMES):
            laboratory.report("rounding", i * len(SCHEMES) + j, len(models) * len(SCHEMES))
            cases += _cases(lab, name, bits, clip)
    theirs = [case for case in cases if case.bound_name not in PROVED]
    proved = [case for case in cases if case.bound_name in PROVED]
    answer = all_of(case.answer for case in theirs)
    C = [
        case.actual.value / case.bound * C_CONJECTURE
        for case in theirs
        if case.bound_name == CONJECTURE and case.bound > 0
    ]
    return describe(
        "bounds",
        design=(
            f"The unchanged model{_and_variant(added) if variant else ''}; rounded to nearest at 4 and 3 bits, with "
            "scales set by the largest weight and with the exact clip. The bounded quantities are Σ ā·MSE by block, "
            "the documents' own model; Σ p·m over input channels, weighted by E[x²]; and the measured gap in bits per "
            "byte, which violates a bound if its interval lies above it. |g′| = 0.1 as written; the revised formula "
            f"needs outlier blocks and is given the r of the damage that it estimates. {outliers}"
        ),
        subject=subject,
        answer=answer,
        verdict=(
            f"{_count_violated(theirs)} of {len(theirs)} cases violate a bound of the documents, "
            f"{_count_violated(proved)} of {len(proved)} the proved bound of total variation"
            + (
                f"; to hold, conjecture 1 would need C from {number_text(min(C))} to {number_text(max(C))}."
                if C
                else "."
            )
        ),
        meaning=(
            "A formula that some disparity exceeds guarantees nothing: for weight errors use the certificate of an "
            f"audit (actual over bound up to {_tightest(proved)} here), and measure the damage itself."
        ),
        tables=(_table(cases), _counts(cases)),
        figure=_figure(cases),
        notes=(note,) if note else (),
    )


def _and_variant(added: Mapping[int, float]) -> str:
    kappas, blocks = (" and ".join(f"{number:g}" for number in numbers) for numbers in (added.values(), added))
    return f", and the same function with κ = {kappas} in blocks {blocks}"


def _cases(lab: ModelLab, model: str, bits: int, clip: Clip) -> Iterator[Case]:
    """Yields every bound under one scheme with the disparity that it bounds."""
    frame, pattern = lab.rounding_damage(bits, clip=clip), lab.pattern("block", "norm")
    order = [pattern.languages.index(code) for code in frame.languages]
    share = pattern.share[order]
    weights = lab.checkpoint.architecture.weights
    names = tuple(name for name in lab.measurements.linears if weights[name].is_quantizable)
    errors = column_errors(lab.checkpoint, names, scheme=lab.scheme(bits, clip))
    sizes = {layer.name: int(np.prod(layer.shape)) for block in lab.linear_layers for layer in block}
    mse = block_errors(errors, [[layer.name for layer in block] for block in lab.linear_layers], sizes=sizes)
    by_block = share @ mse
    h = {name: lab.measurements.channels[lab.measurements.seen_by[name]] for name in names}
    proved = certificate(h, errors, languages=lab.measurements.languages)
    variance = np.array([block.sigma**2 for block in lab.moments.blocks])
    theorem = variance_bound([SLOPE], share, variance=variance)
    quantities = {
        BY_BLOCK: exactly(disparity(by_block), len(order)),
        BY_CHANNEL: exactly(disparity(proved.damage), len(order)),
        DAMAGE: frame.gap(),
    }
    values_of = {
        (CONJECTURE, DAMAGE): conjecture_bound(share @ lab.kappa, C_CONJECTURE),
        (THEOREM, BY_BLOCK): theorem,
        (THEOREM, DAMAGE): theorem,
        (TV_BLOCK, BY_BLOCK): max(tv_bound(p, q, errors=mse) for p in share for q in share),
        (TV_CHANNEL, BY_CHANNEL): proved.certified,
        **revised(share, lab.kappa, damage=language_values(frame), outliers=lab.outliers.blocks or ()),
    }
    for (name, quantity), bound in values_of.items():
        yield Case(model, f"{bits} bits, {clip}", name, quantity, quantities[quantity], bound)


def revised(share: Floats, kappa: Floats, *, damage: Floats, outliers: Blocks) -> dict[tuple[str, str], float]:
    """Returns the revised formula's estimate of the gap; nothing where there is no outlier block or no r."""
    used = share[:, list(outliers)].sum(axis=1)
    if not 0 < len(outliers) < len(kappa) or len(damage) < 4 or np.ptp(damage) == 0:
        return {}
    r = pearson(used, damage).estimate.value
    spread = float(np.ptp(used)), float(np.ptp(kappa))
    return {(REVISED, DAMAGE): revised_estimate(r, spread[0], kappa_range=spread[1], C=C_REVISED)}


def block_errors(errors: Mapping[str, Floats], blocks: Sequence[Sequence[str]], *, sizes: Mapping[str, int]) -> Floats:
    """Returns the mean square error of the weights of every block; `errors` are sums over rows, by channel."""
    return np.array(
        [sum(float(errors[k].sum()) for k in names) / max(1, sum(sizes[k] for k in names)) for names in blocks]
    )


def exactly(value: float, n: int) -> Estimate:
    """Returns a number that is known exactly, over n languages."""
    return Estimate(value, value, value, n)


def _count_violated(cases: Sequence[Case]) -> int:
    return sum(case.answer is Answer.NOT_SUPPORTED for case in cases)


def _tightest(cases: Sequence[Case]) -> str:
    return number_text(max(case.actual.value / case.bound for case in cases if case.bound > 0))


SAYING = {Answer.SUPPORTED: "holds", Answer.NOT_SUPPORTED: "violated", Answer.UNDECIDED: "undecided"}


def _table(cases: Sequence[Case]) -> ResultTable:
    columns = ("model", "scheme", "bound", "of", "disparity", "bound is", "disparity/bound", "")
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        actual = estimate_text(case.actual) if case.quantity == DAMAGE else number_text(case.actual.value)
        what = case.model, case.scheme, case.bound_name, case.quantity
        rows.append((*what, actual, number_text(case.bound), case.ratio, SAYING[case.answer]))
    return ResultTable("Disparity and bounds", columns, tuple(rows))


def _counts(cases: Sequence[Case]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for name, quantity in dict.fromkeys((case.bound_name, case.quantity) for case in cases):
        answers = [case.answer for case in cases if (case.bound_name, case.quantity) == (name, quantity)]
        rows.append((name, quantity, len(answers), *(answers.count(answer) for answer in SAYING)))
    return ResultTable("How often each bound holds", ("bound", "of", "cases", *SAYING.values()), tuple(rows))


def _figure(cases: Sequence[Case]) -> ResultFigure:
    series = []
    for name, quantity in dict.fromkeys((case.bound_name, case.quantity) for case in cases):
        shown = [
            c for c in cases if (c.bound_name, c.quantity) == (name, quantity) and min(c.bound, c.actual.value) > 0
        ]
        x, y = tuple(case.bound for case in shown), tuple(case.actual.value for case in shown)
        labels = tuple(f"{case.model}, {case.scheme}" for case in shown)
        series.append(Series(f"{name}: {quantity}", x, y, labels=labels))
    return ResultFigure(
        "Disparity and its bound: violated above the diagonal", "bound", "disparity", tuple(series), log="xy"
    )
