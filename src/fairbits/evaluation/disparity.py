"""How unequally quantization damages languages: worst, best, mean, gap, ratio, standard deviation."""

from dataclasses import dataclass
from typing import Any

from fairbits.core.errors import InputError
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate


@dataclass(frozen=True)
class Disparity:
    """Damage over languages in one unit. Values that need two languages are None if there is only one.

    `worst`      the most damaged language and the largest true damage, corrected for selection; `best` likewise
    `gap`        largest minus smallest damage, corrected for noise; `plain_gap` is the uncorrected difference
    """

    unit: str
    worst: tuple[str, Estimate]
    best: tuple[str, Estimate]
    mean: Estimate  # the mean over languages, equally weighted
    gap: Estimate | None
    plain_gap: Estimate | None
    ratio: Estimate | None  # largest over smallest damage; if None, `no_ratio` says why
    no_ratio: str | None
    deviation: Estimate | None  # the standard deviation of true damage between languages

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            name: {"language": code} | estimate.to_dict()
            for name, (code, estimate) in (("worst", self.worst), ("best", self.best))
        }
        for name in ("mean", "gap", "plain_gap", "ratio", "deviation"):
            estimate = getattr(self, name)
            data[name] = None if estimate is None else estimate.to_dict()
        return data | {"no_ratio": self.no_ratio}


def disparity(frame: LanguageFrame) -> Disparity:
    """Returns how unequal the damage of a frame is."""
    several = len(frame.languages) > 1
    ratio, no_ratio = _ratio(frame) if several else (None, "there is only one language")
    return Disparity(
        unit=frame.unit,
        worst=frame.worst(),
        best=frame.best(),
        mean=frame.mean(),
        gap=frame.gap() if several else None,
        plain_gap=frame.plain_gap() if several else None,
        ratio=ratio,
        no_ratio=no_ratio,
        deviation=frame.spread() if several else None,
    )


def _ratio(frame: LanguageFrame) -> tuple[Estimate | None, str | None]:
    try:
        return frame.ratio(), None
    except InputError as problem:
        return None, str(problem)
