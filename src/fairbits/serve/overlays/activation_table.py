"""Clipping thresholds of activations: a table with a row per language, and the distributions it is computed from."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.checks import one_of, same_shape
from fairbits.core.errors import InputError
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample

Clip = Literal["exact", "laplace", "gaussian", "absmax"]
"""How a threshold is chosen: least squared error, ACIQ's formulas from E|x| and E[x²], or no clipping."""
Thresholds = NDArray[np.float32]

LEADING = 9
"""Mantissa bits that the magnitudes of a bin share: a bin spans 0.2 % of its value, less than an 8-bit step."""
TRAILING = 23 - LEADING
BINS = 256 << LEADING
TOLERANCE = 1e-4
"""Relative distance to the optimum at which the search may stop; binning costs more than that."""


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """How |x| is distributed: the bins that occur, ascending, and the share of the entries in each.

    A bin holds the magnitudes with the same exponent and leading mantissa bits in float32, so no range must be known in
    advance.
    """

    bins: NDArray[np.int32]
    share: Floats

    @classmethod
    def of(cls, counts: NDArray[np.integer]) -> "Magnitudes":
        """Returns the distribution with these counts of all bins."""
        bins = np.flatnonzero(counts)
        return cls(bins.astype(np.int32), counts[bins] / counts.sum())

    @classmethod
    def pooled(cls, parts: Sequence["Magnitudes"]) -> "Magnitudes":
        """Returns the mixture with equal weights for all parts, whatever their numbers of entries."""
        bins, where = np.unique(np.concatenate([part.bins for part in parts]), return_inverse=True)
        share = np.bincount(where, np.concatenate([part.share for part in parts])) / len(parts)
        return cls(bins, share)

    @property
    def values(self) -> Floats:
        """The middle of every bin; 0 for the bin of 0."""
        middles = (self.bins.astype(np.uint32) << TRAILING) + np.uint32(1 << (TRAILING - 1))
        values = middles.view(np.float32).astype(np.float64)
        values[self.bins == 0] = 0.0
        return values

    def alpha(self, bits: int, clip: Clip = "exact") -> float:
        """Returns the threshold for the symmetric grid; 0 if everything is 0.

        >>> round(Magnitudes.of(bin_counts(torch.tensor([0.5, -1.0, 0.25]))).alpha(8, "absmax"), 2)
        1.0
        """
        grid, values = Grid(bits), self.values
        if values[-1] == 0:
            return 0.0
        if clip == "laplace":
            return banner_laplace(float(self.share @ values), bits)
        if clip == "gaussian":
            return banner_gaussian(float(np.sqrt(self.share @ values**2)), bits)
        if clip == "absmax":
            return float(values[-1])
        return float(grid.alpha(clip_sample(values, grid, importance=self.share, tolerance=TOLERANCE).step))

    def error(self, alpha: float, bits: int) -> float:
        """Returns E(x − Q(x))² with a threshold."""
        grid = Grid(bits)
        return float(self.share @ (self.values - grid.quantize(self.values, grid.step(alpha))) ** 2)


def bin_counts(x: Tensor) -> NDArray[np.int64]:
    """Returns how many entries of x have their magnitude in each bin; x must be finite."""
    bins = x.detach().abs().float().flatten().view(torch.int32) >> TRAILING
    counts: NDArray[np.int64] = torch.bincount(bins, minlength=BINS).cpu().numpy()
    return counts


