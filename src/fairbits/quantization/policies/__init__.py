"""READ FIRST. The policies: each a short function from what is known of a model to a Plan.

To add one, write its function in a module here, declare it with `@policy` and add it to POLICIES. Its keyword-only
parameters are its options: the command line, the checks below and the names of variants are made from them.

The default is gptq with equal weights. Policies that decide bits use its rounding, so that they differ from it in
bits alone. A policy checks its options before it requests evidence, which takes time.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Calibration, Plan
from fairbits.quantization.policies.auto import auto
from fairbits.quantization.policies.clipping import aciq, kappa, laaciq, mse, rtn, weighted
from fairbits.quantization.policies.fair import fair
from fairbits.quantization.policies.gptq import gptq
from fairbits.quantization.policies.option import COMMON, Policy, PolicyOptions
from fairbits.quantization.policies.plan_from_scheme import check_layers
from fairbits.quantization.policies.precision import allocate, gateway, mixed, protect

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        *(rtn, aciq, kappa, mse),  # clip by the weights alone, round to nearest
        *(weighted, laaciq),  # clip by weights and inputs, round to nearest
        *(mixed, allocate, gateway, protect),  # bits of every block
        *(gptq, fair),  # errors compensated by other weights; codes learned
        auto,  # chooses one of the others
    )
}
DEFAULT = gptq.name


def find_policy(name: str) -> Policy:
    """Returns the policy of a name."""
    return POLICIES[one_of("policy", name, tuple(POLICIES))]


def check(policy: str, chosen: Mapping[str, Any], *, spell: Callable[[str], str] = str) -> None:
    """Raises if a policy cannot be given the chosen options; `spell` returns how the user writes an option."""
    options = find_policy(policy).options
    for name in chosen:
        if name not in options:
            allowed = ", ".join(map(spell, options))
            raise InputError(f"{policy} does not take {spell(name)}{_takers(name)}; it takes {allowed}")
    for name, option in options.items():
        about = option.about
        if option.required and name not in chosen:
            raise InputError(f"{policy} needs {spell(name)}: {about.help}")
        if name in chosen and about.instead_of in chosen:
            both = [f"{spell(option)} {chosen[option]}" for option in (about.instead_of, name)]
            raise InputError(f"{policy} was given {' and '.join(both)}; give only one of them")
        if name in chosen and about.needs and about.needs not in chosen:
            needed = f"{spell(about.needs)}, {options[about.needs].about.help}"
            raise InputError(f"{policy} takes {spell(name)} only with {needed}")


class EvidenceRequested(Exception):  # noqa: N818  # not an error: the policy has checked its options
    """A policy asked for evidence that is not there yet."""


class NoEvidence:
    """Stands for a model that has not been opened."""

    def __getattr__(self, _: str) -> Any:
        raise EvidenceRequested


def check_values(policy: str, chosen: Mapping[str, Any], *, spell: Callable[[str], str] = str) -> None:
    """Raises if a policy refuses the chosen options whatever the model is."""
    check(policy, chosen, spell=spell)
    evidence: Any = NoEvidence()
    common, special = _split(chosen)
    with suppress(EvidenceRequested):
        find_policy(policy)(evidence, PolicyOptions(**common), **special)


def check_reads_audit(policy: str) -> None:
    """Raises if a policy takes nothing from an audit."""
    if not find_policy(policy).reads_audit:
        readers = ", ".join(reader.name for reader in POLICIES.values() if reader.reads_audit)
        raise InputError(f"{policy} takes nothing from an audit, only {readers} does: leave the audit out")


def decide(policy: str, evidence: Evidence, *, calibration: Calibration | None = None, **chosen: Any) -> Plan:
    """Returns the plan of a policy with the chosen options; options that it does not take are refused."""
    check(policy, chosen)
    common, special = _split(chosen)
    options = PolicyOptions(**common, calibration=calibration)
    check_layers(evidence, options)
    function = find_policy(policy)
    if calibration is None and function.reads_text:
        raise InputError(f"{policy} needs text of every language: name languages, or give text")
    return function(evidence, options, **special)


def _split(chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options that all policies have, and the others."""
    common = {name: value for name, value in chosen.items() if name in COMMON}
    return common, {name: value for name, value in chosen.items() if name not in COMMON}


def _takers(option: str) -> str:
    """Returns which policies take an option, in brackets; nothing if none does."""
    takers = [policy.name for policy in POLICIES.values() if option in policy.options]
    if len(takers) == len(POLICIES) - 1:
        return " (all others do)"
    return f" ({', '.join(takers)} {'does' if len(takers) == 1 else 'do'})" if takers else ""
