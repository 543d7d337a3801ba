"""From a scheme and a width per block to a Plan: an entry for every linear layer, embedding and head.

Layers of a plan: which tensors of a model are quantized, in which order, and which of them cannot be.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Weight
from fairbits.models.io.compressed_tensors import BYTE_BITS as EMBEDDING_BITS
from fairbits.models.io.compressed_tensors import planned_bytes
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.evidence import Evidence, is_rounded
from fairbits.quantization.plan import LayerPlan
from fairbits.quantization.policies.option import PolicyOptions

if TYPE_CHECKING:
    from fairbits.quantization.plan import Plan


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
) -> "Plan":
    """Returns the plan in which all blocks have one scheme, and languages the weights `pi`.

    Block l has `bits[l]` bits, `options.bits` if None.
    """
    from fairbits.quantization.plan import Plan, schemes_of

    checkpoint = evidence.checkpoint
    widths = (options.bits,) * evidence.n_blocks if bits is None else tuple(bits)
    layers = tuple(layers_of(evidence, options, widths=widths, scheme=scheme))
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
        notes=(*checkpoint.notes, *notes_on_layers(evidence, options), *notes),
    )


def equal_mix(evidence: Evidence) -> dict[str, float]:
    """Returns the same weight for every language."""
    return {code: 1 / len(evidence.languages) for code in evidence.languages}


def one_language(evidence: Evidence, code: str) -> dict[str, float]:
    """Returns all weight on one language; the others stay named, as their errors are measured too."""
    if code not in evidence.languages:
        raise InputError(f"{code} is not one of the languages {', '.join(evidence.languages)}; add it to them")
    return {each: float(each == code) for each in evidence.languages}


def layers_of(
    evidence: Evidence, options: PolicyOptions, *, widths: Sequence[int], scheme: Scheme
) -> Iterator[LayerPlan]:
    """Yields the layers of a plan in which block l has `widths[l]` bits, and all blocks else one scheme."""
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
        return EMBEDDING_BITS if weight.is_embedding else options.embeddings
    return None


def _in_order(evidence: Evidence) -> Iterator[Weight]:
    """Yields embeddings, the linear layers of the blocks, and those after them."""
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
        raise InputError(f"{evidence.checkpoint.target} has no linear layer that can be rounded; see fairbits inspect")
    if not isinstance(options.group, int):
        return
    for name, width in columns.items():
        if width % options.group:
            most = math.gcd(*columns.values())
            divisors = ", ".join(str(size) for size in range(2, most + 1) if most % size == 0)
            raise InputError(
                f"{name} has {width} inputs, which groups of {options.group} do not divide; the group must divide the "
                f"inputs of every layer: {divisors or 'no number'} would; or use channel or tensor"
            )


def check_embeddings(evidence: Evidence, options: PolicyOptions) -> None:
    """Raises if 4 bits are requested for a model without a head of its own: an embedding cannot have them."""
    head = evidence.checkpoint.architecture.head
    if options.embeddings == 4 and (head is None or head.is_embedding or head.tied_to is not None):
        why = "has no head" if head is None else "has head and embedding tied"
        raise InputError(
            f"embeddings is 4 and {evidence.checkpoint.target} {why}: {EMBEDDING_BITS} is the least that the format "
            f"can hold for the table; use {EMBEDDING_BITS}"
        )


def notes_on_layers(evidence: Evidence, options: PolicyOptions) -> Iterator[str]:
    """Yields what a reader must know about layers that are kept, and about embedding and head."""
    linears = evidence.checkpoint.architecture.linears.values()
    experts = sum(each.block is not None and not each.is_control and not is_rounded(each) for each in linears)
    if experts:
        yield (
            f"{experts} tensors of experts stay as they are: each holds the experts of a block, the format stores one "
            f"layer at a time, and in transformers {evidence.checkpoint.architecture.class_name} has no names for "
            "single experts"
        )
    if options.embeddings != "keep":
        yield (
            "vLLM 0.32 cannot load a quantized embedding: it reads packed ones only, and transformers only those in "
            "whole bytes, which are written; to serve the model with vLLM, keep the embedding (--embeddings keep)"
        )
    yield from _note_on_others(evidence)
    if options.embeddings == 4:
        yield f"the head has 4 bits, the embedding {EMBEDDING_BITS}: the format packs linear layers only"


def _note_on_others(evidence: Evidence) -> Iterator[str]:
    """Yields which weights of blocks are kept because they are no linear layers, if there are many."""
    inside = [each for each in evidence.checkpoint.architecture.weights.values() if each.block is not None]
    others = [each for each in inside if not each.linear and len(each.shape) > 1]
    share = sum(map(_count, others)) / max(sum(map(_count, inside)), 1)
    if share > 0.01:
        yield (
            f"{len(others)} tensors such as {others[0].name} stay as they are, {share:.0%} of the weights in blocks: "
            "no linear layer uses them"
        )


def _count(weight: Weight) -> int:
    return math.prod(weight.shape) * (weight.stacked or 1)
