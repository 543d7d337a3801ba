"""From a scheme and a width per block to a Plan: an entry for every linear map, embedding and head."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairbits.errors import InputError
from fairbits.model.scheme import Scheme
from fairbits.quantization.evidence import Evidence
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
    from fairbits.model.files.formats import DEFAULT_FORMAT, planned_bytes  # heavy: policies need no torch until now
    from fairbits.quantization.plan import Plan, schemes_of
    from fairbits.quantization.policies.layers import layers_of, notes_on_layers

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
        size_bytes=planned_bytes(DEFAULT_FORMAT, checkpoint, schemes_of(layers)),
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
