"""READ FIRST. The policies: each a short function from what is known of a model to a Plan.

| policy   | what it does                                                             | reads text |
|----------|--------------------------------------------------------------------------|------------|
| rtn      | the largest weight is a level, the others go to the nearest              | no         |
| aciq     | Banner's closed forms for Gaussian and Laplace weights                   | no         |
| kappa    | the founding documents' α = σ·(2.5 + 0.3 ln(1 + κ))                      | no         |
| mse      | the exact clip: the scale of least squared error                         | no         |
| weighted | the exact clip, every weight counting with E[x²] of its input            | yes        |
| laaciq   | the same for the mean, the worst or the worst regret of languages, or one | yes        |
| mixed    | 8 bits where κ_l > τ, else 4 (option B of the founding documents)        | yes        |
| allocate | bits per block within a size budget, by what each block costs each language | yes     |
| gateway  | first and last block and the bottleneck at 8 bits (their theorem 3)      | yes        |
| protect  | the k blocks at 8 bits whose protection helps most, as measured          | yes        |
| gptq     | errors are made up for by later weights, under a mixture of languages    | yes        |
| fair     | gptq, whose codes and scales are then learned for the worst language     | yes        |

The default is gptq with equal weights. Policies of widths are carried out with its rounding, so that they differ from
it in widths alone. Every policy takes `PolicyOptions`; its other options are in its signature, and `decide` refuses
the rest. A policy checks all of them before it requests evidence, which takes time.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.quantize.evidence import Evidence
from fairbits.quantize.plan import Calibration, Plan
from fairbits.quantize.policies.assemble import Embeddings, PolicyOptions, check_embeddings, check_groups
from fairbits.quantize.policies.clipping import aciq, kappa, laaciq, mse, rtn, weighted
from fairbits.quantize.policies.fair import fair
from fairbits.quantize.policies.gptq import Mixture, gptq
from fairbits.quantize.policies.precision import allocate, gateway, mixed, protect

__all__ = [
    "DEFAULT",
    "POLICIES",
    "Embeddings",
    "Mixture",
    "PolicyOptions",
    "aciq",
    "allocate",
    "check",
    "decide",
    "fair",
    "gateway",
    "gptq",
    "kappa",
    "laaciq",
    "mixed",
    "mse",
    "protect",
    "reads_text",
    "rtn",
    "takes",
    "weighted",
]

DEFAULT = "gptq"
POLICIES: Mapping[str, Callable[..., Plan]] = {
    each.__name__: each
    for each in (rtn, aciq, kappa, mse, weighted, laaciq, mixed, allocate, gateway, protect, gptq, fair)
}
WITHOUT_TEXT = (rtn, aciq, kappa, mse)
TOKENS = 4096
FIXED = {"kappa": {"grid"}, "allocate": {"bits"}}
"""Options that a policy sets by itself."""


def reads_text(policy: str) -> bool:
    """Returns whether a policy needs text of every language."""
    return POLICIES[one_of("policy", policy, tuple(POLICIES))] not in WITHOUT_TEXT


def tokens_for(policy: str) -> int:
    """Returns how many tokens of every language a policy reads if nobody says it."""
    return 4 * TOKENS if policy == "fair" else TOKENS


def takes(policy: str) -> tuple[str, ...]:
    """Returns the names of what a policy can be told.

    >>> takes("aciq")
    ('bits', 'group', 'grid', 'embeddings', 'law')
    """
    one_of("policy", policy, tuple(POLICIES))
    common = [each.name for each in fields(PolicyOptions) if each.name != "calibration"]
    own = [name for name, each in signature(POLICIES[policy]).parameters.items() if each.kind is Parameter.KEYWORD_ONLY]
    return tuple(name for name in (*common, *own) if name not in FIXED.get(policy, ()))


def check(policy: str, told: Mapping[str, Any]) -> None:
    """Raises if a policy does not take one of these options, or lacks one."""
    known = takes(policy)
    for name in told:
        if name not in known:
            raise InputError(f"{policy} takes no {name}{_others(name)}; it takes {', '.join(known)}")
    if policy == "allocate" and "avg_bits" not in told:
        raise InputError("allocate needs avg_bits, the mean width of the blocks' weights, such as 4.25")
    if "bits" in told and "avg_bits" in told:
        raise InputError(f"{policy} is told bits {told['bits']} and avg_bits {told['avg_bits']}; it takes one of them")
    allocation = [name for name in ("widths", "sensitivity") if name in told]
    if policy == "fair" and allocation and "avg_bits" not in told:
        raise InputError(f"fair takes {allocation[0]} only with avg_bits, the mean width of the blocks' weights")


def decide(policy: str, evidence: Evidence, *, calibration: Calibration | None = None, **told: Any) -> Plan:
    """Returns the plan of a policy that is told these options; those that it does not take are refused."""
    check(policy, told)
    common = {name: value for name, value in told.items() if name in PolicyOptions.__dataclass_fields__}
    own = {name: value for name, value in told.items() if name not in common}
    options = PolicyOptions(**common, calibration=calibration)
    check_groups(evidence, options)
    check_embeddings(evidence, options)
    if calibration is None and reads_text(policy):
        raise InputError(f"{policy} reads text of every language: name languages, or give text")
    return POLICIES[policy](evidence, options, **own)


def _others(option: str) -> str:
    """Returns which policies take an option, in brackets; nothing if none does.

    >>> _others("avg_bits"), _others("objective")
    (' (allocate, fair do)', ' (laaciq, allocate, protect, fair do)')
    """
    takers = [policy for policy in POLICIES if option in takes(policy)]
    if len(takers) == len(POLICIES) - 1:
        return " (all others do)"
    return f" ({', '.join(takers)} {'does' if len(takers) == 1 else 'do'})" if takers else ""
