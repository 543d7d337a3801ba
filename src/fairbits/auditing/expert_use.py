"""ExpertUse: how much calibration text of every language reaches each expert, and which experts get too little.

A router sends every position to a few experts, and what is measured or rounded for an expert follows the text that
reaches it. From an expert that gets hardly any text of a language, calibration learns nothing about that language.
This is not damage yet: if the router never sends the language there on any text, the expert cannot harm it.
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
from fairbits.text.language_codes import language_from_code, short_name

if TYPE_CHECKING:
    import pandas

LEAST_POSITIONS = 32
"""An expert needs so many positions of a language: n Gaussian inputs give E[x²] to √(2/n), 25 % for n = 32."""
SHOWN = 3  # blocks and languages that are listed
EXPLANATION = (
    f"Starved: fewer than {LEAST_POSITIONS} positions of calibration text, from which the mean square of an input has "
    "a standard error of 25 % or more. These experts see too little calibration text in that language. An expert "
    "that the language never reaches cannot harm it; to see which it is, raise --tokens."
)


@dataclass(frozen=True)
class ExpertShortage:
    """How many experts of a block get too little text of a language, and how many get none."""

    block: int
    language: str
    experts: int
    too_little: int
    empty: int

    def __str__(self) -> str:
        name = language_from_code(self.language).name
        if not self.empty:
            return f"Block {self.block}: {self.too_little} of {self.experts} experts get too little text of {name}."
        rest = f"; {self.too_little} get too little" if self.too_little > self.empty else ""
        get = "gets" if self.empty == 1 else "get"
        return f"Block {self.block}: {self.empty} of {self.experts} experts {get} no token of {name}{rest}."


@dataclass(frozen=True, eq=False, repr=False)
class ExpertUse(Shown):
    """How many positions of calibration text of every language the routers send to each expert."""

    languages: tuple[str, ...]
    blocks: tuple[BlockExperts, ...]

    @classmethod
    def load(cls, audit: str | Path) -> "ExpertUse":
        saved = AUDIT.read(audit)
        if saved.experts is None:
            raise InputError(f"{audit} has no counts of experts: its model has no expert whose router can be observed")
        stored = saved.experts.blocks
        arrays = stored_arrays(Path(audit), saved, [f"experts/{block.block}" for block in stored])
        blocks = zip(stored, arrays, strict=True)
        return cls(tuple(saved.languages), tuple(BlockExperts(b.block, b.per_position, a) for b, a in blocks))

    @cached_property
    def counts(self) -> Mapping[int, Counts]:
        return {block.block: block.counts for block in self.blocks}

    @property
    def pairs(self) -> int:
        return sum(block.counts.size for block in self.blocks)

    @property
    def unreached(self) -> dict[int, int]:
        """By block, how many experts no text of any language reaches."""
        return {block: int((counts.sum(0) == 0).sum()) for block, counts in self.counts.items()}

    def even_share(self) -> Floats:
        """Returns the mean count of an expert, (languages, blocks): what each would get from a router without bias."""
        shares: Floats = np.stack([block.counts.mean(1) for block in self.blocks], axis=1)
        return shares

    def too_little_text(self, least: int = LEAST_POSITIONS) -> Counts:
        """Returns how many experts get fewer than `least` positions of a language, (languages, blocks)."""
        whole("least", least, least=1)
        few: Counts = np.stack([(block.counts < least).sum(1) for block in self.blocks], axis=1)
        return few

    def shortages(self, least: int = LEAST_POSITIONS) -> list[ExpertShortage]:
        """Returns where experts get too little text of a language; most experts without any text first."""
        few, empty = self.too_little_text(least), self.too_little_text(1)
        shortages = [
            ExpertShortage(block.block, code, block.counts.shape[1], int(few[row, column]), int(empty[row, column]))
            for column, block in enumerate(self.blocks)
            for row, code in enumerate(self.languages)
            if few[row, column]
        ]
        return sorted(shortages, key=lambda place: (-place.empty / place.experts, -place.too_little / place.experts))

    def to_pandas(self) -> "pandas.DataFrame":
        rows = [
            (block, expert, code, n)
            for block, counts in self.counts.items()
            for expert, column in enumerate(counts.T.tolist())
            for code, n in zip(self.languages, column, strict=True)
        ]
        names = ("block", "expert", "language", "positions")
        return data_frame({name: [row[i] for row in rows] for i, name in enumerate(names)})

    def plot(self, block: int | None = None) -> Figure:
        """Returns a figure for a notebook: the share of experts with too little text, or the counts of one block."""
        if block is None:
            sizes = np.array([experts.counts.shape[1] for experts in self.blocks])
            return heatmap(
                f"Share of experts with fewer than {LEAST_POSITIONS} positions of calibration text",
                (self.too_little_text() / sizes).tolist(),
                rows=self.languages,
                columns=[str(experts.block) for experts in self.blocks],
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
        """Returns how many experts get too little text for JSON; the counts themselves are in `arrays`."""
        few, empty = self.too_little_text(), self.too_little_text(1)

        def by_language(values: Iterable[Any]) -> dict[str, int]:
            return {code: int(value) for code, value in zip(self.languages, values, strict=True)}

        return {
            "least": LEAST_POSITIONS,
            "blocks": [
                {
                    "block": block.block,
                    "experts": block.counts.shape[1],
                    "per_position": block.per_position,
                    "unreached": self.unreached[block.block],
                    "routed": by_language(block.counts.sum(1)),
                    "few": by_language(few[:, column]),
                    "empty": by_language(empty[:, column]),
                }
                for column, block in enumerate(self.blocks)
            ],
        }

    def arrays(self) -> dict[str, Counts]:
        return {f"experts/{block}": counts for block, counts in self.counts.items()}

    def tables(self) -> list[Table]:
        few, empty, shares = self.too_little_text().sum(1), self.too_little_text(1).sum(1), self.even_share()
        rows = tuple(
            (code, short_name(code), f"{little:,}", f"{none:,}", _range(share.min(), share.max()))
            for code, little, none, share in zip(self.languages, few, empty, shares, strict=True)
        )
        headers = ("language", "name", f"under {LEAST_POSITIONS} positions", "no text", "mean positions of an expert")
        return [Table("Experts", headers, rows, tuple(self.sentences()), left=(1,))]

    def sentences(self) -> Iterator[Cell]:
        sizes = [block.counts.shape[1] for block in self.blocks]
        per_position = [block.per_position for block in self.blocks]
        shares = self.even_share()
        yield (
            f"{_range(min(sizes), max(sizes))} experts in each of {count_of(len(self.blocks), 'block')}, "
            f"{_range(min(per_position), max(per_position))} per position; on average "
            f"an expert gets {_range(shares.min(), shares.max())} positions of a language."
        )
        few, empty = int(self.too_little_text().sum()), int(self.too_little_text(1).sum())
        pairs = f"{few:,} of {self.pairs:,} pairs of expert and language ({few / self.pairs:.1%})"
        yield [(f"{pairs} get too little text; {empty:,} of them get no text.", "yellow" if few else "")]
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
        if few:
            yield dim(EXPLANATION)


def _range(least: float, most: float) -> str:
    low, high = f"{least:,.0f}", f"{most:,.0f}"
    return low if low == high else f"{low} to {high}"
