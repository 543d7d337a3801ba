"""ExpertUse: how much calibration text of every language reaches each expert, and which of them are starved.

A router sends every position to a few experts, and what is measured or rounded for an expert follows the text that
reaches it. Of an expert that gets hardly any text of a language, calibration learns nothing about that language. This
is no damage yet: if the router never sends the language there on any text, the expert cannot harm it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbits.auditing.audit_file import AUDIT, stored_arrays
from fairbits.core.array_checks import Floats
from fairbits.core.checks import whole
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure, heatmap
from fairbits.core.table import Cell, Shown, Table, data_frame, dim
from fairbits.forward.experts import BlockExperts, Counts
from fairbits.text.language_codes import language_of, short_name

if TYPE_CHECKING:
    import pandas

LEAST_POSITIONS = 32
"""An expert is starved of a language if fewer positions of its text than this reach it.

The mean square of n independent Gaussian inputs has the relative standard error √(2/n), 25 % for n = 32. GPTQ needs
more: its H has full rank only from as many positions as an input has channels, of all languages together.
"""
SHOWN = 3
"""Blocks and languages that are listed."""
EXPLANATION = (
    f"Starved: fewer than {LEAST_POSITIONS} positions of calibration text, from which the mean square of an input has "
    "a standard error of 25 % or more. These experts see too little calibration text in that language. An expert "
    "that the language never reaches cannot harm it; to see which it is, raise --tokens."
)


@dataclass(frozen=True)
class Shortage:
    """The experts of a block that get less than enough text of a language, and those that get none."""

    block: int
    language: str
    experts: int
    starved: int
    empty: int

    def __str__(self) -> str:
        """Returns it as a sentence."""
        name = language_of(self.language).name
        if not self.empty:
            return f"Block {self.block}: {self.starved} of {self.experts} experts are starved of {name}."
        rest = f"; {self.starved} are starved" if self.starved > self.empty else ""
        verb = "gets" if self.empty == 1 else "get"
        return f"Block {self.block}: {self.empty} of {self.experts} experts {verb} no token of {name}{rest}."


@dataclass(frozen=True, eq=False, repr=False)
class ExpertUse(Shown):
    """How many positions of calibration text of every language the routers send to each expert."""

    languages: tuple[str, ...]
    blocks: tuple[BlockExperts, ...]

    @classmethod
    def load(cls, audit: str | Path) -> "ExpertUse":
        """Returns the counts of a saved audit, from its second file."""
        found = AUDIT.read(audit)
        if found.experts is None:
            raise InputError(
                f"{audit} has no counts of experts: its model has no experts whose router fairbits can observe"
            )
        stored = found.experts.blocks
        arrays = stored_arrays(Path(audit), found, [f"experts/{each.block}" for each in stored])
        blocks = zip(stored, arrays, strict=True)
        return cls(tuple(found.languages), tuple(BlockExperts(b.block, b.per_position, a) for b, a in blocks))

    @cached_property
    def counts(self) -> Mapping[int, Counts]:
        """By block, the counts (languages, experts)."""
        return {each.block: each.counts for each in self.blocks}

    @property
    def pairs(self) -> int:
        """The number of pairs of an expert, in any block, and a language."""
        return sum(each.counts.size for each in self.blocks)

    @property
    def unreached(self) -> dict[int, int]:
        """By block, how many experts no text of any language reaches."""
        return {block: int((counts.sum(0) == 0).sum()) for block, counts in self.counts.items()}

    def even_share(self) -> Floats:
        """Returns the mean count of an expert, (languages, blocks): what each would get from a router without bias."""
        shares: Floats = np.stack([each.counts.mean(1) for each in self.blocks], axis=1)
        return shares

    def starved(self, least: int = LEAST_POSITIONS) -> Counts:
        """Returns how many experts get fewer than `least` positions of a language, (languages, blocks)."""
        whole("least", least, least=1)
        found: Counts = np.stack([(each.counts < least).sum(1) for each in self.blocks], axis=1)
        return found

    def shortages(self, least: int = LEAST_POSITIONS) -> list[Shortage]:
        """Returns the blocks and languages with starved experts, those with the most experts without any text first."""
        starved, empty = self.starved(least), self.starved(1)
        found = [
            Shortage(each.block, code, each.counts.shape[1], int(starved[row, column]), int(empty[row, column]))
            for column, each in enumerate(self.blocks)
            for row, code in enumerate(self.languages)
            if starved[row, column]
        ]
        return sorted(found, key=lambda each: (-each.empty / each.experts, -each.starved / each.experts))

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a table with a row for every block, expert and language."""
        rows = list(self._rows())
        names = ("block", "expert", "language", "positions")
        return data_frame({name: [row[i] for row in rows] for i, name in enumerate(names)})

    def plot(self, block: int | None = None) -> Figure:
        """Returns a figure for a notebook: the share of starved experts by block, or the counts of one block."""
        if block is None:
            sizes = np.array([each.counts.shape[1] for each in self.blocks])
            return heatmap(
                f"Share of experts with fewer than {LEAST_POSITIONS} positions of calibration text",
                (self.starved() / sizes).tolist(),
                rows=self.languages,
                columns=[str(each.block) for each in self.blocks],
                axis="block",
            )
        if block not in self.counts:
            raise InputError(
                f"block is {block!r:.40}; it must be one that has experts: {', '.join(map(str, self.counts))}"
            )
        counts = self.counts[block]
        return heatmap(
            f"Positions of calibration text that reach the experts of block {block}",
            counts.tolist(),
            rows=self.languages,
            columns=[str(expert) for expert in range(counts.shape[1])],
            axis="expert",
        )

    def as_data(self) -> dict[str, Any]:
        """Returns numbers of starved experts for JSON; the counts themselves are in `arrays`."""
        starved, empty = self.starved(), self.starved(1)

        def by_language(values: Iterable[Any]) -> dict[str, int]:
            return {code: int(value) for code, value in zip(self.languages, values, strict=True)}

        return {
            "least": LEAST_POSITIONS,
            "blocks": [
                {
                    "block": each.block,
                    "experts": each.counts.shape[1],
                    "per_position": each.per_position,
                    "unreached": self.unreached[each.block],
                    "routed": by_language(each.counts.sum(1)),
                    "starved": by_language(starved[:, column]),
                    "empty": by_language(empty[:, column]),
                }
                for column, each in enumerate(self.blocks)
            ],
        }

    def arrays(self) -> dict[str, Counts]:
        """Returns the counts of every block, for the second file of an audit."""
        return {f"experts/{block}": counts for block, counts in self.counts.items()}

    def _rows(self) -> Iterator[tuple[int, int, str, int]]:
        for block, counts in self.counts.items():
            for expert, column in enumerate(counts.T.tolist()):
                yield from ((block, expert, code, n) for code, n in zip(self.languages, column, strict=True))

    def tables(self) -> list[Table]:
        """Returns how many experts get little text of every language, and where the shortage is worst."""
        starved, empty, shares = self.starved().sum(1), self.starved(1).sum(1), self.even_share()
        rows = tuple(
            (code, short_name(code), f"{few:,}", f"{none:,}", _range(share.min(), share.max()))
            for code, few, none, share in zip(self.languages, starved, empty, shares, strict=True)
        )
        headers = ("language", "name", f"under {LEAST_POSITIONS} positions", "no text", "mean positions of an expert")
        return [Table("Experts", headers, rows, tuple(self.sentences()), left=(1,))]

    def sentences(self) -> Iterator[Cell]:
        """Yields how many experts are starved of a language, and the worst blocks and languages."""
        sizes = [each.counts.shape[1] for each in self.blocks]
        per_position = [each.per_position for each in self.blocks]
        shares = self.even_share()
        yield (
            f"{_range(min(sizes), max(sizes))} experts in each of {count_of(len(self.blocks), 'block')}, "
            f"{_range(min(per_position), max(per_position))} per position; on average "
            f"an expert gets {_range(shares.min(), shares.max())} positions of a language."
        )
        starved, empty = int(self.starved().sum()), int(self.starved(1).sum())
        pairs = f"{starved:,} of {self.pairs:,} pairs of expert and language ({starved / self.pairs:.1%})"
        yield [(f"{pairs} are starved; {empty:,} of them get no text.", "yellow" if starved else "")]
        shortages = self.shortages()
        yield from (str(shortage) for shortage in shortages[:SHOWN])
        if len(shortages) > SHOWN:
            yield dim(f"… and {count_of(len(shortages) - SHOWN, 'other pair')} of block and language.")
        unreached = sum(self.unreached.values())
        if unreached:
            yield (
                f"{count_of(unreached, 'expert')} {'gets' if unreached == 1 else 'get'} no text of any language, and "
                "would be rounded to nearest."
            )
        if starved:
            yield dim(EXPLANATION)


def _range(least: float, most: float) -> str:
    low, high = f"{least:,.0f}", f"{most:,.0f}"
    return low if low == high else f"{low} to {high}"
