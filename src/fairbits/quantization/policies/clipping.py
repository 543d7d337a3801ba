"""Policies of clipping: the scale of each group of weights; every weight is then rounded to the nearest code."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from fairbits.core.checks import one_of
from fairbits.models.scales.scheme import Objective
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import assemble, equal_mix, one_language

if TYPE_CHECKING:
    from fairbits.quantization.plan import Plan

BLIND = (
    "This policy clips without knowing what the model does with its weights. In real language models a few of the "
    "largest weights are vital: cutting them off can destroy the model although the error of its weights gets smaller. "
    "Evaluate before use, or use weighted, laaciq or gptq, which take the inputs into account."
)
OBJECTIVE = "damage of languages to minimize"
PER_LAYER = (
    "the threshold that serves the worst language of each layer need not serve the worst language of the model: "
    "compare with objective mean"
)


@policy(reads_text=False)
def rtn(evidence: Evidence, options: PolicyOptions) -> "Plan":
    """Returns rounding to nearest with scales set by the largest weight of every group."""
    return assemble("rtn", evidence, options, scheme=options.scheme)


@policy(reads_text=False)
def aciq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    law: Annotated[Literal["gaussian", "laplace"], Option("assumed distribution of the weights")] = "gaussian",
) -> "Plan":
    """Returns Banner's thresholds: α = 2.56 σ for Gaussian weights at 4 bits, α = 5.03 b for Laplace ones."""
    one_of("law", law, ("gaussian", "laplace"))
    scheme = replace(options.scheme, clip=law)
    return assemble("aciq", evidence, options, scheme=scheme, settings={"law": law}, notes=[BLIND])


@policy(reads_text=False, fixes=("grid",))
def kappa(evidence: Evidence, options: PolicyOptions) -> "Plan":
    """Returns the research notes' thresholds α = σ·(2.5 + 0.3 ln(1 + κ)), on their symmetric grid (000-21)."""
    notes = [BLIND]
    if options.bits != 4:
        notes.append(f"the research notes give f(κ, B) for 4 bits only; its constants are used at {options.bits} too")
    if isinstance(options.group, int):
        notes.append(f"κ of {options.group} weights is far too low on average; the documents mean κ of a layer")
    own = replace(options, grid="symmetric")
    return assemble("kappa", evidence, own, scheme=replace(own.scheme, clip="kappa"), notes=notes)


@policy(reads_text=False)
def mse(evidence: Evidence, options: PolicyOptions) -> "Plan":
    """Returns the exact clip: the scale with the least Σ (w − Q(w))²."""
    return assemble("mse", evidence, options, scheme=replace(options.scheme, clip="exact"), notes=[BLIND])


@policy()
def weighted(evidence: Evidence, options: PolicyOptions) -> "Plan":
    """Returns the exact clip of Σ_j h_j (w_j − Q(w_j))², h_j = E[x_j²], the mean of all languages."""
    return assemble("weighted", evidence, options, scheme=input_weighted(options, "nearest"))


@policy()
def laaciq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    objective: Annotated[Objective | None, Option(OBJECTIVE, default="worst")] = None,
    language: Annotated[
        str | None, Option("the one language to clip for", instead_of="objective", language=True)
    ] = None,
) -> "Plan":
    """Returns the exact clip for the worst language, unless another objective is given, or for one language alone.

    The scales that each language alone would choose are saved next to the model (option A).
    """
    from fairbits.text.language_codes import find_language  # heavy: policies are declared without it

    aim: Objective = objective or "worst"
    pi = equal_mix(evidence)
    if language is not None:
        language = find_language(language, user_codes=evidence.languages).code
        aim, pi = "mean", one_language(evidence, language)
    return assemble(
        "laaciq",
        evidence,
        options,
        scheme=replace(options.scheme, clip="exact", objective=aim),
        pi=pi,
        thresholds=True,
        settings={"objective": aim} if language is None else {"language": language},
        notes=() if aim == "mean" else [PER_LAYER],
    )
