"""Plan: the decision for every linear layer of a model, and its results once the model is quantized."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from fairbits.core.array_checks import weights_vector
from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure, heatmap
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import (
    BlockIndex,
    Code,
    Count,
    Digest,
    Kind,
    Name,
    NonNegative,
    Number,
    Positive,
    Share,
    StoredBits,
    check_once,
    check_ordered,
    check_same_keys,
    check_sum,
    check_within,
    to_json,
)
from fairbits.core.table import Cell, Shown, Table, data_frame, dim, notes_table
from fairbits.core.units import megabytes
from fairbits.models.scales.scheme import Clip, FormatName, Group, Objective, Rounding, Scheme, WeightGrid
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.language_codes import language_from_code

if TYPE_CHECKING:
    import pandas

    from fairbits.models.checkpoint import Checkpoint

ENGLISH = "eng_Latn"
NAMED = 6  # languages whose weights are shown
UNEQUAL_BUDGETS = "mixes are then not compared at equal budgets"
"""The end of the note on a policy that had less calibration text than the others."""


@dataclass(frozen=True)
class LayerPlan:
    """The decision for one linear layer, embedding or head: its scheme, or None if it is kept as it is in the model."""

    name: str
    block: int | None
    role: str
    scheme: Scheme | None = None

    @property
    def bits(self) -> int | None:
        return None if self.scheme is None else self.scheme.bits

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Returns how pydantic makes it: from its flat entry in a plan file."""
        return core_schema.no_info_after_validator_function(LayerEntry.layer, handler.generate_schema(LayerEntry))


@dataclass(frozen=True)
class LayerEntry:
    """A layer as it is written in a plan file: with the fields of its scheme.

    If `bits` is null the layer is kept, and its other fields mean nothing: who edits a plan need not clear them.
    """

    name: Name
    block: BlockIndex | None
    role: str
    bits: StoredBits | None
    group: Group = "channel"
    grid: WeightGrid = "twos"
    clip: Clip = "exact"
    objective: Objective | None = None
    rounding: Rounding = "nearest"
    format: FormatName = "integer"

    @classmethod
    def of(cls, layer: LayerPlan) -> "LayerEntry":
        scheme = {"bits": None} if layer.scheme is None else asdict(layer.scheme)
        return cls(layer.name, layer.block, layer.role, **scheme)

    def layer(self) -> LayerPlan:
        if self.bits is None:
            return LayerPlan(self.name, self.block, self.role)
        scheme = Scheme(self.bits, self.group, self.clip, self.grid, self.objective, self.rounding, self.format)
        return LayerPlan(self.name, self.block, self.role, scheme)


def _layer_data(layer: LayerPlan) -> dict[str, Any]:
    data = asdict(LayerEntry.of(layer))
    if data["format"] == "integer":  # as in files of before
        del data["format"]
    return data


def schemes_by_name(layers: Iterable[LayerPlan]) -> dict[str, Scheme]:
    """Returns the scheme of every layer that is quantized."""
    return {layer.name: layer.scheme for layer in layers if layer.scheme is not None}


@dataclass(frozen=True)
class LayerResult:
    """The result of rounding one linear layer."""

    name: Name
    bits: StoredBits
    size_bytes: Positive
    alpha: tuple[NonNegative, NonNegative, NonNegative]  # smallest, median and largest clipping threshold of its groups
    weight_error: NonNegative  # ‖ΔW‖² / ‖W‖²
    error: Mapping[Code, NonNegative] = field(default_factory=dict)  # E‖ΔW x‖² / E‖W x‖² in the quantized model
    notes: tuple[str, ...] = ()  # one on every fall-back
    largest_input: Mapping[Code, NonNegative] = field(default_factory=dict)  # |x|, if a scale of inputs is in the file

    def __post_init__(self) -> None:
        check_ordered("alpha", self.alpha)


@dataclass(frozen=True)
class LearningResult:
    """The result of learning on held-out text: KL from the full-precision model, in nats per token of each language."""

    step: Count  # the step whose codes were chosen; 0 if the rounded codes were kept
    start: Mapping[Code, NonNegative]  # KL of the rounded codes, and `damage` of the chosen codes
    damage: Mapping[Code, NonNegative]
    history: tuple[Mapping[str, Any], ...] = ()  # one entry per evaluation, the rounded codes first

    def __post_init__(self) -> None:
        check_same_keys("start", self.start, "damage", self.damage)

    def table(self) -> Table:
        rows = []
        for name, damage in (("before", self.start), ("after", self.damage)):
            worst = max(damage, key=lambda code: damage[code])
            mean = float(np.mean(list(damage.values())))
            rows.append((name, f"worst {damage[worst]:.4f} {language_from_code(worst).name},", f"mean {mean:.4f}"))
        above = ("KL from the full-precision model on held-out calibration text, nats per token",)
        unchanged = ("no step improved the codes without making a language worse: they are unchanged",)
        return Table("Learning", (), tuple(rows), () if self.step else unchanged, above, left=(1, 2))


