"""The policy whose rounding errors are made up for by the weights that follow."""

from collections.abc import Mapping
from typing import Any, Literal

from fairbits.checks import one_of, weights_vector
from fairbits.language.lookup import find_language
from fairbits.quantize.evidence import Evidence
from fairbits.quantize.plan import Plan
from fairbits.quantize.policies.assemble import (
    PolicyOptions,
    assemble,
    equal_mix,
    input_weighted,
    one_language,
    with_all_text,
)

ENGLISH = "eng_Latn"
Mixture = Literal["equal", "english", "minimax"] | Mapping[str, float]


def gptq(evidence: Evidence, options: PolicyOptions, *, mix: Mixture = "equal") -> Plan:
    """Returns GPTQ under Σ_λ π_λ H_λ, with the exact weighted clip inside; `mix` says how languages are weighed.

    "equal"; "english" as is usual elsewhere, with as many tokens as all languages have together; given weights;
    "minimax": searched for the least worst damage.
    """
    settings: dict[str, Any] = {"mix": mix if isinstance(mix, str) else "given"}
    notes: tuple[str, ...] = ()
    if not isinstance(mix, str):
        pi = _given_mix(evidence, mix)
    elif one_of("mix", mix, ("equal", "english", "minimax")) == "minimax":
        found = evidence.minimax()
        pi, notes = dict(found.pi), found.notes
        settings["rounds"] = found.rounds
    elif mix == "equal":
        pi = equal_mix(evidence)
    else:
        pi = {code: weight for code, weight in one_language(evidence, ENGLISH).items() if weight}
        options = with_all_text(options, count=len(evidence.languages))
    scheme = input_weighted(options, "gptq")
    return assemble("gptq", evidence, options, scheme=scheme, pi=pi, settings=settings, notes=notes)


def _given_mix(evidence: Evidence, given: Mapping[str, float]) -> dict[str, float]:
    """Returns given weights, scaled to sum to 1; languages that are not named have none."""
    named = {find_language(name, own=evidence.languages).code: weight for name, weight in given.items()}
    for code in named:
        one_language(evidence, code)  # is one of them
    weights = weights_vector("mix", [named.get(code, 0.0) for code in evidence.languages], size=len(evidence.languages))
    return dict(zip(evidence.languages, weights.tolist(), strict=True))
