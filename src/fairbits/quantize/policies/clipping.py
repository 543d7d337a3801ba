"""Policies of clipping: which scale each group of weights has; every weight goes to its nearest code."""

from dataclasses import replace
from typing import Literal

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.language.lookup import find_language
from fairbits.model.scheme import Objective
from fairbits.quantize.evidence import Evidence
from fairbits.quantize.plan import Plan
from fairbits.quantize.policies.assemble import PolicyOptions, assemble, equal_mix, input_weighted, one_language

BLIND = (
    "This policy clips without knowing what the model does with its weights. In real language models a few of the "
    "largest weights are vital: cutting them off can destroy the model although the error of its weights gets smaller. "
    "Evaluate before use, or take weighted, laaciq or gptq, which look at the inputs."
)
PER_LAYER = (
    "the threshold that serves the worst language of each layer need not serve the worst language of the model: "
    "compare with objective mean"
)


def rtn(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns rounding to nearest with the largest weight of every group as a level."""
    return assemble("rtn", evidence, options, scheme=options.scheme)


def aciq(evidence: Evidence, options: PolicyOptions, *, law: Literal["gaussian", "laplace"] = "gaussian") -> Plan:
    """Returns Banner's thresholds: α = 2.56 σ for Gaussian weights at 4 bits, α = 5.03 b for Laplace ones."""
    one_of("law", law, ("gaussian", "laplace"))
    scheme = replace(options.scheme, clip=law)
    return assemble("aciq", evidence, options, scheme=scheme, settings={"law": law}, notes=[BLIND])


def kappa(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the founding documents' thresholds α = σ·(2.5 + 0.3 ln(1 + κ)), on their symmetric grid (000-21)."""
    notes = [BLIND]
    if options.bits != 4:
        notes.append(
            f"the founding documents give f(κ, B) for 4 bits only; its constants are used at {options.bits} too"
        )
    if isinstance(options.group, int):
        notes.append(f"κ of {options.group} weights is far too low on average; the documents mean κ of a layer")
    own = replace(options, grid="symmetric")
    return assemble("kappa", evidence, own, scheme=replace(own.scheme, clip="kappa"), notes=notes)


def mse(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the exact clip: of all scales the one with the least Σ (w − Q(w))²."""
    return assemble("mse", evidence, options, scheme=replace(options.scheme, clip="exact"), notes=[BLIND])


def weighted(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the exact clip of Σ_j h_j (w_j − Q(w_j))², h_j = E[x_j²], the mean of all languages."""
    return assemble("weighted", evidence, options, scheme=input_weighted(options, "nearest"))


def laaciq(
    evidence: Evidence, options: PolicyOptions, *, objective: Objective | None = None, language: str | None = None
) -> Plan:
    """Returns the exact clip for the worst language, unless another objective is given, or for one language alone.

    The scales that each language alone would choose are saved beside the model (option A).
    """
    if language is None:
        aim, pi = objective or "worst", equal_mix(evidence)
    elif objective is None:
        language = find_language(language, own=evidence.languages).code
        aim, pi = "mean", one_language(evidence, language)
    else:
        raise InputError(f"objective {objective} and language {language} were given; one language has no objective")
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