@dataclass(frozen=True)
class Calibration:
    """The text that a plan is executed with; `source` is the path that the user gave, None for embedded text."""

    corpus: str
    hashes: Mapping[Code, Digest]
    tokens: Positive
    sequence: Positive
    seed: Count
    source: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, corpus: Corpus, request: TextRequest) -> "Calibration":
        return cls(corpus.name, dict(corpus.hashes["calibration"]), source=corpus.source, **request.settings)

    @property
    def request(self) -> TextRequest:
        return TextRequest("calibration", self.tokens, self.sequence, self.seed)


@dataclass(frozen=True)
class Learning:
    """How codes and scales are learned from the calibration text after rounding."""

    block_steps: int = 200  # learning steps of each block, against the outputs of the full-precision block
    block_tokens: int = 4096  # about how many tokens of each language are read for them; all text if `model_steps` is 0
    model_steps: int = 500  # learning steps of all blocks together, against the next-token distribution
    rows: int = 4  # windows of text per step, at least
    rate: Number = 0.01  # about the largest change of a weight in a step, in units of its scale
    objective: Objective = "worst"

    def __post_init__(self) -> None:
        whole("block_steps", self.block_steps, least=0)
        whole("block_tokens", self.block_tokens, least=16)
        whole("model_steps", self.model_steps, least=0)
        whole("rows", self.rows, least=1)
        in_range("rate", self.rate, above=0, most=1)
        one_of("objective", self.objective, get_args(Objective))


def _alike(layers: Iterable[LayerPlan]) -> Iterator[tuple[str, list[LayerPlan]]]:
    """Yields each range of blocks that are treated alike, with their layers; tensors outside blocks by role."""
    by_block: dict[int | str, list[LayerPlan]] = {}
    for layer in layers:
        by_block.setdefault(layer.role if layer.block is None else layer.block, []).append(layer)

    def treatment(block: int | str) -> object:
        schemes = (layer.scheme for layer in by_block[block])
        how = frozenset(_scheme_cells(scheme) for scheme in schemes if scheme is not None)
        return how if isinstance(block, int) else block

    for _, blocks in groupby(by_block, key=treatment):
        first, *rest = blocks
        label = f"{first}–{rest[-1]}" if rest else str(first)
        yield label, [layer for block in (first, *rest) for layer in by_block[block]]


def _scheme_cells(scheme: Scheme) -> tuple[str, ...]:
    clip = scheme.clip if isinstance(scheme.clip, str) else "stated α"
    bits = str(scheme.bits) if scheme.format == "integer" else scheme.format
    return bits, str(scheme.group), clip, scheme.objective or "–", scheme.rounding


def _stored_bytes(layers: Iterable[LayerPlan], checkpoint: "Checkpoint") -> int:
    from fairbits.models.io.layer_files import layer_bytes

    weights, dtype = checkpoint.architecture.weights, checkpoint.scale_dtype
    return sum(
        checkpoint.kept_info(layer.name).nbytes
        if layer.scheme is None
        else layer_bytes(weights[layer.name], layer.scheme, dtype=dtype)
        for layer in layers
    )


