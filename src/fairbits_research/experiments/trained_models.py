"""Models trained for an experiment: those of a directory, and the measurements of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairbits.auditing.record import HEADLINE
from fairbits.core.errors import InputError
from fairbits.forward.recorder import PointKind
from fairbits.forward.statistics import ActivationStatistics
from fairbits.kurtosis.patterns import Pattern
from fairbits.stats.frame import LanguageFrame
from fairbits_research.experiments.gaps import LanguageGap
from fairbits_research.experiments.laboratory import ModelLab

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
    found: dict[str, list[tuple[int, str]]] = {}
    for each in sorted(place.iterdir()):
        match = re.fullmatch(r"([a-z]+)-(\d+)", each.name)
        if match is None or not (each / "config.json").exists():
            continue
        if match[1] not in ARMS:
            raise InputError(f"{each} belongs to no known arm; the arms are {', '.join(ARMS)}: move it elsewhere")
        found.setdefault(match[1], []).append((int(match[2]), str(each)))
    if not found:
        raise InputError(
            f"{place} holds no model named <arm>-<seed>, such as {BASE}-1; train them with training/arms.py"
        )
    return {arm: [path for _, path in sorted(found[arm])] for arm in ARMS if arm in found}


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
    """Returns 1 or −1 where all of an arm lie above or below all of base by more than the range of either, else 0.

    >>> [direction_of_change(arm, [4.0, 5.0]) for arm in ([9.0, 8.0], [1.0, 2.0], [5.5, 6.5])]
    [1, -1, 0]
    """
    room = max(np.ptp(arm), np.ptp(base))
    return int(min(arm) - max(base) > room) - int(min(base) - max(arm) > room)


def measure_model(lab: ModelLab) -> TrainedModel:
    """Returns the measurements of a model, from three passes over the text and one over the calibration text."""
    frames = {bits: lab.rounding_damage(bits) for bits in BITS}
    return TrainedModel(
        Path(lab.checkpoint.target).name,
        float(lab.kappa.max()),
        max(lab.moments.tensors[each.name].kappa for block in lab.linear_maps for each in block),
        {word: unevenness(lab.measurements, kind) for kind, word in USE.items() if lab.measurements.blocks(kind)},
        float(np.mean(list(lab.reference_bits().values()))),
        frames,
        {bits: LanguageGap.of(frame) for bits, frame in frames.items()},
    )


def unevenness(measured: ActivationStatistics, kind: PointKind) -> float:
    """Returns the standard deviation over blocks of ā_l, mean over languages."""
    sums, positions = measured.sums(kind, HEADLINE[1]), measured.sums(kind, "positions")
    pattern = Pattern(measured.lang, measured.document, sums=sums, tokens=positions)
    return float(pattern.share.std(axis=1).mean())


def quantities(model: TrainedModel) -> dict[str, float]:
    """Returns all numbers of a model that tables show."""
    shown = {"max κ": model.kappa, "κ of a map": model.tensor_kappa}
    shown |= {f"uneven {word}": value for word, value in model.uneven.items()}
    shown["bits per byte"] = model.bits
    for bits, frame in model.frames.items():
        numbers = (model.gaps[bits].estimate, frame.worst()[1], frame.mean())
        shown |= {f"{what}, {bits} bits": e.value for what, e in zip(("gap", "worst", "mean"), numbers, strict=True)}
    return shown
