"""ExpertUse: how much calibration text of every language reaches each expert, and which experts get too little.

A router sends every position to a few experts, and what is measured or rounded for an expert follows the text that
reaches it. From an expert that gets hardly any text of a language, calibration learns nothing about that language.
This is not damage yet: if the router never sends the language there on any text, the expert cannot harm it.

`even_experts` chooses calibration samples that reach the experts with the least text of a language. Every language
keeps as many samples as without the choice. A heuristic: whether it lowers the damage is another question.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairbits.auditing.audit_file import AUDIT, stored_arrays
from fairbits.core.array_checks import Floats
from fairbits.core.checks import instance, whole
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure, heatmap
from fairbits.core.memory import GPU_STATES_BYTES, STATES_BYTES
from fairbits.core.progress import Progress
from fairbits.core.table import Cell, Shown, Table, data_frame, dim
from fairbits.forward.batches import batches, in_parts
from fairbits.forward.experts import BlockExperts, Counts, ExpertCounter, expert_points
from fairbits.forward.lockstep import bytes_per_position, lockstep, positions_at_once
from fairbits.forward.recorder import removed_hooks
from fairbits.forward.streaming import BlockLoader
from fairbits.forward.tokenize import tokenize_samples
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.streaming_model import walk_dtype
from fairbits.text.language_codes import language_from_code, short_name
from fairbits.text.mix import Mix, Sample, interleave

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
                    "starved": by_language(few[:, column]),
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


def even_experts(
    checkpoint: Checkpoint, mix: Mix, *, one_in: int = 4, device: str = "cpu", progress: Progress | None = None
) -> Mix:
    """Returns one in `one_in` of the samples of every language of a mix, those that even out the text of its experts.

    With c the positions of a language that reach an expert, they make Σ log(1 + c/32) over them large (`choose_rows`).
    """
    instance("mix", mix, Mix)
    by_language = {code: [sample for sample in mix.samples if sample.lang == code] for code in mix.shares}
    whole("one_in", one_in, least=2)
    for code, samples in by_language.items():
        if len(samples) < one_in:
            raise InputError(
                f"{code} has {len(samples)} samples, of which one in {one_in} is to be chosen; there must be at "
                f"least {one_in}: give more text, shorten the sequence, or choose one in fewer"
            )
    text = tokenize_samples(checkpoint, list(chain.from_iterable(by_language.values())))
    blocks = count_by_document(checkpoint, text, device=device, progress=progress)
    counts = np.concatenate([block.counts for block in blocks], axis=1)
    chosen: dict[str, Sequence[Sample]] = {}
    before = after = start = 0
    for code, samples in by_language.items():
        rows, number = counts[start : start + len(samples)], len(samples) // one_in
        kept = sorted(choose_rows(rows, number))
        chosen[code] = [samples[i] for i in kept]
        before += _too_little_text(rows[:number])
        after += _too_little_text(rows[kept])
        start += len(samples)
    pairs = counts.shape[1] * len(by_language)
    note = (
        f"one in {one_in} samples chosen by the experts that they reach: {after:,} of {pairs:,} pairs of expert and "
        f"language get fewer than {LEAST_POSITIONS} positions ({before:,} without the choice)"
    )
    budget = None if mix.budget is None else mix.budget // one_in
    return replace(mix, samples=interleave(chosen, mix.seed), budget=budget, notes=(*mix.notes, note))


def count_by_document(
    checkpoint: Checkpoint, text: TokenizedText, *, device: str = "cpu", progress: Progress | None = None
) -> tuple[BlockExperts, ...]:
    """Returns the counts of every block that has experts; their rows are the documents of the text."""
    points = expert_points(checkpoint.architecture)
    counter = ExpertCounter(points, torch.arange(len(text.lang)), device=device)
    dtype = walk_dtype(checkpoint, device)
    room = (GPU_STATES_BYTES if is_gpu(device) else STATES_BYTES) // bytes_per_position(checkpoint, dtype)
    parts = list(in_parts(text.windows, lambda window: window.length, room=room, most=len(text.windows)))
    for number, windows in enumerate(parts if points else ()):
        _count_part(checkpoint, replace(text, windows=tuple(windows)), counter, device=device, dtype=dtype)
        if progress is not None:
            progress("counting experts", number + 1, len(parts))
    tables = counter.tables()
    if not tables:
        raise InputError(
            f"{checkpoint.target} has no experts whose router can be observed; only text for a mixture of experts can "
            "be chosen by them"
        )
    return tables


def _count_part(
    checkpoint: Checkpoint, text: TokenizedText, counter: ExpertCounter, *, device: str, dtype: torch.dtype
) -> None:
    """Passes the text through the model, up to its last block that has experts."""
    loader = BlockLoader(checkpoint, device, dtype=dtype)
    model = loader.model.model
    modules = dict(model.named_modules())
    positions = positions_at_once(checkpoint, text, device=device, dtype=dtype)
    chosen = [batch.on(device) for batch in batches(text, positions=positions)]
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in chosen])
    loader.model.load_outside(torch.unique(ids).cpu(), {})
    last = max(point.block for point in counter.points)
    with lockstep(model, [block.module for block in loader.blocks], chosen) as walk:
        for index in loader.loaded(range(last + 1)):
            with removed_hooks() as handles:
                handles += counter.attach(modules, block=index)
                walk.advance(counter.start)


def choose_rows(counts: Counts, number: int) -> list[int]:
    """Returns `number` rows whose sums c of columns have a large Σ log(1 + c/32), in the order of their choice.

    Each next row is the one that adds most. The sum of concave functions of c is submodular: this reaches at least
    1 − 1/e of the largest value, and a gain computed earlier bounds the present one.
    """
    total = np.zeros(counts.shape[1])

    def gain(row: int) -> float:
        return float(np.log1p(counts[row] / (LEAST_POSITIONS + total)).sum())

    bounds = [(-gain(row), row) for row in range(len(counts))]
    heapq.heapify(bounds)
    chosen: list[int] = []
    while len(chosen) < number:
        _, row = heapq.heappop(bounds)
        current = -gain(row), row
        if bounds and current > bounds[0]:
            heapq.heappush(bounds, current)
            continue
        chosen.append(row)
        total += counts[row]
    return chosen


def _too_little_text(rows: Counts) -> int:
    return int((rows.sum(0) < LEAST_POSITIONS).sum())


def _range(least: float, most: float) -> str:
    low, high = f"{least:,.0f}", f"{most:,.0f}"
    return low if low == high else f"{low} to {high}"
