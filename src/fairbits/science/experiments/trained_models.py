"""Models trained for an experiment: those of a directory, and what is measured of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairbits.errors import InputError
from fairbits.measure.audit.audit import HEADLINE
from fairbits.measure.audit.patterns import Pattern
from fairbits.measure.passes import Measurements
from fairbits.measure.passes.recorder import PointKind
from fairbits.science.experiments.gaps import Gap
from fairbits.science.experiments.laboratory import ModelLab
from fairbits.stats import LanguageFrame

BASE, PENALTY = "base", "penalty"
RESPECTS = ("data", "optimizer", "architecture", "regularization", "initialization")
"""The five respects to which the documents put down the weights of XGLM."""
ARMS = (BASE, *RESPECTS, PENALTY)
BITS = (3, 4)
SEEDS = 2
"""Models that an arm needs: the spread over seeds is the yardstick of every difference."""
USE: Mapping[PointKind, str] = {"block": "stream", "mlp": "MLP", "attention": "attention"}
"""Where layer use is measured, and how tables call it; the first is the documents' and what is penalised."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What is measured of one model. `uneven` is the standard deviation over blocks of ā_l, by where it is measured."""

    name: str
    kappa: float  # the largest of a block
    tensor_kappa: float  # the largest of a linear map
    uneven: Mapping[str, float]
    bits: float
    frames: Mapping[int, LanguageFrame]
    gaps: Mapping[int, Gap]


def models_in(directory: str | Path) -> dict[str, list[str]]:
    """Returns the models that lie in a directory as <arm>-<seed>, by arm, seeds in order."""
    place = Path(directory)
    if not place.is_dir():
        raise InputError(f"{place} is no directory; give the one that training/arms.py wrote its models to")
    found: dict[str, list[tuple[int, str]]] = {}
    for each in sorted(place.iterdir()):
        match = re.fullmatch(r"([a-z]+)-(\d+)", each.name)
        if match is None or not (each / "config.json").exists():
            continue
        if match[1] not in ARMS:
            raise InputError(f"{each} is of no known arm; they are {', '.join(ARMS)}: move it elsewhere")
        found.setdefault(match[1], []).append((int(match[2]), str(each)))
    if not found:
        raise InputError(
            f"{place} holds no model named <arm>-<seed>, such as {BASE}-1; train them with training/arms.py"
        )
    return {arm: [path for _, path in sorted(found[arm])] for arm in ARMS if arm in found}


def enough(models: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Returns the arms that have models enough, and notes on the others; base must have."""
    if len(models.get(BASE, ())) < SEEDS:
        raise InputError(f"{BASE} has {len(models.get(BASE, ()))} model(s); at least {SEEDS} seeds are needed of it")
    few = [arm for arm in ARMS if len(models.get(arm, ())) < SEEDS]
    kept = {arm: list(models[arm]) for arm in ARMS if arm not in few}
    if len(kept) < 2:
        raise InputError(f"only {BASE} has {SEEDS} models; at least one other arm must have as many")
    return kept, (f"Left out, with fewer than {SEEDS} models: {', '.join(few)}.",) if few else ()


def moved(arm: Sequence[float], base: Sequence[float]) -> int:
    """Returns 1 or −1 where all of an arm lie above or below all of base by more than either lies apart, else 0.

    >>> moved([9.0, 8.0], [1.0, 2.0]), moved([1.0, 2.0], [9.0, 8.0]), moved([3.0, 5.0], [1.0, 2.0])
    (1, -1, 0)
    """
    room = max(np.ptp(arm), np.ptp(base))
    return int(min(arm) - max(base) > room) - int(min(base) - max(arm) > room)


def trained(lab: ModelLab) -> Trained:
    """Returns what is measured of a model; three passes over the text and one over the calibration text."""
    frames = {bits: lab.rounded(bits) for bits in BITS}
    return Trained(
        Path(lab.checkpoint.target).name,
        float(lab.kappa.max()),
        max(lab.moments.tensors[each.name].kappa for block in lab.maps for each in block),
        {word: unevenness(lab.measured, kind) for kind, word in USE.items() if lab.measured.blocks(kind)},
        float(np.mean(list(lab.reference_bits().values()))),
        frames,
        {bits: Gap.of(frame) for bits, frame in frames.items()},
    )


def unevenness(measured: Measurements, kind: PointKind) -> float:
    """Returns the standard deviation over blocks of ā_l, mean over languages."""
    sums, positions = measured.sums(kind, HEADLINE[1]), measured.sums(kind, "positions")
    pattern = Pattern(measured.lang, measured.document, sums=sums, tokens=positions)
    return float(pattern.share.std(axis=1).mean())


def quantities(model: Trained) -> dict[str, float]:
    """Returns all that tables show of a model."""
    shown = {"max κ": model.kappa, "κ of a map": model.tensor_kappa}
    shown |= {f"uneven {word}": value for word, value in model.uneven.items()}
    shown["bits per byte"] = model.bits
    for bits, frame in model.frames.items():
        numbers = (model.gaps[bits].estimate, frame.worst()[1], frame.mean())
        shown |= {f"{what}, {bits} bits": e.value for what, e in zip(("gap", "worst", "mean"), numbers, strict=True)}
    return shown
