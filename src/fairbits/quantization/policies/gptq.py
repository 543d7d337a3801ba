"""The policy whose rounding errors are compensated by the weights that follow."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fairbits.core.checks import one_of
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy, with_all_text
from fairbits.quantization.policies.plan_from_scheme import assemble, equal_mix, one_language

if TYPE_CHECKING:
    from fairbits.quantization.plan import Plan

ENGLISH = "eng_Latn"
Mixture = Literal["equal", "english", "minimax"] | Mapping[str, float]


@policy()
def gptq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    mix: Annotated[
        Mixture, Option("weights of the languages: equal, english, minimax, or numbers such as eng=2,fra=1")
    ] = "equal",
) -> "Plan":
    """Returns GPTQ under Σ_λ π_λ H_λ, with the exact weighted clip inside; `mix` gives the weights π.

    "equal": the same for all languages. "english": English alone, as is usual elsewhere, with as many tokens as all
    languages have together. "minimax": found by a search for the least damage to the worst language. Or given weights.
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
    from fairbits.core.array_checks import weights_vector  # heavy: policies are declared without it
    from fairbits.text.language_codes import find_language

    named = {find_language(name, user_codes=evidence.languages).code: weight for name, weight in given.items()}
    for code in named:
        one_language(evidence, code)  # is one of them
    weights = weights_vector("mix", [named.get(code, 0.0) for code in evidence.languages], size=len(evidence.languages))
    return dict(zip(evidence.languages, weights.tolist(), strict=True))
