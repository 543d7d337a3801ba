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
from fairbits.core.errors import InputError
from fairbits.core.figure import Figure, heatmap
from fairbits.core.table import Shown, Table, data_frame
from fairbits.forward.experts import BlockExperts, Counts
from fairbits.text.language_codes import language_from_code

if TYPE_CHECKING:
    import pandas

LEAST_POSITIONS = 32
"""An expert is starved of a language if fewer positions of its text than this reach it.

The mean square of n independent Gaussian inputs has the relative standard error √(2/n), 25 % for n = 32. GPTQ needs
more: its H has full rank only from as many positions as an input has channels, of all languages together.
"""


@dataclass(frozen=True)
class Shortage:
    """The experts of a block that get less than enough text of a language, and those that get none."""

    block: int
    language: str
    experts: int
    starved: int
    empty: int


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
                f"{audit} has no counts of experts; its model has none whose router could be observed, or it was "
                "written by an earlier version of fairbits: audit the model again"
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

    def _table(self) -> Table:
        starved, empty, shares = self.starved().sum(1), self.starved(1).sum(1), self.even_share().mean(1)
        experts = sum(each.counts.shape[1] for each in self.blocks)
        rows = [
            (code, language_from_code(code).name, f"{few:,}", f"{none:,}", f"{share:,.0f}")
            for code, few, none, share in zip(self.languages, starved, empty, shares, strict=True)
        ]
        return Table(
            f"{experts:,} experts in {len(self.blocks)} blocks: how many get little calibration text",
            ("language", "name", f"under {LEAST_POSITIONS}", "none", "mean positions"),
            tuple(rows),
        )
