"""Sweep: damage of every language at every width, and the width at which it passes a threshold."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits import __version__
from fairbits.artifacts import check_writable, write_files
from fairbits.checks import Floats, finite_array, one_of, positive, whole
from fairbits.checks import sequence as listed
from fairbits.errors import InputError, printable
from fairbits.language import Corpus
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.moments import weight_moments
from fairbits.plans import Group, Plan
from fairbits.risk.founders import critical_width
from fairbits.stats import Estimate, LanguageFrame
from fairbits.steps.bench import UNITS, Bench, Progress
from fairbits.steps.plan import plan as planned
from fairbits.steps.variants import variant

SCHEMA = "fairbits.sweep/1"
THRESHOLDS = {"bits_per_byte": 0.01, "nats_per_token": 0.03, "nats_per_section": 3.0}
"""Damage that is taken as too much unless another threshold is named: about 1 % of what a good model has to say."""
FLOOR = 100.0
"""Damage below threshold/FLOOR counts as threshold/FLOOR: noise around 0 has no logarithm."""
REMARK = (
    "Their width follows κ alone and names no threshold; "
    "the measured one moves with the threshold, the policy and the group (001-17)."
)


@dataclass(frozen=True)
class Width:
    """B*, the bits at which damage passes a threshold, with its interval.

    The least and the largest width of a sweep stand for all that lies beyond them.
    """

    value: float
    low: float
    high: float

    def written(self, bits: Sequence[int]) -> str:
        """Returns it as text, where `bits` are the widths of the sweep.

        >>> Width(3.42, 3.1, 8.0).written(range(2, 9))
        '3.4 [3.1, >8]'
        """
        value, low, high = (written_width(each, bits) for each in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


def written_width(width: float, bits: Sequence[int]) -> str:
    """Returns a width as text: below the least, above the largest, or with one decimal."""
    if width <= bits[0]:
        return f"<{bits[0]}"
    return f">{bits[-1]}" if width >= bits[-1] else f"{width:.1f}"


@dataclass(frozen=True, eq=False)
class Sweep:
    """One policy at several widths, ascending, on the same text.

    `frames` are the damages by width, all of the same documents, `sizes` the bytes of the quantized model. `max_kappa`
    is the largest excess kurtosis of a block, from which the founding documents tell the width.
    """

    model: str
    fingerprint: str
    policy: str
    settings: Mapping[str, Any]
    frames: Mapping[int, LanguageFrame]
    sizes: Mapping[int, int]
    threshold: float
    max_kappa: float
    notes: tuple[str, ...] = ()

    @property
    def bits(self) -> tuple[int, ...]:
        """The widths."""
        return tuple(self.frames)

    @property
    def unit(self) -> str:
        """What damage is counted in."""
        return next(iter(self.frames.values())).unit

    @cached_property
    def curves(self) -> dict[str, dict[int, Estimate]]:
        """D(λ, B) by language and width."""
        found = {bits: frame.by_language() for bits, frame in self.frames.items()}
        languages = next(iter(self.frames.values())).languages
        return {code: {bits: found[bits][code] for bits in self.bits} for code in languages}

    @cached_property
    def widths(self) -> dict[str, Width]:
        """B*(λ) of every language; its interval by resampling documents, the same ones at every width."""
        frames = list(self.frames.values())
        value = np.stack([frame.replicates.value for frame in frames], axis=-1)
        drawn = value + np.stack([frame.replicates.deviation for frame in frames], axis=-1)
        tail = 50 * (1 - frames[0].confidence)
        low, high = np.percentile(crossing(self.bits, drawn, self.threshold), [tail, 100 - tail], axis=0)
        found = zip(crossing(self.bits, value, self.threshold), low, high, strict=True)
        return {
            code: Width(float(at), float(min(at, a)), float(max(at, b)))
            for code, (at, a, b) in zip(frames[0].languages, found, strict=True)
        }

    @cached_property
    def gaps(self) -> dict[int, Estimate]:
        """Worst less best language at every width, less its noise bias."""
        return {bits: frame.gap() for bits, frame in self.frames.items()}

    @cached_property
    def gap_width(self) -> Width:
        """The width at which the gap passes the threshold; its interval from the limits of the gaps."""
        limits = [[getattr(gap, name) for gap in self.gaps.values()] for name in ("value", "low", "high")]
        return Width(*(float(at) for at in crossing(self.bits, limits, self.threshold)))

    @property
    def predicted(self) -> float:
        """The width below which the founding documents expect that languages part."""
        return critical_width(self.max_kappa)

    @property
    def verdict(self) -> tuple[str, ...]:
        """What the sweep says, and where the founding documents' width is wrong."""
        return _needs(self), _against_founders(self), REMARK

    def as_data(self) -> dict[str, Any]:
        """Returns all of it, for JSON."""
        return {
            "schema": SCHEMA,
            "fairbits": __version__,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "policy": self.policy,
            "settings": dict(self.settings),
            "unit": self.unit,
            "threshold": self.threshold,
            "sizes": {str(bits): size for bits, size in self.sizes.items()},
            "damage": {
                code: {str(bits): each.to_dict() for bits, each in curve.items()} for code, curve in self.curves.items()
            },
            "gap": {str(bits): each.to_dict() for bits, each in self.gaps.items()},
            "critical_width": {code: asdict(width) for code, width in self.widths.items()},
            "critical_width_of_gap": asdict(self.gap_width),
            "founders": {"max_kappa": self.max_kappa, "critical_width": self.predicted},
            "verdict": list(self.verdict),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Writes the sweep."""
        text = json.dumps(self.as_data(), ensure_ascii=False, indent=1, allow_nan=False)
        content = "\n".join(map(printable, text.split("\n"))).encode() + b"\n"
        write_files({check_writable(path, example="sweep.json"): content})


def sweep(
    model: str | Path | Checkpoint,
    *,
    bits: Iterable[int] = range(2, 9),
    policy: str = "mse",
    group: Group = 128,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int = 4096,
    evaluation_tokens: int = 8192,
    sequence: int = 512,
    seed: int = 0,
    unit: str = "bits_per_byte",
    threshold: float | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Sweep:
    """Returns the damage of every language at every width, and the width at which it passes the threshold.

    `tokens` per language are for calibration where the policy reads text, `evaluation_tokens` for evaluation. Without
    a threshold, 0.01 bits per byte, 0.03 nats per token or 3 nats per section.
    """
    widths = sorted({whole("bits", each, least=2, most=8) for each in listed("bits", bits)})
    if len(widths) < 2:
        raise InputError(f"bits is {widths}; a sweep needs two widths or more, such as 2..8")
    limit = THRESHOLDS[one_of("unit", unit, tuple(THRESHOLDS))] if threshold is None else threshold
    positive("threshold", limit)
    asked = variant(policy)
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(model)
    settings: dict[str, Any] = {"group": group, "tokens": tokens, "sequence": sequence, "seed": seed}
    frames: dict[int, LanguageFrame] = {}
    plans: dict[int, Plan] = {}
    with Bench.of(
        checkpoint,
        languages=languages,
        text=text,
        tokens=evaluation_tokens,
        sequence=sequence,
        device=device,
        progress=progress,
    ) as bench:
        for width in widths:
            options = {**settings, **asked.at(width)}
            plan = planned(
                checkpoint, policy=asked.policy, text=bench.corpus, device=device, progress=progress, **options
            )
            run = bench.run(plan, name=f"{policy}, {width} bits", progress=progress)
            frames[width], plans[width] = run.scores.frame(unit), run.plan
        settings |= {"evaluation_tokens": evaluation_tokens, "text": bench.corpus.name}
    return Sweep(
        model=checkpoint.target,
        fingerprint=checkpoint.fingerprint,
        policy=policy,
        settings=settings,
        frames=frames,
        sizes={width: plan.size_bytes for width, plan in plans.items()},
        threshold=limit,
        max_kappa=max(block.kappa for block in weight_moments(checkpoint).blocks),
        notes=tuple(dict.fromkeys([*bench.notes, *(note for plan in plans.values() for note in plan.notes)])),
    )


def crossing(bits: Sequence[int], damage: ArrayLike, threshold: float) -> Floats:
    """Returns the width at which damage (…, widths) passes the threshold, log D taken as linear between two widths.

    The largest one if damage passes it more than once; the least width of all where damage is never above, the largest
    where it is above even there.

    >>> crossing([2, 3, 4], [0.4, 0.1, 0.025], 0.05).item()
    3.5
    """
    at = finite_array("bits", list(bits), ndim=1, least=2)
    level = positive("threshold", threshold)
    logs = np.log(np.maximum(finite_array("damage", damage), level / FLOOR) / level)
    above = logs > 0
    last = len(at) - 1 - np.argmax(above[..., ::-1], axis=-1)  # the largest width with too much damage
    left = np.minimum(last, len(at) - 2)[..., None]
    before, after = (np.take_along_axis(logs, index, axis=-1)[..., 0] for index in (left, left + 1))
    inside = (last < len(at) - 1) & above.any(axis=-1)
    share = np.divide(before, before - after, out=np.zeros_like(before), where=inside)
    width: Floats = at[left[..., 0]] + share * np.diff(at)[left[..., 0]]
    return np.where(inside, width, np.where(above.any(axis=-1), at[-1], at[0]))


def _needs(sweep: Sweep) -> str:
    """Returns which languages need the fewest and the most bits, and whether one width is enough for all."""
    least = min(sweep.widths, key=lambda code: sweep.widths[code].value)
    most = max(sweep.widths, key=lambda code: sweep.widths[code].value)
    low, high = sweep.widths[least], sweep.widths[most]
    limit = f"{sweep.threshold:g} {UNITS[sweep.unit]}"
    if high.value <= sweep.bits[0]:
        return f"No language loses {limit} at {sweep.bits[0]} bits or more: ask for fewer bits or a lower threshold."
    if low.value >= sweep.bits[-1]:
        return f"Every language loses {limit} even at {sweep.bits[-1]} bits: ask for more bits or a higher threshold."
    start = (
        f"{most} loses more than {limit} below {high.written(sweep.bits)} bits, {least} below {low.written(sweep.bits)}"
    )
    if low.high < high.low:
        return f"{start}: {most} needs {high.value - low.value:.1f} bits more, so no one width treats both alike."
    return f"{start}; their intervals meet, so that one width may do for all."


def _against_founders(sweep: Sweep) -> str:
    """Returns where the founding documents' width lies beside the one at which languages part."""
    own, found, bits = sweep.gap_width, sweep.predicted, sweep.bits
    start = (
        f"The founding documents expect that languages part below {found:.1f} bits, as max κ is {sweep.max_kappa:.3g}; "
        f"the gap passes {sweep.threshold:g} {UNITS[sweep.unit]} at {own.written(bits)} bits: "
    )
    if own.low <= found <= own.high:
        return start + "theirs is within its interval."
    if found > own.high:
        return start + f"too high by {found - own.value:.1f} bits, which warns where languages do not part yet."
    return start + f"too low by {own.value - found:.1f} bits, which promises safety where languages have parted."
