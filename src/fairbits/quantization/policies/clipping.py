"""Policies of clipping: the scale of each group of weights; every weight is then rounded to the nearest code."""

from dataclasses import replace
from typing import Annotated, Literal

from fairbits.core.checks import one_of
from fairbits.models.scales.scheme import Objective
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import equal_weights, one_language, plan_from_scheme
from fairbits.text.language_codes import find_language

BLIND = (
    "This policy clips weights without knowing how the model uses them. In real language models a few of the largest "
    "weights are vital: clipping them can destroy the model even though the weight error gets smaller. Evaluate before "
    "use, or choose weighted, laaciq or gptq, which take the inputs into account."
)
OBJECTIVE = "damage to minimize over languages"
PER_LAYER = (
    "the threshold that is best for the worst language of each layer may not be best for the worst language of the "
    "model: compare with objective mean"
)


@policy(reads_text=False)
def rtn(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns rounding to nearest with scales set by the largest weight of every group."""
    return plan_from_scheme("rtn", evidence, options, scheme=options.scheme)


@policy(reads_text=False)
def aciq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    distribution: Annotated[Literal["gaussian", "laplace"], Option("assumed distribution of the weights")] = "gaussian",
) -> Plan:
    """Returns Banner's thresholds: α = 2.56 σ for Gaussian weights at 4 bits, α = 5.03 b for Laplace ones."""
    one_of("distribution", distribution, ("gaussian", "laplace"))
    scheme = replace(options.scheme, clip=distribution)
    settings = {"distribution": distribution}
    return plan_from_scheme("aciq", evidence, options, scheme=scheme, settings=settings, notes=[BLIND])


@policy(reads_text=False, fixes=("grid",))
def kappa(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the research notes' thresholds α = σ·(2.5 + 0.3 ln(1 + κ)), on their symmetric grid (000-21)."""
    notes = [BLIND]
    if options.bits != 4:
        notes.append(f"the research notes give f(κ, B) for 4 bits only; its constants are used at {options.bits} too")
    if isinstance(options.group, int):
        notes.append(f"κ of {options.group} weights is far too low on average; the research notes mean κ of a layer")
    options = replace(options, grid="symmetric")
    return plan_from_scheme("kappa", evidence, options, scheme=replace(options.scheme, clip="kappa"), notes=notes)


@policy(reads_text=False)
def mse(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the exact clip: the scale with the least Σ (w − Q(w))²."""
    return plan_from_scheme("mse", evidence, options, scheme=replace(options.scheme, clip="exact"), notes=[BLIND])


@policy()
def weighted(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the exact clip of Σ_j h_j (w_j − Q(w_j))², h_j = E[x_j²], the mean of all languages."""
    return plan_from_scheme("weighted", evidence, options, scheme=input_weighted(options, "nearest"))


@policy()
def laaciq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    objective: Annotated[Objective | None, Option(OBJECTIVE, default="worst")] = None,
    language: Annotated[
        str | None, Option("clip for this language only", instead_of="objective", language=True)
    ] = None,
) -> Plan:
    """Returns the exact clip for the worst language, unless another objective is given, or for one language alone.

    The scales that each language alone would choose are saved next to the model (option A).
    """
    aim: Objective = objective or "worst"
    pi = equal_weights(evidence)
    if language is not None:
        language = find_language(language, user_codes=evidence.languages).code
        aim, pi = "mean", one_language(evidence, language)
    return plan_from_scheme(
        "laaciq",
        evidence,
        options,
        scheme=replace(options.scheme, clip="exact", objective=aim),
        pi=pi,
        thresholds=True,
        settings={"objective": aim} if language is None else {"language": language},
        notes=() if aim == "mean" else [PER_LAYER],
    )
