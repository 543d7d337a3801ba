"""Training choices: kurtosis, layer use and disparity of models that differ in one respect of their training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairbits.auditing.record import HEADLINE
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import documents_for
from fairbits_research.experiments.laboratory import Laboratory
from fairbits_research.experiments.result import (
    Answer,
    Figure,
    Judgement,
    Result,
    Series,
    Table,
    common_answer,
    estimate_text,
    number_text,
)
from fairbits_research.experiments.trained_models import (
    ARMS,
    BASE,
    BITS,
    PENALTY,
    RESPECTS,
    SEEDS,
    USE,
    TrainedModel,
    arms_with_enough_models,
    direction_of_change,
    measure_model,
    models_in,
    quantities,
)

__all__ = ["models_in", "training_choices"]

NAME = "training-choices"
WORTHWHILE = 0.2
"""Share of the gap; a reduction that is certainly smaller is not worth training for."""
Family = Mapping[str, Sequence[TrainedModel]]
Pairs = Mapping[int, Sequence[tuple[str, Estimate, float]]]
"""By width, for every model with the penalty and every one of base: names, change of the gap, base's gap."""


def training_choices(laboratory: Laboratory, models: Mapping[str, Sequence[str]]) -> Result:
    """Returns the result: does a penalty on uneven layer use lower disparity, and what makes weights near-Gaussian?"""
    kept, notes = arms_with_enough_models(models)
    own = replace(laboratory.setting, model=kept[BASE][0], text=laboratory.corpus, languages=None)
    bench = Laboratory(own, laboratory.progress)
    family: dict[str, list[TrainedModel]] = {arm: [] for arm in kept}
    total = sum(map(len, kept.values()))
    for i, (arm, path) in enumerate([(arm, path) for arm, paths in kept.items() for path in paths]):
        bench.report(f"measuring {Path(path).name}", i, total)
        family[arm].append(measure_model(bench.lab(path)))
    pairs = _pairs(family)
    penalty, respects = judge_penalty(family, pairs), judge_respects(family)
    seeds = [int(model.name.rpartition("-")[2]) for model in family[BASE] if model.name.rpartition("-")[2].isdigit()]
    return Result(
        name=NAME,
        title="Training choices",
        question=(
            "Does training with a penalty on uneven layer use lower the disparity, and which training choice makes the "
            "weights more nearly Gaussian?"
        ),
        predicted=(
            "A penalty on uneven layer use lowers the disparity after quantization; weights are near-Gaussian because "
            "of training data, optimizer, architecture, regularization or initialization."
        ),
        design=(
            f"{total} models trained from scratch, {SEEDS} seeds or more per arm, that differ from base in one respect "
            "each: languages levelled to the same number of tokens (data), Muon for the matrices of the blocks "
            "(optimizer), Llama of the same width, depth and size (architecture), no weight decay and no dropout "
            "(regularization), matrices initialised three times as large (initialization), a loss with the squared "
            "coefficient of variation over blocks of the mean norm of the residual stream (penalty). Round to nearest "
            f"per channel at {' and '.join(map(str, BITS))} bits. A quantity counts as changed where all models of an "
            "arm lie on one side of all of base by more than the range over seeds of either; two and two models of one "
            "kind do so in 9 % of cases, and one or more of five such arms is lowered in 16 %. Gaps are compared "
            "document by document, every seed with every seed, with 95 % intervals."
        ),
        subject=bench.subject(seeds, models=sorted(model.name for arm in family.values() for model in arm)),
        answer=penalty.answer,
        verdict=f"On the penalty: {penalty.because}; on κ: {respects.because}.",
        meaning=_meaning(penalty.answer, respects.answer),
        tables=(_models(family), _moves(family), *([_changes(pairs)] if pairs else [])),
        figure=_figure(family),
        judgements=(penalty, respects),
        power=_power(penalty.answer, pairs),
        notes=notes,
    )


def change_answer(change: Estimate, gap: float) -> Answer:
    """Returns whether a gap fell; not supported if it rose, or if it certainly fell by less than a fifth, if at all."""
    if change.high < 0:
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if change.low > 0 or change.low > -WORTHWHILE * gap else Answer.UNDECIDED


