"""The policy whose rounding errors are compensated by the weights that follow."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fairbits.core.array_checks import weights_vector
from fairbits.core.checks import one_of
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import ENGLISH, Plan
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import equal_weights, one_language, plan_from_scheme
from fairbits.text.language_codes import find_language

Mixture = Literal["equal", "english", "minimax"] | Mapping[str, float]


@policy()
def gptq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    mix: Annotated[
        Mixture, Option("language weights: equal, english, minimax, or numbers such as eng=2,fra=1")
    ] = "equal",
) -> Plan:
    """Returns GPTQ under Σ_λ π_λ H_λ, with the exact weighted clip inside; `mix` gives the weights π.

    "equal": the same for all languages. "english": English alone, the usual default, with as many tokens as all
    languages have together. "minimax": found by a search for the least damage to the worst language.
    """
    settings: dict[str, Any] = {"mix": mix if isinstance(mix, str) else "given"}
    notes: tuple[str, ...] = ()
    if not isinstance(mix, str):
        pi = _named_weights(evidence, mix)
    elif one_of("mix", mix, ("equal", "english", "minimax")) == "minimax":
        search = evidence.minimax()
        pi, notes = dict(search.pi), search.notes
        settings["rounds"] = search.rounds
    elif mix == "equal":
        pi = equal_weights(evidence)
    else:
        pi = {code: weight for code, weight in one_language(evidence, ENGLISH).items() if weight}
        if (text := options.calibration) is not None:  # mixes differ, budgets do not
            options = replace(options, calibration=replace(text, tokens=len(evidence.languages) * text.tokens))
    scheme = input_weighted(options, "gptq")
    return plan_from_scheme("gptq", evidence, options, scheme=scheme, pi=pi, settings=settings, notes=notes)


def _named_weights(evidence: Evidence, mix: Mapping[str, float]) -> dict[str, float]:
    """Returns the user's weights, scaled to sum to 1; languages that are not named have none."""
    named = {find_language(name, user_codes=evidence.languages).code: weight for name, weight in mix.items()}
    for code in named:
        one_language(evidence, code)  # raises if it is not one of the languages
    weights = weights_vector("mix", [named.get(code, 0.0) for code in evidence.languages], size=len(evidence.languages))
    return dict(zip(evidence.languages, weights.tolist(), strict=True))
