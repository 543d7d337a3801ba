"""Policies of clipping: the scale of each group of weights; every weight is then rounded to the nearest code."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, get_args

from fairbits.core.checks import one_of
from fairbits.models.scales.scheme import Objective
from fairbits.quantization.evidence import Evidence, Form
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
FORMS = "LA-ACIQ as written: global (σ·f(κ_eff), one α for all layers) or product (α of w ⊙ a, per layer)"
FORM_NOTES: Mapping[Form, str] = {
    "global": "LA-ACIQ as Prop. 1 of the research notes writes it, σ·f(κ_eff) of all weights",
    "product": "LA-ACIQ as theorem 2 of the research notes writes it, the α of w ⊙ a, used on w",
}
AS_WRITTEN = (
    "LA-ACIQ as written does not minimise the error of what a layer computes: evaluate before use, or leave --form out"
)
PER_LAYER = (
    "the threshold that is best for the worst language of each layer may not be best for the worst language of the "
    "model: compare with objective mean"
)


@policy(reads_text=False)
def rtn(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns rounding to nearest with scales set by the largest weight of every group."""
    return plan_from_scheme("rtn", evidence, options, scheme=options.nearest)


@policy(reads_text=False, fixes=("scheme",))
def aciq(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    distribution: Annotated[Literal["gaussian", "laplace"], Option("assumed distribution of the weights")] = "gaussian",
) -> Plan:
    """Returns Banner's thresholds: α = 2.56 σ for Gaussian weights at 4 bits, α = 5.03 b for Laplace ones."""
    one_of("distribution", distribution, ("gaussian", "laplace"))
    scheme = replace(options.nearest, clip=distribution)
    settings = {"distribution": distribution}
    return plan_from_scheme("aciq", evidence, options, scheme=scheme, settings=settings, notes=[BLIND])


@policy(reads_text=False, fixes=("scheme", "grid"))
def kappa(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the research notes' thresholds α = σ·(2.5 + 0.3 ln(1 + κ)), on their symmetric grid (000-21)."""
    notes = [BLIND]
    if options.bits != 4:
        notes.append(f"the research notes give f(κ, B) for 4 bits only; its constants are used at {options.bits} too")
    if isinstance(options.group, int):
        notes.append(f"κ of {options.group} weights is far too low on average; the research notes mean κ of a layer")
    options = replace(options, grid="symmetric")
    return plan_from_scheme("kappa", evidence, options, scheme=replace(options.nearest, clip="kappa"), notes=notes)


@policy(reads_text=False)
def mse(evidence: Evidence, options: PolicyOptions) -> Plan:
    """Returns the exact clip: the scale with the least Σ (w − Q(w))²."""
    return plan_from_scheme("mse", evidence, options, scheme=replace(options.nearest, clip="exact"), notes=[BLIND])


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
    form: Annotated[Form | None, Option(FORMS, default="exact", instead_of="objective")] = None,
) -> Plan:
    """Returns the exact clip for the worst language, unless another objective is given, or for one language alone.

    The scales that each language alone would choose are saved next to the model (option A). With a `form`, the clip of
    LA-ACIQ as the research notes write it, for one language, or the mean threshold of all languages.
    """
    aim: Objective = objective or "worst"
    pi = equal_weights(evidence)
    if language is not None:
        language = find_language(language, user_codes=evidence.languages).code
        aim, pi = "mean", one_language(evidence, language)
    if form is not None:
        settings = {"form": one_of("form", form, get_args(Form))} | ({} if language is None else {"language": language})
        return _as_written(evidence, options, form=form, pi=pi, settings=settings)
    return plan_from_scheme(
        "laaciq",
        evidence,
        options,
        scheme=replace(options.nearest, clip="exact", objective=aim),
        pi=pi,
        thresholds=True,
        settings={"objective": aim} if language is None else {"language": language},
        notes=() if aim == "mean" else [PER_LAYER],
    )


def _as_written(
    evidence: Evidence, options: PolicyOptions, *, form: Form, pi: Mapping[str, float], settings: Mapping[str, str]
) -> Plan:
    """Returns the plan with the thresholds Σ_λ π_λ α(λ) of a form, on the symmetric grid (000-22, 004-19).

    A layer without a threshold, because its input cannot be observed or is 0, is not clipped.
    """
    options = replace(options, grid="symmetric", group="tensor")
    thresholds = evidence.alphas(form, options.bits)
    alphas = {name: sum(pi[code] * alpha for code, alpha in by.items()) for name, by in thresholds.items()}
    plan = plan_from_scheme("laaciq", evidence, options, scheme=options.nearest, pi=pi, settings=settings)
    clipped = [layer for layer in plan.layers if layer.scheme is not None and layer.block is not None]
    used = {layer.name: alpha for layer in clipped if (alpha := alphas.get(layer.name, 0.0)) > 0}
    ends = sorted({f"{alpha:.4g}" for alpha in used.values()}, key=float)
    notes = [
        f"{FORM_NOTES[form]}: α = {' to '.join(ends[:: max(len(ends) - 1, 1)])} on the symmetric grid, one scale per "
        "tensor, whatever --group and --grid are",
        AS_WRITTEN,
    ]
    if form == "global" and options.bits != 4:
        notes.append(f"the research notes give f(κ, B) for 4 bits only; its constants are used at {options.bits} too")
    if len(used) < len(clipped):
        left_out = f"{len(clipped) - len(used)} layers have no threshold: their input cannot be observed"
        notes.append(f"{left_out}, so their largest weights set the scale")
    layers = tuple(
        replace(layer, scheme=replace(layer.scheme, clip=used[layer.name]))
        if layer.scheme is not None and layer.name in used
        else layer
        for layer in plan.layers
    )
    return replace(plan, layers=layers, notes=(*plan.notes, *notes))