def judge_penalty(family: Family, pairs: Pairs) -> Judgement:
    """Returns the judgement on 000-29: all pairs of seeds at all widths must agree, and layer use must be more even."""
    if PENALTY not in family:
        return Judgement("000-29", Answer.UNDECIDED, "no models with the penalty were given")
    kind = USE[HEADLINE[0]]
    used = {arm: [model.uneven[kind] for model in family[arm]] for arm in (BASE, PENALTY)}
    fell = direction_of_change(used[PENALTY], used[BASE]) < 0
    changes = [change for each in pairs.values() for _, change, _ in each]
    answer = common_answer([change_answer(change, gap) for each in pairs.values() for _, change, gap in each])
    if not fell and not all(change.low > 0 for change in changes):
        answer = Answer.UNDECIDED
    numbers = {f"{arm}_unevenness": float(np.mean(values)) for arm, values in used.items()}
    parts = []
    for bits, each in pairs.items():
        found = [change.value for _, change, _ in each]
        numbers[f"gap_{bits}_bits"] = float(np.mean([gap for _, _, gap in each]))
        numbers[f"change_of_gap_{bits}_bits"] = float(np.mean(found))
        beyond = sum(change.excludes(0) for _, change, _ in each)
        parts.append(
            f"at {bits} bits, {number_text(numbers[f'gap_{bits}_bits'])} in {BASE}, by {number_text(min(found))} to "
            f"{number_text(max(found))} ({beyond} of {len(each)} pairs of seeds significantly)"
        )
    because = (
        f"the penalty brings the unevenness of layer use from {number_text(numbers['base_unevenness'])} to "
        f"{number_text(numbers['penalty_unevenness'])}{'' if fell else ', no clear fall,'} and changes the gap "
        + " and ".join(parts)
    )
    return Judgement("000-29", answer, because, numbers)


def judge_respects(family: Family) -> Judgement:
    """Returns the judgement on 001-21: which of the five respects changes the largest κ of a block, and how."""
    kappa = {arm: [model.kappa for model in family[arm]] for arm in (BASE, *RESPECTS) if arm in family}
    way = {arm: direction_of_change(kappa[arm], kappa[BASE]) for arm in RESPECTS if arm in family}
    lowered = [arm for arm in way if way[arm] < 0]
    answer = Answer.UNDECIDED
    # a κ far below 0 is as far from a Gaussian as one above it
    if any(max(map(abs, kappa[arm])) < min(map(abs, kappa[BASE])) for arm in lowered):
        answer = Answer.SUPPORTED
    elif len(way) == len(RESPECTS) and not any(way.values()):
        answer = Answer.NOT_SUPPORTED
    said = {-1: "lowered by", 1: "raised by", 0: "not changed beyond the range over seeds by"}
    parts = [
        f"{said[side]} {', '.join(f'{arm} ({_listed(kappa[arm])})' for arm in way if way[arm] == side)}"
        for side in said
        if side in way.values()
    ]
    because = f"the largest κ of a block, {_listed(kappa[BASE])} in {BASE}, is " + ", ".join(parts)
    bits = {arm: [model.bits for model in family[arm]] for arm in (BASE, *lowered)}
    behind = [arm for arm in lowered if direction_of_change(bits[arm], bits[BASE]) > 0]
    if behind:  # weights start Gaussian: a model that learned less has moved less far from that
        because += f"; {' and '.join(behind)} also learned less (more bits per byte)"
    numbers = {f"{arm}_kappa": float(np.mean(found)) for arm, found in kappa.items()}
    return Judgement(
        "001-21", answer, because if parts else "no models that differ in these respects were given", numbers
    )


def _pairs(family: Family) -> Pairs:
    """Returns the comparison of every model with the penalty with every model of base."""
    return {
        bits: [
            (f"{one.name} less {other.name}", one.gaps[bits].minus(other.gaps[bits]), other.gaps[bits].estimate.value)
            for one in family[PENALTY]
            for other in family[BASE]
        ]
        for bits in BITS
        if PENALTY in family
    }


