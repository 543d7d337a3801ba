"""From a scheme and the bits of each block to a Plan: an entry for every linear layer, embedding and head."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.units import megabytes
from fairbits.models.architecture.architecture import Weight
from fairbits.models.scales.scheme import BLOCK_SIZE, Scheme
from fairbits.models.scales.scheme import BYTE_BITS as EMBEDDING_BITS
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import LayerPlan, Plan, schemes_by_name
from fairbits.quantization.policies.option import Part, PolicyOptions

LARGE = 0.25  # the share of the result from which tensors that are not quantized are worth a note
CONVERT = "in transformers: from_pretrained(MODEL, dtype='bfloat16'), then save_pretrained(DIR)"


def plan_from_scheme(
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

    Block l has `bits[l]` bits, `options.bits` without `bits`; 0 bits, and the blocks in `options.keep`, mean that a
    block keeps its weights.
    """
    checkpoint = evidence.checkpoint
    from fairbits.models.io.compressed_tensors import planned_bytes  # after the line that stops a mere check

    layers = tuple(_layers(evidence, options, scheme=scheme, bits=bits or (options.bits,) * evidence.n_blocks))
    schemes = schemes_by_name(layers)
    size = planned_bytes(checkpoint, schemes)
    common = {key: value for key, value in asdict(options).items() if key != "calibration" and value is not None}
    return Plan(
        policy=policy,
        settings=json.loads(json.dumps(common | dict(settings or {}))),  # lists, as they will be in the file
        model=checkpoint.target,
        fingerprint=checkpoint.fingerprint,
        family=checkpoint.architecture.family,
        layers=layers,
        size_bytes=size,
        languages=pi or equal_weights(evidence),
        calibration=options.calibration,
        thresholds=thresholds,
        notes=(
            *checkpoint.notes,
            *_notes_on_layers(evidence, options),
            *_notes_on_servers(evidence, schemes),
            *_notes_on_size(evidence, schemes.keys(), size),
            *notes,
        ),
    )


def equal_weights(evidence: Evidence) -> dict[str, float]:
    """Returns the same weight for every language."""
    return {code: 1 / len(evidence.languages) for code in evidence.languages}


def one_language(evidence: Evidence, code: str) -> dict[str, float]:
    """Returns all weight on one language; the others stay named, as their errors are measured too."""
    if code not in evidence.languages:
        raise InputError(f"{code} is not one of the languages {', '.join(evidence.languages)}; add it to them")
    return {language: float(language == code) for language in evidence.languages}


def _layers(evidence: Evidence, options: PolicyOptions, *, scheme: Scheme, bits: Sequence[int]) -> Iterator[LayerPlan]:
    for weight in _in_order(evidence):
        width, chosen = _bits(weight, options), None
        if width is not None and weight.block is not None:
            if options.scheme is not None:
                part = options.scheme_of(_part(weight))
                assert part is not None
                chosen = replace(part, clip=scheme.clip, objective=scheme.objective, rounding=scheme.rounding)
            elif bits[weight.block]:
                chosen = replace(scheme, bits=bits[weight.block])
        elif width is not None:
            # an embedding has no input that would weight its columns, so none of its largest weights is clipped
            chosen = replace(options.nearest, bits=width)
        yield LayerPlan(weight.name, weight.block, weight.role, chosen)


def _bits(weight: Weight, options: PolicyOptions) -> int | None:
    """Returns the bits of a tensor where all blocks are alike; None if it stays as it is."""
    if weight.is_quantizable:
        part = options.scheme_of(_part(weight))
        return None if weight.block in options.keep or part is None else part.bits
    if weight.role in ("embedding", "head") and weight.tied_to is None and options.embeddings != "keep":
        return EMBEDDING_BITS if weight.is_embedding else options.embeddings
    return None


