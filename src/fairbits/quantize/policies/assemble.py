"""From a scheme and a width per block to a Plan: an entry for every linear map, embedding and head."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any, Literal

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.model.architecture import Weight
from fairbits.model.files.packed import is_table, planned_bytes
from fairbits.model.files.quantization_config import TABLE_BITS
from fairbits.model.scheme import Group, Rounding, Scheme, WeightGrid
from fairbits.quantize.evidence import Evidence, is_rounded
from fairbits.quantize.plan import Calibration, LayerPlan, Plan, schemes_of

Embeddings = Literal["keep", 8, 4]


@dataclass(frozen=True)
class PolicyOptions:
    """What the user chose for all policies: bits of the blocks, how many weights share a scale, and the grid.

    `embeddings` is what becomes of embedding and head. 4 means a head of 4 bits and an embedding of 8, the least that
    the format holds of one.
    `calibration` is the text that the plan will be carried out with. Policies that read none can be given it all the
    same: the error of every language is then measured layer by layer.
    """

    _: KW_ONLY
    bits: int = 4
    group: Group = 128
    grid: WeightGrid = "twos"
    embeddings: Embeddings = "keep"
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.scheme.group)  # checked there, with bits and grid
        if self.embeddings not in ("keep", 8, 4):
            raise InputError(f"embeddings is {self.embeddings!r}; it must be keep, 8 or 4")

    @property
    def scheme(self) -> Scheme:
        """Rounding to nearest with the largest weight of every group as a level; policies replace what they decide."""
        return Scheme(self.bits, self.group, "absmax", self.grid)


def input_weighted(options: PolicyOptions, rounding: Rounding) -> Scheme:
    """Returns the scheme of policies that decide widths or weights of languages only: the exact clip, weighted."""
    one_of("rounding", rounding, ("gptq", "nearest"))
    return replace(options.scheme, clip="exact", objective="mean", rounding=rounding)


def assemble(
    policy: str,
    evidence: Evidence,
    options: PolicyOptions,
    *,
    scheme: Scheme,
    bits: Sequence[int] | None = None,
    pi: Mapping[str, float] | None = None,
    thresholds: bool = False,
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """Returns the plan in which all blocks have one scheme, and languages the weights `pi`.

    Block l has `bits[l]` bits, `options.bits` if None.
    """
    checkpoint = evidence.checkpoint
    widths = (options.bits,) * evidence.n_blocks if bits is None else tuple(bits)
    layers = tuple(_layers(evidence, options, widths=widths, scheme=scheme))
    common = {key: value for key, value in asdict(options).items() if key != "calibration"}
    return Plan(
        policy=policy,
        settings=json.loads(json.dumps(common | dict(settings or {}))),  # lists, as they will be in the file
        model=checkpoint.target,
        fingerprint=checkpoint.fingerprint,
        family=checkpoint.architecture.family,
        layers=layers,
        size_bytes=planned_bytes(checkpoint, schemes_of(layers)),
        languages=pi or equal_mix(evidence),
        calibration=options.calibration,
        thresholds=thresholds,
        notes=(*checkpoint.notes, *_kept(evidence), *_embedding(options), *notes),
    )


def equal_mix(evidence: Evidence) -> dict[str, float]:
    """Returns the same weight for every language."""
    return {code: 1 / len(evidence.languages) for code in evidence.languages}


def one_language(evidence: Evidence, code: str) -> dict[str, float]:
    """Returns all weight on one language; the others stay named, as their errors are measured too."""
    if code not in evidence.languages:
        raise InputError(f"{code} is none of the languages {', '.join(evidence.languages)}; name it among them")
    return {each: float(each == code) for each in evidence.languages}


def with_all_text(options: PolicyOptions, *, count: int) -> PolicyOptions:
    """Returns options in which one language has the tokens of `count` languages: mixes differ, budgets do not."""
    asked = options.calibration
    return options if asked is None else replace(options, calibration=replace(asked, tokens=count * asked.tokens))


def _layers(
    evidence: Evidence, options: PolicyOptions, *, widths: Sequence[int], scheme: Scheme
) -> Iterator[LayerPlan]:
    for weight in _in_order(evidence):
        bits, own = _width(weight, options), None
        if bits is not None and weight.block is not None:
            own = replace(scheme, bits=widths[weight.block])
        elif bits is not None:
            # an embedding has no input that would weigh its columns, so none of its largest weights is cut off
            own = replace(options.scheme, bits=bits)
        yield LayerPlan(weight.name, weight.block, weight.role, own)


def _width(weight: Weight, options: PolicyOptions) -> int | None:
    """Returns the bits of a tensor where all blocks are alike; None if it stays as it is."""
    if is_rounded(weight):
        return options.bits
    if weight.role in ("embedding", "head") and weight.tied_to is None and options.embeddings != "keep":
        return TABLE_BITS if is_table(weight) else options.embeddings
    return None


def _in_order(evidence: Evidence) -> Iterator[Weight]:
    """Yields embeddings, the linear maps of the blocks, and those behind them."""
    architecture = evidence.checkpoint.architecture
    outside = [each for each in architecture.weights.values() if each.block is None]
    yield from (each for each in outside if each.role == "embedding")
    for block in architecture.blocks:
        yield from block.linears.values()
    yield from (each for each in outside if each.linear and each.role != "embedding")


def check_groups(evidence: Evidence, options: PolicyOptions) -> None:
    """Raises unless the group divides the inputs of every layer that is rounded."""
    columns = {each.name: each.shape[1] for each in _in_order(evidence) if _width(each, options) is not None}
    if not any(evidence.block_weights):
        raise InputError(f"{evidence.checkpoint.target} has no linear map that can be rounded; see fairbits inspect")
    if not isinstance(options.group, int):
        return
    for name, width in columns.items():
        if width % options.group:
            most = math.gcd(*columns.values())
            divisors = ", ".join(str(size) for size in range(2, most + 1) if most % size == 0)
            raise InputError(
                f"{name} has {width} inputs, which groups of {options.group} do not divide; the group must divide the "
                f"inputs of every layer: {divisors or 'no number'} would; or take channel, or tensor"
            )


def check_embeddings(evidence: Evidence, options: PolicyOptions) -> None:
    """Raises if 4 bits are asked for where there is no head beside the embedding, which cannot have them."""
    head = evidence.checkpoint.architecture.head
    if options.embeddings == 4 and (head is None or is_table(head) or head.tied_to is not None):
        why = "has no head" if head is None else "has head and embedding tied"
        raise InputError(
            f"embeddings is 4 and {evidence.checkpoint.target} {why}: {TABLE_BITS} is the least that the format can "
            f"hold for the table; use {TABLE_BITS}"
        )


def _kept(evidence: Evidence) -> Iterator[str]:
    """Yields what a reader must know about linear maps that stay as they are."""
    linears = evidence.checkpoint.architecture.linears.values()
    experts = sum(each.block is not None and each.role != "router" and not is_rounded(each) for each in linears)
    if experts:
        yield (
            f"{experts} tensors of experts stay as they are: transformers keep the experts of a block in one tensor, "
            "and the format stores modules of one linear map each"
        )


def _embedding(options: PolicyOptions) -> Iterator[str]:
    if options.embeddings == 4:
        yield f"the head has 4 bits, the embedding {TABLE_BITS}: the format packs linear maps only"
