"""Plan: the decision for every linear layer of a model, and its results once the model is quantized."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from fairbits.core.array_checks import weights_vector
from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError
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
from fairbits.core.table import Shown, Table
from fairbits.core.units import readable_size
from fairbits.models.scales.scheme import Clip, Group, Objective, Rounding, Scheme, WeightGrid
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

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
    """A layer as it is written in a plan file: with the fields of its scheme; `bits` is null if it is kept."""

    name: Name
    block: BlockIndex | None
    role: str
    bits: StoredBits | None
    group: Group = "channel"
    grid: WeightGrid = "twos"
    clip: Clip = "exact"
    objective: Objective | None = None
    rounding: Rounding = "nearest"

    @classmethod
    def of(cls, layer: LayerPlan) -> "LayerEntry":
        scheme = {"bits": None} if layer.scheme is None else asdict(layer.scheme)
        return cls(layer.name, layer.block, layer.role, **scheme)

    def layer(self) -> LayerPlan:
        if self.bits is None:
            if self != LayerEntry(self.name, self.block, self.role, None):
                raise InputError(f"{self.name!r:.80} is kept (bits is null) but has a scheme; it must not have one")
            return LayerPlan(self.name, self.block, self.role)
        scheme = Scheme(self.bits, self.group, self.clip, self.grid, self.objective, self.rounding)
        return LayerPlan(self.name, self.block, self.role, scheme)


def schemes_by_name(layers: Iterable[LayerPlan]) -> dict[str, Scheme]:
    """Returns the scheme of every layer that is quantized."""
    return {layer.name: layer.scheme for layer in layers if layer.scheme is not None}


@dataclass(frozen=True)
class LayerResult:
    """The result of rounding one linear layer.

    `alpha`         smallest, median and largest clipping threshold of its groups
    `weight_error`  ‖ΔW‖² / ‖W‖²
    `error`         E‖ΔW x‖² / E‖W x‖² of each language, where x is the input in the quantized model; empty without text
    `notes`         one on every fall-back
    """

    name: Name
    bits: StoredBits
    size_bytes: Positive
    alpha: tuple[NonNegative, NonNegative, NonNegative]
    weight_error: NonNegative
    error: Mapping[Code, NonNegative] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ordered("alpha", self.alpha)


@dataclass(frozen=True)
class LearningResult:
    """The result of learning on held-out text: KL from the full-precision model, in nats per token of each language.

    `step`     the step whose codes were chosen; 0 if the rounded codes were kept
    `start`    KL of the rounded codes, and `damage` of the chosen codes
    `history`  one entry per evaluation, the rounded codes first
    """

    step: Count
    start: Mapping[Code, NonNegative]
    damage: Mapping[Code, NonNegative]
    history: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_same_keys("start", self.start, "damage", self.damage)


@dataclass(frozen=True)
class Calibration:
    """The text that a plan is executed with: about `tokens` per language, in windows of `sequence` positions.

    `source` is the path that the user gave, None for embedded text; the same text may be read from elsewhere.
    """

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
    """How codes and scales are learned from the calibration text after rounding.

    `block_steps`   learning steps of each block, against the outputs of the full-precision block
    `block_tokens`  about how many tokens of each language are read for them; all text if `model_steps` is 0
    `model_steps`   learning steps of all blocks together, against the full-precision model's next-token distribution
    `rows`          windows of text per step, at least
    `rate`          about the largest change of a weight in a step, in units of its scale
    `objective`     what is to be small on held-out text: the mean, the worst, or the worst regret of languages
    """

    block_steps: int = 200
    block_tokens: int = 4096
    model_steps: int = 500
    rows: int = 4
    rate: Number = 0.01
    objective: Objective = "worst"

    def __post_init__(self) -> None:
        whole("block_steps", self.block_steps, least=0)
        whole("block_tokens", self.block_tokens, least=16)
        whole("model_steps", self.model_steps, least=0)
        whole("rows", self.rows, least=1)
        in_range("rate", self.rate, above=0, most=1)
        one_of("objective", self.objective, get_args(Objective))


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """The decision for every linear layer, embedding and head, in the order of the model.

    `languages`    the weights π of the languages, which sum to 1; empty if no text is read
    `calibration`  the text that the decisions are for
    `thresholds`   whether the exact scales of each language alone are saved next to the model
    `size_bytes`   the size of all tensors of the quantized model
    `results`      the result of each layer, once the plan is executed
    `learned`      the result of learning, once the plan is executed
    """

    policy: Name
    settings: Mapping[str, Any]
    model: str
    fingerprint: Digest
    family: str
    layers: tuple[LayerPlan, ...]
    size_bytes: Positive
    languages: Mapping[Code, Share] = field(default_factory=dict)
    calibration: Calibration | None = None
    thresholds: bool = False
    learning: Learning | None = None
    notes: tuple[str, ...] = ()
    results: tuple[LayerResult, ...] = ()
    learned: LearningResult | None = None

    def __post_init__(self) -> None:
        """Checks the weights of the languages, and that layers, results and languages belong together."""
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

    def _table(self) -> Table:
        """Returns the layers by their bits, and what else was decided."""
        counts = Counter((layer.bits, layer.scheme.name if layer.scheme else "kept") for layer in self.layers)
        ordered = sorted(counts.items(), key=lambda item: (item[0][0] is None, item[0]))
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        below = [f"settings: {settings}"] if settings else []
        if self.languages:
            below.append("languages: " + ", ".join(f"{code} {pi:.3g}" for code, pi in self.languages.items()))
        return Table(
            f"Plan of {self.policy} for {self.model}: {readable_size(self.size_bytes)}"
            + (", carried out" if self.results else ""),
            ("scheme", "bits", "layers"),
            tuple((name, "" if bits is None else str(bits), str(count)) for (bits, name), count in ordered),
            (*below, *self.notes),
        )

    @property
    def quantized(self) -> tuple[LayerPlan, ...]:
        """The layers that are not kept as they are."""
        return tuple(layer for layer in self.layers if layer.scheme is not None)

    @cached_property
    def schemes(self) -> dict[str, Scheme]:
        """The scheme of every layer that is quantized, by name."""
        return schemes_by_name(self.layers)

    @property
    def reads_text(self) -> bool:
        """Whether executing it needs calibration text."""
        decided = any(scheme.reads_text for scheme in self.schemes.values())
        return self.thresholds or self.learning is not None or decided

    @property
    def seed(self) -> int:
        """The seed of its calibration text."""
        return 0 if self.calibration is None else self.calibration.seed

    def as_data(self) -> dict[str, Any]:
        """Returns the plan for JSON."""
        content = asdict(replace(self, layers=(), results=()))
        content["layers"] = tuple(asdict(LayerEntry.of(layer)) for layer in self.layers)
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
        """Returns the content of its file."""
        return to_json(self.as_data())

    def save(self, path: str | Path) -> None:
        """Writes the plan."""
        write_files({check_writable(path, example="plan.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Returns the plan of a file; every key must be known."""
        return PLAN.read(path)


PLAN = Kind("fairbits.plan/1", "a plan", "fairbits plan", Plan)
