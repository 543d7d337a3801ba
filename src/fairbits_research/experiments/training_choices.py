"""Training choices: kurtosis, layer use and disparity of models that differ in one respect of their training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairbits.auditing.record import HEADLINE
from fairbits.core.errors import InputError
from fairbits.forward.points import PointKind
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, documents_for
from fairbits_research.experiments.laboratory import Laboratory, ModelLab
from fairbits_research.experiments.result import (
    Answer,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    common_answer,
    describe,
    estimate_text,
    number_text,
)

BASE, PENALTY = "base", "penalty"
RESPECTS = ("data", "optimizer", "architecture", "regularization", "initialization")
"""The five respects by which the documents explain the weights of XGLM."""
ARMS = (BASE, *RESPECTS, PENALTY)
BITS = (3, 4)
SEEDS = 2
"""Models that an arm needs: every difference is compared with the range over seeds."""
USE: Mapping[PointKind, str] = {"block": "stream", "mlp": "MLP", "attention": "attention"}
"""Where layer use is measured, and its name in tables; the first is that of the documents and of the penalty."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The measurements of one model. `uneven` is the standard deviation over blocks of ā_l, by where it is measured."""

    name: str
    kappa: float  # the largest of a block
    tensor_kappa: float  # the largest of a linear layer
    uneven: Mapping[str, float]
    bits: float
    frames: Mapping[int, LanguageFrame]
    gaps: Mapping[int, LanguageGap]


def models_in(directory: str | Path) -> dict[str, list[str]]:
    """Returns the models in a directory that are named <arm>-<seed>, by arm and in the order of the seeds."""
    place = Path(directory)
    if not place.is_dir():
        raise InputError(f"{place} is not a directory; give the one that training/arms.py wrote its models to")
    by_arm: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(place.iterdir()):
        match = re.fullmatch(r"([a-z]+)-(\d+)", path.name)
        if match is None or not (path / "config.json").exists():
            continue
        if match[1] not in ARMS:
            raise InputError(f"{path} belongs to no known arm; the arms are {', '.join(ARMS)}: move it elsewhere")
        by_arm.setdefault(match[1], []).append((int(match[2]), str(path)))
    if not by_arm:
        raise InputError(
            f"{place} holds no model named <arm>-<seed>, such as {BASE}-1; train them with training/arms.py"
        )
    return {arm: [path for _, path in sorted(by_arm[arm])] for arm in ARMS if arm in by_arm}