def bits_per_weight(plan: "Plan", checkpoint: "Checkpoint") -> float:
    """Returns the bits that all tensors of the quantized model take, per weight of the source."""
    weights = checkpoint.architecture.weights
    return 8 * plan.size_bytes / sum(int(np.prod(weight.shape)) * (weight.stacked or 1) for weight in weights.values())


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """The decision for every linear layer, embedding and head, in the order of the model."""

    policy: Name
    settings: Mapping[str, Any]
    model: str
    fingerprint: Digest
    family: str
    layers: tuple[LayerPlan, ...]
    size_bytes: Positive  # the size of all tensors of the quantized model
    languages: Mapping[Code, Share] = field(default_factory=dict)  # the weights π, which sum to 1
    calibration: Calibration | None = None  # the text that the decisions are for
    thresholds: bool = False  # whether the exact scales of each language alone are saved next to the model
    learning: Learning | None = None
    notes: tuple[str, ...] = ()
    results: tuple[LayerResult, ...] = ()  # the result of each layer, once the plan is executed
    learned: LearningResult | None = None  # the result of learning, once the plan is executed

    def __post_init__(self) -> None:
        if not isinstance(self.languages, Mapping):
            raise InputError(f"languages is a {type(self.languages).__name__}; it must map codes to weights")
        if self.languages:
            weights_vector("the weights of languages", list(self.languages.values()), size=len(self.languages))
            check_sum("the weights of languages", self.languages)
        bits = {layer.name: layer.bits for layer in self.layers}
        check_once("layers", [layer.name for layer in self.layers])
        check_once("results", [result.name for result in self.results])
        for result in self.results:
            if bits.get(result.name) != result.bits:
                raise InputError(
                    f"results has {result.bits} bits for {result.name!r:.80}, and layers {bits.get(result.name)}; both "
                    "must agree"
                )
        if self.calibration is not None:
            check_within("languages", self.languages, "calibration.hashes", self.calibration.hashes)

    def tables(self, checkpoint: "Checkpoint | None" = None) -> list[Table]:
        """Returns the decisions by block, the results once the plan is executed, and the notes.

        With the checkpoint that the plan is for, the sizes of blocks are shown, and how they compare to the source.
        """
        results = [self._results_table()] if self.results else []
        learned = [] if self.learned is None else [self.learned.table()]
        ranges = self._ranges_table()
        return [self._decisions_table(checkpoint), *results, *ranges, *learned, *notes_table(self._all_notes())]

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns one row per layer: its scheme and, once the plan is executed, its errors."""
        entries, results = map(LayerEntry.of, self.layers), {result.name: result for result in self.results}
        rows = [asdict(entry) | {"weight_error": None, **dict.fromkeys(self.languages)} for entry in entries]
        for row in rows:
            if (result := results.get(row["name"])) is not None:
                row |= {"weight_error": result.weight_error, **result.error}
            if row["bits"] is None:
                row |= dict.fromkeys(("group", "grid", "clip", "objective", "rounding", "format"))
        return data_frame({key: [row[key] for row in rows] for key in rows[0]}, index="name")

    def plot(self) -> Figure:
        """Returns a figure for a notebook: the bits of every role in every block; what is kept is empty."""
        inside = [layer for layer in self.layers if layer.block is not None]
        roles, blocks = (dict.fromkeys(getattr(layer, name) for layer in inside) for name in ("role", "block"))
        bits = {(layer.role, layer.block): layer.bits for layer in inside}
        return heatmap(
            f"Bits of {self.policy}",
            [[bits.get((role, block)) for block in blocks] for role in roles],
            rows=list(roles),
            columns=list(map(str, blocks)),
            axis="block",
        )

    def _decisions_table(self, checkpoint: "Checkpoint | None") -> Table:
        """Returns one row per range of blocks that are treated alike, and one per role outside the blocks."""
        rows: list[tuple[Cell, ...]] = []
        for label, layers in _alike(self.layers):
            cells = {_scheme_cells(layer.scheme): None for layer in layers if layer.scheme is not None}
            how = tuple(", ".join(dict.fromkeys(column)) for column in zip(*cells, strict=True))
            how = how or ("kept", *["–"] * 4)
            size = () if checkpoint is None else (f"{_stored_bytes(layers, checkpoint):,}",)
            rows.append((label, *how, *size))
        columns = ("block", "bits", "group", "clip", "languages", "rounding")
        headers = columns if checkpoint is None else (*columns, "bytes")
        title: Cell = [(self.model, "bold cyan"), "  ", (self.policy, "bold")]
        return Table(title, headers, tuple(rows), above=(*self._heading(checkpoint), ""), left=(3, 4, 5))

    def _heading(self, checkpoint: "Checkpoint | None") -> Iterator[Cell]:
        """Yields size, text and weights of the languages."""
        size = f"{megabytes(self.size_bytes)} in total"
        if checkpoint is not None:
            source = checkpoint.size_bytes
            size += f", {self.size_bytes / source:.1%} of {megabytes(source)}; {bits_per_weight(self, checkpoint):.2f} "
            size += "bits per weight, including scales and tensors that are kept"
        yield size
        if self.calibration is not None:
            text = self.calibration
            amount = f"{count_of(len(self.languages), 'language')}, {text.tokens:,} tokens each, seed {text.seed}"
            yield dim(f"text of {text.corpus}: {amount}")
        if len(set(self.languages.values())) > 1:
            by_weight = sorted(self.languages.items(), key=lambda item: -item[1])
            named = ", ".join(f"{language_from_code(code).name} {share:.1%}" for code, share in by_weight[:NAMED])
            more = f", and {len(by_weight) - NAMED} more" if len(by_weight) > NAMED else ""
            yield dim(f"weights of languages: {named}{more}")

    def _results_table(self) -> Table:
        """Returns one row per block: median α, weight error, and the language with the largest error of outputs."""
        block_by_name = {layer.name: layer.block for layer in self.layers}
        by_block: dict[int | None, list[LayerResult]] = {}
        for result in self.results:
            by_block.setdefault(block_by_name[result.name], []).append(result)
        rows = []
        for block, results in by_block.items():
            languages = results[0].error if all(result.error for result in results) else {}
            mean = {code: float(np.mean([result.error[code] for result in results])) for code in languages}
            worst = max(mean, key=lambda code: mean[code]) if mean else None
            alpha = f"{np.median([result.alpha[1] for result in results]):.4g}"
            error = f"{np.mean([result.weight_error for result in results]):.3g}"
            language = ("–", "–") if worst is None else (language_from_code(worst).name, f"{mean[worst]:.3g}")
            rows.append(("outside" if block is None else str(block), alpha, error, *language))
        headers = ("block", "α (median)", "‖ΔW‖²/‖W‖²", "worst language", "its error")
        return Table("Results", headers, tuple(rows), left=(3,))

    def _ranges_table(self) -> list[Table]:
        """Returns which languages set the scales of inputs, and how far they exceed what English alone would give."""
        ranges = {result.name: result.largest_input for result in self.results if result.largest_input}
        if not ranges:
            return []
        rows = []
        for code in next(iter(ranges.values())):
            leads = sum(max(sizes, key=lambda other: sizes[other]) == code for sizes in ranges.values())
            above = {name: sizes[code] / sizes[ENGLISH] for name, sizes in ranges.items() if sizes.get(ENGLISH)}
            most = max(above, key=lambda name: above[name]) if above else ""
            excess = (f"{above[most]:.2f}", most.removesuffix(".weight")) if most else ("–", "–")
            rows.append((language_from_code(code).name, f"{leads} of {len(ranges)}", *excess))
        headers = ("language", "sets the scale of", "most × English", "in layer")
        return [Table("Largest inputs of layers", headers, tuple(rows), left=(3,))]

    def _all_notes(self) -> Iterator[str]:
        """Yields the notes of the plan, then those of its layers; of notes that differ only in numbers, the first."""
        yield from self.notes
        alike: dict[str, list[str]] = {}
        for result in self.results:
            for note in result.notes:
                alike.setdefault(re.sub(r"[\d.]+", "#", note), []).append(f"{result.name}: {note}")
        for first, *rest in alike.values():
            yield first + (f" (and {count_of(len(rest), 'similar note')})" if rest else "")

    @property
    def quantized(self) -> tuple[LayerPlan, ...]:
        """The layers that are not kept as they are."""
        return tuple(layer for layer in self.layers if layer.scheme is not None)

    @cached_property
    def schemes(self) -> dict[str, Scheme]:
        return schemes_by_name(self.layers)

    @property
    def reads_text(self) -> bool:
        decided = any(scheme.reads_text for scheme in self.schemes.values())
        return self.thresholds or self.learning is not None or decided

    @property
    def seed(self) -> int:
        return 0 if self.calibration is None else self.calibration.seed

    def as_data(self) -> dict[str, Any]:
        content = asdict(replace(self, layers=(), results=()))
        content["layers"] = tuple(map(_layer_data, self.layers))
        content["results"] = tuple(map(asdict, self.results))
        if self.calibration is not None and self.calibration.source is None:
            del content["calibration"]["source"]
        return PLAN.stamp(content)

    @property
    def digest(self) -> str:
        """The SHA-256 of the decisions, without results, notes and the paths of model and text."""
        left_out = ("results", "learned", "notes", "model", "fairbits")
        decisions = {key: value for key, value in self.as_data().items() if key not in left_out}
        if decisions["calibration"] is not None:
            decisions["calibration"].pop("source", None)
        return hashlib.sha256(json.dumps(decisions, sort_keys=True).encode()).hexdigest()

    def as_bytes(self) -> bytes:
        return to_json(self.as_data())

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="plan.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Returns the plan of a file; every key must be known."""
        return PLAN.read(path)


PLAN = Kind("fairbits.plan/1", "a plan", "fairbits plan", Plan)