def _models(family: Family) -> Table:
    shown = {model.name: quantities(model) for arm in family.values() for model in arm}
    columns = tuple(dict.fromkeys(name for each in shown.values() for name in each))
    rows = tuple((name, *(number_text(each[c]) if c in each else "–" for c in columns)) for name, each in shown.items())
    return Table("Every model", ("model", *columns), rows)


def _moves(family: Family) -> Table:
    shown = {arm: [quantities(model) for model in models] for arm, models in family.items()}
    columns = tuple(name for name in shown[BASE][0] if all(name in each for arm in shown.values() for each in arm))
    rows = []
    for arm in shown.keys() - {BASE}:
        pairs = [[each[c] for each in shown[of]] for c in columns for of in (arm, BASE)]
        rows.append((arm, *(_move(one, base) for one, base in zip(pairs[::2], pairs[1::2], strict=True))))
    rows.sort(key=lambda row: ARMS.index(row[0]))
    title = "Difference to base: of the means [range over pairs of seeds], ↓ ↑ where changed"
    return Table(title, ("arm", *columns), tuple(rows))


def _move(arm: Sequence[float], base: Sequence[float]) -> str:
    found = np.subtract.outer(arm, base)
    spread = Estimate(float(found.mean()), float(found.min()), float(found.max()), found.size)
    return estimate_text(spread) + {-1: " ↓", 0: "", 1: " ↑"}[direction_of_change(arm, base)]


def _changes(pairs: Pairs) -> Table:
    rows = [
        (bits, name, number_text(gap), estimate_text(change))
        for bits, each in pairs.items()
        for name, change, gap in each
    ]
    return Table("The gap with the penalty", ("bits", "models", "gap of base", "change, bits per byte"), tuple(rows))


def _figure(family: Family) -> Figure:
    bits = BITS[0]
    series = []
    for arm, models in family.items():
        gaps = [model.gaps[bits].estimate for model in models]
        columns = ([getattr(gap, name) for gap in gaps] for name in ("value", "low", "high"))
        y, low, high = map(tuple, columns)
        names = tuple(model.name for model in models)
        series.append(Series(arm, tuple(model.kappa for model in models), y, low, high, names))
    return Figure(f"Largest κ of a block and the gap at {bits} bits", "max κ", "gap, bits per byte", tuple(series))


def _listed(numbers: Sequence[float]) -> str:
    return " and ".join(map(number_text, numbers))


def _meaning(penalty: Answer, respects: Answer) -> str:
    """Returns advice that follows from both answers."""
    first = {
        Answer.SUPPORTED: "If you train, a penalty on uneven layer use is worth trying; watch bits per byte",
        Answer.NOT_SUPPORTED: "Even layer use is not worth training for: it does not narrow the gap much",
        Answer.UNDECIDED: "Do not count on even layer use to narrow the gap: these models do not decide it",
    }[penalty]
    second = {
        Answer.SUPPORTED: "training choices do make weights more nearly Gaussian, and the table shows at what loss",
        Answer.NOT_SUPPORTED: "none of the five choices changes κ at this size, so outliers have other causes",
        Answer.UNDECIDED: "no choice that was tried makes weights more nearly Gaussian",
    }[respects]
    return (
        f"{first}; {second}. Such small, briefly trained models show what can happen, not what happens at every size."
    )


def _power(answer: Answer, pairs: Pairs) -> str:
    """Returns how many documents would separate the changes of the gap from a worthwhile reduction, where undecided."""
    if answer is not Answer.UNDECIDED or not pairs:
        return ""
    doubtful = [
        documents_for(change, -WORTHWHILE * gap)
        for each in pairs.values()
        for _, change, gap in each
        if change_answer(change, gap) is Answer.UNDECIDED
    ]
    counts = [count for count in doubtful if count is not None]
    said = f"{max(counts)} documents would separate every change from a reduction by {WORTHWHILE:.0%}" if counts else ""
    return f"{said or 'More documents would not help'}; pairs of seeds that disagree need more seeds."