def arms_with_enough_models(models: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Returns the arms that have enough models, and notes on the others; raises if base has too few."""
    if len(models.get(BASE, ())) < SEEDS:
        raise InputError(f"{BASE} has {len(models.get(BASE, ()))} model(s); it needs at least {SEEDS}")
    few = [arm for arm in ARMS if len(models.get(arm, ())) < SEEDS]
    kept = {arm: list(models[arm]) for arm in ARMS if arm not in few}
    if len(kept) < 2:
        raise InputError(f"only {BASE} has {SEEDS} models; at least one other arm must have as many")
    return kept, (f"Left out, with fewer than {SEEDS} models: {', '.join(few)}.",) if few else ()


def direction_of_change(arm: Sequence[float], base: Sequence[float]) -> int:
    """Returns 1 or −1 where all of an arm lie above or below all of base by more than the range of either, else 0."""
    room = max(np.ptp(arm), np.ptp(base))
    return int(min(arm) - max(base) > room) - int(min(base) - max(arm) > room)


def measure_model(lab: ModelLab) -> TrainedModel:
    """Returns the measurements of a model, from three passes over the text and one over the calibration text."""
    frames = {bits: lab.rounding_damage(bits) for bits in BITS}
    return TrainedModel(
        Path(lab.checkpoint.target).name,
        float(lab.kappa.max()),
        max(lab.moments.tensors[layer.name].kappa for block in lab.linear_layers for layer in block),
        {word: unevenness(lab, kind) for kind, word in USE.items() if lab.measurements.blocks(kind)},
        float(np.mean(list(lab.reference_bits().values()))),
        frames,
        {bits: LanguageGap.of(frame) for bits, frame in frames.items()},
    )


def unevenness(lab: ModelLab, kind: PointKind) -> float:
    """Returns the standard deviation over blocks of ā_l, mean over languages."""
    return float(lab.pattern(kind, HEADLINE[1]).share.std(axis=1).mean())


def quantities(model: TrainedModel) -> dict[str, float]:
    """Returns all numbers of a model that tables show."""
    shown = {"max κ": model.kappa, "κ of a map": model.tensor_kappa}
    shown |= {f"uneven {word}": value for word, value in model.uneven.items()}
    shown["bits per byte"] = model.bits
    for bits, frame in model.frames.items():
        numbers = (model.gaps[bits].estimate, frame.worst()[1], frame.mean())
        shown |= {f"{what}, {bits} bits": e.value for what, e in zip(("gap", "worst", "mean"), numbers, strict=True)}
    return shown


WORTHWHILE = 0.2
"""Share of the gap; a reduction that is certainly smaller is not worth training for."""
Family = Mapping[str, Sequence[TrainedModel]]
Pairs = Mapping[int, Sequence[tuple[str, Estimate, float]]]
"""By width, for every model with the penalty and every one of base: names, change of the gap, base's gap."""


def training_choices(laboratory: Laboratory, models: Mapping[str, Sequence[str]]) -> Result:
    """Returns the result: does a penalty on uneven layer use lower disparity, and what makes weights near-Gaussian?"""
    kept, notes = arms_with_enough_models(models)
    setting = replace(laboratory.setting, model=kept[BASE][0], text=laboratory.corpus, languages=None)
    bench = Laboratory(setting, laboratory.progress)
    family: dict[str, list[TrainedModel]] = {arm: [] for arm in kept}
    total = sum(map(len, kept.values()))
    for i, (arm, path) in enumerate([(arm, path) for arm, paths in kept.items() for path in paths]):
        bench.report(f"measuring {Path(path).name}", i, total)
        family[arm].append(measure_model(bench.lab(path)))
    pairs = _pairs(family)
    penalty, respects = judge_penalty(family, pairs), judge_respects(family)
    seeds = [int(model.name.rpartition("-")[2]) for model in family[BASE] if model.name.rpartition("-")[2].isdigit()]
    return describe(
        "training-choices",
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
    changes = [change for compared in pairs.values() for _, change, _ in compared]
    answer = common_answer([change_answer(change, gap) for compared in pairs.values() for _, change, gap in compared])
    if not fell and not all(change.low > 0 for change in changes):
        answer = Answer.UNDECIDED
    numbers = {f"{arm}_unevenness": float(np.mean(values)) for arm, values in used.items()}
    parts = []
    for bits, compared in pairs.items():
        values = [change.value for _, change, _ in compared]
        numbers[f"gap_{bits}_bits"] = float(np.mean([gap for _, _, gap in compared]))
        numbers[f"change_of_gap_{bits}_bits"] = float(np.mean(values))
        beyond = sum(change.excludes(0) for _, change, _ in compared)
        parts.append(
            f"at {bits} bits, {number_text(numbers[f'gap_{bits}_bits'])} in {BASE}, by {number_text(min(values))} to "
            f"{number_text(max(values))} ({beyond} of {len(compared)} pairs of seeds significantly)"
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
    words = {-1: "lowered by", 1: "raised by", 0: "not changed beyond the range over seeds by"}
    parts = [
        f"{words[side]} {', '.join(f'{arm} ({_listed(kappa[arm])})' for arm in way if way[arm] == side)}"
        for side in words
        if side in way.values()
    ]
    because = f"the largest κ of a block, {_listed(kappa[BASE])} in {BASE}, is " + ", ".join(parts)
    bits = {arm: [model.bits for model in family[arm]] for arm in (BASE, *lowered)}
    behind = [arm for arm in lowered if direction_of_change(bits[arm], bits[BASE]) > 0]
    if behind:  # weights start Gaussian: a model that learned less has moved less far from that
        because += f"; {' and '.join(behind)} also learned less (more bits per byte)"
    numbers = {f"{arm}_kappa": float(np.mean(values)) for arm, values in kappa.items()}
    return Judgement(
        "001-21", answer, because if parts else "no models that differ in these respects were given", numbers
    )


def _pairs(family: Family) -> Pairs:
    """Returns the comparison of every model with the penalty with every model of base."""
    return {
        bits: [
            (
                f"{trained.name} less {base.name}",
                trained.gaps[bits].minus(base.gaps[bits]),
                base.gaps[bits].estimate.value,
            )
            for trained in family[PENALTY]
            for base in family[BASE]
        ]
        for bits in BITS
        if PENALTY in family
    }


def _models(family: Family) -> ResultTable:
    shown = {model.name: quantities(model) for arm in family.values() for model in arm}
    columns = tuple(dict.fromkeys(name for numbers in shown.values() for name in numbers))
    rows = tuple(
        (name, *(number_text(numbers[c]) if c in numbers else "–" for c in columns)) for name, numbers in shown.items()
    )
    return ResultTable("Every model", ("model", *columns), rows)


def _moves(family: Family) -> ResultTable:
    shown = {arm: [quantities(model) for model in models] for arm, models in family.items()}
    columns = tuple(
        name for name in shown[BASE][0] if all(name in numbers for arm in shown.values() for numbers in arm)
    )
    rows = []
    for arm in shown.keys() - {BASE}:
        pairs = [[numbers[c] for numbers in shown[of]] for c in columns for of in (arm, BASE)]
        rows.append((arm, *(_move(one, base) for one, base in zip(pairs[::2], pairs[1::2], strict=True))))
    rows.sort(key=lambda row: ARMS.index(row[0]))
    title = "Difference to base: of the means [range over pairs of seeds], ↓ ↑ where changed"
    return ResultTable(title, ("arm", *columns), tuple(rows))


def _move(arm: Sequence[float], base: Sequence[float]) -> str:
    differences = np.subtract.outer(arm, base)
    spread = Estimate(float(differences.mean()), float(differences.min()), float(differences.max()), differences.size)
    return estimate_text(spread) + {-1: " ↓", 0: "", 1: " ↑"}[direction_of_change(arm, base)]


def _changes(pairs: Pairs) -> ResultTable:
    rows = [
        (bits, name, number_text(gap), estimate_text(change))
        for bits, compared in pairs.items()
        for name, change, gap in compared
    ]
    return ResultTable(
        "The gap with the penalty", ("bits", "models", "gap of base", "change, bits per byte"), tuple(rows)
    )


def _figure(family: Family) -> ResultFigure:
    bits = BITS[0]
    series = []
    for arm, models in family.items():
        gaps = [model.gaps[bits].estimate for model in models]
        kappa, names = (model.kappa for model in models), (model.name for model in models)
        series.append(Series.of_estimates(arm, kappa, gaps, names))
    return ResultFigure(
        f"Largest κ of a block and the gap at {bits} bits", "max κ", "gap, bits per byte", tuple(series)
    )


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
        for compared in pairs.values()
        for _, change, gap in compared
        if change_answer(change, gap) is Answer.UNDECIDED
    ]
    counts = [count for count in doubtful if count is not None]
    needed = (
        f"{max(counts)} documents would separate every change from a reduction by {WORTHWHILE:.0%}" if counts else ""
    )
    return f"{needed or 'More documents would not help'}; pairs of seeds that disagree need more seeds."
