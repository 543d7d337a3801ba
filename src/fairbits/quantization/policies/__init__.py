"""READ FIRST. The policies: each a short function from what is known of a model to a Plan.

To add one, write its function in a module here, declare it with `@policy` and add it to POLICIES. Its keyword-only
parameters are its options: the command line, the checks below and the names of variants are made from them.

The default is gptq with equal weights. Policies that decide widths use its rounding, so that they differ from it in
widths alone. A policy checks its options before it requests evidence, which takes time. Importing this package
does not import torch.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.policies.clipping import aciq, kappa, laaciq, mse, rtn, weighted
from fairbits.quantization.policies.fair import fair
from fairbits.quantization.policies.gptq import Mixture, gptq
from fairbits.quantization.policies.option import COMMON, Embeddings, Policy, PolicyOptions
from fairbits.quantization.policies.precision import allocate, gateway, mixed, protect

if TYPE_CHECKING:
    from fairbits.quantization.plan import Calibration, Plan

__all__ = [
    "COMMON",
    "DEFAULT",
    "POLICIES",
    "Embeddings",
    "Mixture",
    "Policy",
    "PolicyOptions",
    "check",
    "decide",
    "find_policy",
]

POLICIES: Mapping[str, Policy] = {
    each.name: each
    for each in (
        *(rtn, aciq, kappa, mse),  # clip by the weights alone, round to nearest
        *(weighted, laaciq),  # clip by weights and inputs, round to nearest
        *(mixed, allocate, gateway, protect),  # bits of every block
        *(gptq, fair),  # errors compensated by other weights; codes learned
    )
}
DEFAULT = gptq.name


def find_policy(name: str) -> Policy:
    """Returns the policy of a name."""
    return POLICIES[one_of("policy", name, tuple(POLICIES))]


def check(policy: str, given: Mapping[str, Any], *, spell: Callable[[str], str] = str) -> None:
    """Raises if a policy does not take one of these options, lacks one, or takes one only with another.

    `spell` returns how the user writes an option.
    """
    options = find_policy(policy).options
    for name in given:
        if name not in options:
            known = ", ".join(map(spell, options))
            raise InputError(f"{policy} takes no {spell(name)}{_others(name)}; it takes {known}")
    for name, option in options.items():
        about = option.about
        if option.required and name not in given:
            raise InputError(f"{policy} needs {spell(name)}: {about.help}")
        if name in given and about.instead_of in given:
            both = [f"{spell(each)} {given[each]}" for each in (about.instead_of, name)]
            raise InputError(f"{policy} was given {' and '.join(both)}; give one of them")
        if name in given and about.needs and about.needs not in given:
            needed = f"{spell(about.needs)}, {options[about.needs].about.help}"
            raise InputError(f"{policy} takes {spell(name)} only with {needed}")


def decide(policy: str, evidence: Evidence, *, calibration: "Calibration | None" = None, **given: Any) -> "Plan":
    """Returns the plan of a policy with these options; options that it does not take are refused."""
    from fairbits.quantization.policies.plan_from_scheme import check_embeddings, check_groups  # heavy: only to decide

    check(policy, given)
    common = {name: value for name, value in given.items() if name in COMMON}
    own = {name: value for name, value in given.items() if name not in COMMON}
    options = PolicyOptions(**common, calibration=calibration)
    check_groups(evidence, options)
    check_embeddings(evidence, options)
    found = find_policy(policy)
    if calibration is None and found.reads_text:
        raise InputError(f"{policy} reads text of every language: name languages, or give text")
    return found(evidence, options, **own)


def _others(option: str) -> str:
    """Returns which policies take an option, in brackets; nothing if none does.

    >>> _others("avg_bits"), _others("objective")
    (' (allocate, fair do)', ' (laaciq, allocate, protect, fair do)')
    """
    takers = [policy.name for policy in POLICIES.values() if option in policy.options]
    if len(takers) == len(POLICIES) - 1:
        return " (all others do)"
    return f" ({', '.join(takers)} {'does' if len(takers) == 1 else 'do'})" if takers else ""
