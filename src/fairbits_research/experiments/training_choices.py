"""Training choices: kurtosis, layer use and disparity of models that differ in one respect of their training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind

from fairbits.auditing.record import HEADLINE
from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.forward.points import PointKind
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, estimate_within
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
CHANCE_DRAWS = 100_000
USE: Mapping[PointKind, str] = {"block": "stream", "mlp": "MLP", "attention": "attention"}
"""Where layer use is measured, and its name in tables; the first is that of the documents and of the penalty."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The measurements of one model.

    `uneven` is the standard deviation over blocks of ā_l, by where it is measured; `effective` is the largest less the
    smallest κ_eff = Σ_l ā_l·κ_l of a language.
    """

    name: str
    kappa: float  # the largest of a block
    tensor_kappa: float  # the largest of a linear layer
    uneven: Mapping[str, float]
    bits: float
    frames: Mapping[int, LanguageFrame]
    gaps: Mapping[int, LanguageGap]
    effective: float = 0.0


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
    return int(_directions(np.asarray(arm, dtype=float), np.asarray(base, dtype=float)))


def _directions(arm: Floats, base: Floats) -> Floats:
    """Returns the direction of change of many arms at once; the last axis runs over models."""
    room = np.maximum(np.ptp(arm, axis=-1), np.ptp(base, axis=-1))
    above = arm.min(axis=-1) - base.max(axis=-1) > room
    below = base.min(axis=-1) - arm.max(axis=-1) > room
    directions: Floats = above.astype(float) - below
    return directions


def false_alarms(base: int, arms: Sequence[int]) -> tuple[float, float]:
    """Returns how often the rule errs where no arm differs: one arm changed, on average, and any arm lowered.

    `base` and `arms` are numbers of models. Their quantity is Gaussian over seeds with the same mean and variance
    everywhere; 100,000 families are simulated.
    """
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(CHANCE_DRAWS, base))
    directions = np.stack([_directions(rng.normal(size=(CHANCE_DRAWS, n)), drawn) for n in arms])
    return float(np.mean(directions != 0)), float(np.mean((directions < 0).any(axis=0)))


def difference_over_seeds(arm: Sequence[float], base: Sequence[float]) -> Estimate:
    """Returns mean(arm) − mean(base) with Welch's 95 % t interval over seeds; without one where no seed differs."""
    value, n = float(np.mean(arm) - np.mean(base)), len(arm) + len(base)
    if np.ptp(arm) == 0 and np.ptp(base) == 0:
        return Estimate.without_interval(value, n)
    interval = ttest_ind(arm, base, equal_var=False).confidence_interval(0.95)
    return estimate_within(value, float(interval.low), float(interval.high), n=n, confidence=0.95)


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
        float(np.ptp(lab.pattern(*HEADLINE).share @ lab.kappa)),
    )


def unevenness(lab: ModelLab, kind: PointKind) -> float:
    """Returns the standard deviation over blocks of ā_l, mean over languages."""
    return float(lab.pattern(kind, HEADLINE[1]).share.std(axis=1).mean())


EFFECTIVE = "range of κ_eff"


def quantities(model: TrainedModel) -> dict[str, float]:
    """Returns all numbers of a model that tables show."""
    shown = {"max κ": model.kappa, "κ of a map": model.tensor_kappa}
    shown |= {f"uneven {word}": value for word, value in model.uneven.items()}
    shown |= {EFFECTIVE: model.effective, "bits per byte": model.bits}
    for bits, frame in model.frames.items():
        numbers = (model.gaps[bits].estimate, frame.worst()[1], frame.mean())
        shown |= {f"{what} at {bits} bits": e.value for what, e in zip(("gap", "worst", "mean"), numbers, strict=True)}
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
        design=_design(kept),
        subject=bench.subject(seeds, models=sorted(model.name for arm in family.values() for model in arm)),
        answer=penalty.answer,
        verdict=(
            f"On the penalty: {penalty.because}; on κ: {respects.because}; on disparity: {_disparity(family)}; on "
            f"κ_eff: {_by_interval(family, EFFECTIVE)}."
        ),
        meaning=_meaning(penalty.answer, respects.answer),
        tables=(_models(family), _moves(family), *([_changes(pairs)] if pairs else [])),
        figure=_figure(family),
        judgements=(penalty, respects),
        power=_power(penalty.answer, pairs),
        notes=notes,
    )