def _part(weight: Weight) -> Part:
    """Returns the part of a block that a linear layer belongs to."""
    if weight.expert is not None:
        return "experts"
    if weight.role in ("q", "k", "v", "qkv", "attention_out"):
        return "attention"
    return "mlp" if weight.role.startswith("mlp") else "rest"


def _in_order(evidence: Evidence) -> Iterator[Weight]:
    architecture = evidence.checkpoint.architecture
    outside = [weight for weight in architecture.weights.values() if weight.block is None]
    yield from (weight for weight in outside if weight.role == "embedding")
    for block in architecture.blocks:
        yield from block.linears.values()
    yield from (weight for weight in outside if weight.linear and weight.role != "embedding")


def check_layers(evidence: Evidence, options: PolicyOptions) -> None:
    """Raises if the blocks to keep do not exist, the group does not fit a layer, or an embedding would have 4 bits."""
    target, head = evidence.checkpoint.target, evidence.checkpoint.architecture.head
    if not any(evidence.block_weights):
        raise InputError(f"{target} has no linear layer that can be quantized; see fairbits inspect")
    outside = [block for block in options.keep if block >= evidence.n_blocks]
    if outside:
        raise InputError(
            f"keep names block {outside[0]}; {target} has {evidence.n_blocks} blocks, 0 to {evidence.n_blocks - 1}"
        )
    weights = [weight for weight in _in_order(evidence) if _bits(weight, options) is not None]
    columns = {weight.name: weight.shape[1] for weight in weights}
    if not columns:
        what = "keep names" if options.keep else f"scheme is {options.scheme}, which leaves out"
        raise InputError(f"{what} every block of {target} that can be quantized: leave at least one out")
    for weight in weights if options.scheme is not None else ():
        part = options.scheme_of(_part(weight))
        if part is not None and not part.fits(weight.shape[1]):
            raise InputError(
                f"{weight.name} has {weight.shape[1]} inputs, which groups of {part.group_size} ({part.format}) do not "
                "divide: choose another scheme"
            )
    for name, count in columns.items() if options.scheme is None else ():
        if isinstance(options.group, int) and count % options.group:
            most = math.gcd(*columns.values())
            divisors = ", ".join(str(size) for size in range(2, most + 1) if most % size == 0)
            raise InputError(
                f"{name} has {count} inputs, which groups of {options.group} do not divide; the group must divide the "
                f"inputs of every layer: {divisors or 'no number'} would; or use channel or tensor"
            )
    if options.embeddings == 4 and (head is None or head.is_embedding or head.tied_to is not None):
        why = "has no head" if head is None else "has head and embedding tied"
        raise InputError(
            f"embeddings is 4 and {target} {why}: the format needs at least {EMBEDDING_BITS} bits for an embedding; "
            f"use {EMBEDDING_BITS}"
        )


def _notes_on_layers(evidence: Evidence, options: PolicyOptions) -> Iterator[str]:
    architecture = evidence.checkpoint.architecture
    blocks = [weight for weight in architecture.weights.values() if weight.block is not None]
    experts = sum(weight.linear and not weight.is_control and not weight.is_quantizable for weight in blocks)
    if experts:
        yield (
            f"{experts} expert tensors are not quantized: each holds all experts of a block, the format stores one "
            f"layer at a time, and {architecture.class_name} in transformers has no names for single experts"
        )
    if options.embeddings != "keep":
        yield (
            "vLLM 0.32 cannot load this quantized embedding: vLLM reads packed embeddings only, and transformers reads "
            "only embeddings in whole bytes, which fairbits writes; to serve the model with vLLM, keep the embedding "
            "(--embeddings keep)"
        )
    kept = [weight for weight in blocks if not weight.linear and len(weight.shape) > 1]
    share = sum(map(_count, kept)) / max(sum(map(_count, blocks)), 1)
    if share > 0.01:
        yield (
            f"{len(kept)} tensors such as {kept[0].name} are not quantized, {share:.0%} of the weights in blocks: "
            "no linear layer uses them"
        )
    if options.keep:
        yield f"kept in the model's precision, as asked: blocks {', '.join(map(str, options.keep))}"
    if options.embeddings == 4:
        yield f"the head has 4 bits, the embedding {EMBEDDING_BITS}: the format packs linear layers only"


