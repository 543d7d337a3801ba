"""Contrast: the difference between two frames, per language, and which of the differences are significant."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairbits.checks import in_range
from fairbits.stats.intervals import Estimate, holm, p_values

if TYPE_CHECKING:
    from fairbits.stats.frame import LanguageFrame


@dataclass(frozen=True)
class Contrast:
    """The damage of one frame minus that of another, per language, with p values as they are and adjusted by Holm.

    A language without an interval is not tested: its p is 1, and Holm's correction does not count it.
    """

    differences: dict[str, Estimate]
    p: dict[str, float]
    p_holm: dict[str, float]

    def significant(self, level: float = 0.05) -> dict[str, Estimate]:
        """Returns the differences whose Holm-adjusted p is below the level."""
        level = in_range("level", level, above=0, below=1)
        return {code: each for code, each in self.differences.items() if each.value and self.p_holm[code] < level}


def contrast_of(paired: "LanguageFrame", *, simultaneous: bool = False) -> Contrast:
    """Returns the contrast of a frame of differences."""
    tested, untested = paired.bounded.languages, dict.fromkeys(paired.languages, 1.0)
    p = p_values(paired.bounded) if tested else np.ones(0)
    adjusted = holm(p) if tested else p
    return Contrast(
        paired.by_language(simultaneous=simultaneous),
        untested | dict(zip(tested, p.tolist(), strict=True)),
        untested | dict(zip(tested, adjusted.tolist(), strict=True)),
    )