def _design(kept: Mapping[str, Sequence[str]]) -> str:
    counts = {arm: len(paths) for arm, paths in kept.items()}
    seeds = " or ".join(map(str, sorted(set(counts.values()))))
    changed, lowered = false_alarms(counts[BASE], [count for arm, count in counts.items() if arm != BASE])
    return (
        f"{sum(counts.values())} models trained from scratch, {seeds} seeds per arm, that differ from base in one "
        "respect each: languages levelled to the same number of tokens (data), Muon for the matrices of the blocks "
        "(optimizer), Llama of the same width, depth and size (architecture), no weight decay and no dropout "
        "(regularization), matrices initialised three times as large (initialization), a loss with the squared "
        "coefficient of variation over blocks of the mean norm of the residual stream (penalty). Round to nearest per "
        f"channel at {' and '.join(map(str, BITS))} bits. Differences of means have 95 % intervals over seeds (Welch's "
        "t): they say what other seeds would give on the same text, each on its own, so that one in twenty misses. A "
        "quantity counts as changed where all models of an arm lie on one side of all of base by more than the range "
        "over seeds of either; with these numbers of models, an arm that differs in nothing does so in "
        f"{changed:.1%} of cases, and one or more of {len(counts) - 1} such arms is lowered in {lowered:.1%} "
        "(simulated). Gaps with the penalty are compared document by document, every seed with every seed, with 95 % "
        "intervals."
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
    shown = {
        arm: f"{arm} ({_listed(kappa[arm])}: {estimate_text(difference_over_seeds(kappa[arm], kappa[BASE]))})"
        for arm in way
    }
    parts = [
        f"{words[side]} {', '.join(shown[arm] for arm in way if way[arm] == side)}"
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


def _by_interval(family: Family, quantity: str) -> str:
    """Returns which arms raise, lower or do not certainly change a quantity, by the interval over seeds of each."""
    values = {arm: [quantities(model)[quantity] for model in models] for arm, models in family.items()}
    parts: dict[str, list[str]] = {"raised by": [], "lowered by": [], "not certainly changed by": []}
    for arm in [arm for arm in values if arm != BASE]:
        change = difference_over_seeds(values[arm], values[BASE])
        side = "raised by" if change.low > 0 else "lowered by" if change.high < 0 else "not certainly changed by"
        parts[side].append(f"{arm} ({estimate_text(change)})")
    listed = ", ".join(f"{side} {', '.join(arms)}" for side, arms in parts.items() if arms)
    return f"the {quantity}, {number_text(float(np.mean(values[BASE])))} in {BASE}, is {listed}"


def _disparity(family: Family) -> str:
    """Returns which arms change the gap at each width."""
    return " and ".join(_by_interval(family, f"gap at {bits} bits") for bits in BITS)


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
    names = [name for name in shown[BASE][0] if all(name in numbers for arm in shown.values() for numbers in arm)]
    rows = []
    for name in names:
        values = {arm: [numbers[name] for numbers in models] for arm, models in shown.items()}
        rows += [
            (name, arm, number_text(float(np.mean(values[arm]))), _move(values[arm], values[BASE]))
            for arm in ARMS
            if arm in values and arm != BASE
        ]
    title = "Difference to base: of the means [95 % interval over seeds, Welch's t], ↓ ↑ where changed"
    return ResultTable(title, ("quantity", "arm", "mean", "less base"), tuple(rows))


def _move(arm: Sequence[float], base: Sequence[float]) -> str:
    return estimate_text(difference_over_seeds(arm, base)) + {-1: " ↓", 0: "", 1: " ↑"}[direction_of_change(arm, base)]


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
    *first, last = map(number_text, numbers)
    return f"{', '.join(first)} and {last}" if first else last


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