def _notes_on_servers(evidence: Evidence, schemes: Mapping[str, Scheme]) -> Iterator[str]:
    """Yields what vLLM or transformers cannot do with the formats of a plan."""
    from fairbits.models.io.compressed_tensors import REARRANGED
    from fairbits.models.scales.groups import planned_constants

    architecture = evidence.checkpoint.architecture
    weights = [architecture.weights[name] for name in schemes]
    blocks = [weight for weight in weights if schemes[weight.name].group == "block" and weight.fused is not None]
    uneven = next((weight for weight in blocks if weight.shape[0] % BLOCK_SIZE), None)
    if uneven is not None:
        yield (
            f"vLLM cannot load this FP8_BLOCK: it joins {uneven.name} with other layers, and {uneven.shape[0]} rows "
            f"are not blocks of {BLOCK_SIZE}; to serve the model with vLLM, use FP8_DYNAMIC"
        )
    whole = next((weight for weight in weights if planned_constants(schemes[weight.name])), None)
    if whole is not None and architecture.family in REARRANGED:
        yield (
            f"vLLM cannot load this {schemes[whole.name].format}: it rearranges the rows of "
            f"{REARRANGED[architecture.family].lstrip('.')}, and fails on a scale of the whole tensor; to serve the "
            "model with vLLM, use FP8_DYNAMIC, W8A8 or MXFP4"
        )
    if any(scheme.group == "tensor" and scheme.has_tensor_scale for scheme in schemes.values()):
        yield "FP8 has one scale for a tensor, which the largest weight sets: how the policy clips does not matter"
    experts = [schemes[weight.name] for weight in weights if weight.expert is not None]
    if any(scheme.inputs != "kept" for scheme in experts):
        yield "transformers computes experts without rounding their inputs, unlike vLLM and fairbits evaluate"
    if experts and len({scheme.as_stored for scheme in schemes.values()}) > 1:
        yield "transformers cannot load this: it reads all layers of a model with experts with one scheme"


def _notes_on_size(evidence: Evidence, schemes: Set[str], size: int) -> Iterator[str]:
    """Yields what is written in another type than it is read in, and why a result is larger than it need be."""
    checkpoint = evidence.checkpoint
    kept = [checkpoint.kept_info(name) for name in checkpoint.tensors.keys() - schemes - checkpoint.tied_copies]
    if checkpoint.kind == "gguf":
        yield "tensors that are not quantized are written in bfloat16; the reference is computed with them in float32"
    wide = sum(info.nbytes for info in kept if info.dtype.is_floating_point and info.dtype.itemsize > 2)
    if wide > LARGE * size:
        yield (
            f"{megabytes(wide)} of {megabytes(size)} are tensors that are not quantized, in float32 as the model "
            f"stores them; to halve them, convert the model to bfloat16 first ({CONVERT})"
        )
    if size <= checkpoint.size_bytes:
        return
    largest = max(kept, key=lambda info: info.nbytes, default=None)
    why = "the file of the model has fewer bits per weight: use fewer bits"
    if largest is not None and largest.nbytes > LARGE * size:
        weight = checkpoint.architecture.weights.get(largest.name)
        why = f"{largest.name}, {megabytes(largest.nbytes)}, is not quantized"
        if weight is not None and (weight.is_embedding or weight.role == "head"):
            why = f"the {weight.role}, {megabytes(largest.nbytes)}, is not quantized: use --embeddings {EMBEDDING_BITS}"
    yield f"the result, {megabytes(size)}, is larger than the model, {megabytes(checkpoint.size_bytes)}: {why}"


def _count(weight: Weight) -> int:
    return math.prod(weight.shape) * (weight.stacked or 1)