@dataclass(frozen=True)
class SavedTable:
    """The part of a table that is stored as JSON; the thresholds themselves are tensors."""

    bits: int
    clip: Clip
    points: Mapping[str, tuple[str, ...]]
    languages: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ActivationTable:
    """The threshold α of every point for every language, and the language-blind one: entries of (languages, points).

    A point is an input shared by linear layers; `modules` names these maps. The language-blind row is for the
    mixture in which all languages have equal weight. The grid is symmetric: codes −n … n, n = 2^(bits−1) − 1, of step
    α / n.
    """

    bits: int
    clip: Clip
    modules: Mapping[str, tuple[str, ...]]
    languages: tuple[str, ...]
    alpha: Thresholds
    blind: Thresholds

    def __post_init__(self) -> None:
        """Checks that every point has modules of its own and that every threshold is above 0."""
        Grid(self.bits)
        one_of("clip", self.clip, get_args(Clip))
        _each_once("language", self.languages)
        _each_once("module", [module for each in self.modules.values() for module in each])
        if not self.modules or not all(self.modules.values()) or not self.languages:
            raise InputError("the table has a point without modules, or no point or language; it must have each")
        for name, rows, shape in (
            ("alpha", self.alpha, (len(self.languages), len(self.modules))),
            ("the language-blind row", self.blind, (len(self.modules),)),
        ):
            same_shape(name, finite_array(name, rows).shape, "the table", shape)
            if rows.dtype != np.float32 or (rows <= 0).any():
                raise InputError(f"{name} is {rows.dtype} from {rows.min():g}; thresholds are float32 and above 0")

    @property
    def points(self) -> tuple[str, ...]:
        """The names of the points, in the order of the columns."""
        return tuple(self.modules)

    @property
    def extra_bytes(self) -> int:
        """The bytes of the rows of the languages, in addition to the language-blind row."""
        return int(self.alpha.nbytes)

    def row(self, language: str | None) -> Thresholds:
        """Returns the thresholds of a language; None: the language-blind ones."""
        found: Thresholds = self.blind if language is None else self.alpha[self.position(language)]
        return found

    def position(self, language: str) -> int:
        """Returns the number of a language's row."""
        if language not in self.languages:
            raise InputError(
                f"language {language!r} has no thresholds; available are {', '.join(self.languages)}: "
                "calibrate with text in it, or use the language-blind row (None)"
            )
        return self.languages.index(language)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors to store in a file."""
        return {"alpha": torch.from_numpy(self.alpha.copy()), "blind": torch.from_numpy(self.blind.copy())}

    def saved(self) -> SavedTable:
        """Returns the part that is stored as JSON."""
        return SavedTable(self.bits, self.clip, dict(self.modules), self.languages)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], saved: SavedTable) -> "ActivationTable":
        """Returns the table with these `tensors` and the JSON part `saved`."""
        missing = sorted({"alpha", "blind"} - tensors.keys())
        if missing:
            raise InputError(f"the tensors of activation thresholds lack {missing[0]!r}; make them again")
        alpha, blind = (tensors[name].cpu().numpy() for name in ("alpha", "blind"))
        return cls(saved.bits, saved.clip, saved.points, saved.languages, alpha, blind)


@dataclass(frozen=True, eq=False)
class ActivationRecord:
    """The activations of every language at every point: `seen` has the distributions of a language, ordered as
    `modules`.

    `left_out` names the linear layers of blocks whose inputs are not quantized, and why.
    """

    modules: Mapping[str, tuple[str, ...]]
    seen: Mapping[str, tuple[Magnitudes, ...]]
    left_out: Mapping[str, str]

    @property
    def mixed(self) -> tuple[Magnitudes, ...]:
        """The mixture of all languages with equal weight, at every point."""
        return tuple(Magnitudes.pooled(parts) for parts in zip(*self.seen.values(), strict=True))

    def table(self, bits: int = 8, clip: Clip = "exact") -> ActivationTable:
        """Returns the thresholds for activations of `bits` bits."""
        Grid(bits)
        one_of("clip", clip, get_args(Clip))
        rows = {**self.seen, "all languages": self.mixed}
        alpha = np.array([[each.alpha(bits, clip) for each in row] for row in rows.values()], dtype=np.float32)
        for code, row in zip(rows, alpha, strict=True):
            if (row <= 0).any():
                raise InputError(
                    f"{list(self.modules)[int(np.argmin(row))]} is 0 everywhere in the text of {code}; a threshold "
                    "needs activations that differ from 0: give more text, or check the model's weights"
                )
        return ActivationTable(bits, clip, dict(self.modules), tuple(self.seen), alpha[:-1], alpha[-1])


def _each_once(what: str, names: Iterable[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{what} {twice[0]} is in the table {Counter(names)[twice[0]]} times; each must be there once")
