"""Policy: a function from evidence to a plan, and all that is known of it. Nothing here needs torch.

The flags of the command line, the checks of `decide` and the names of variants come from these declarations alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, get_origin

from fairbits.quantization.evidence import Evidence
from fairbits.quantization.policies.option import PolicyOption, PolicyOptions

if TYPE_CHECKING:
    from fairbits.quantization.plan import Plan

COMMON = {
    each.name: PolicyOption.of(each.name, each.type, each.default)
    for each in fields(PolicyOptions)
    if get_origin(each.type) is Annotated
}
"""Options that all policies have, unless they decide one themselves."""
TOKENS = 4096


@dataclass(frozen=True)
class Policy:
    """A policy: a function of evidence and the common options, whose keyword-only parameters are its own options.

    `reads_text`   whether it needs text of every language
    `reads_audit`  whether it can take κ of the blocks from an audit
    `tokens`       how many tokens of every language it reads by default
    `fixes`        common options that it decides itself
    """

    function: Callable[..., "Plan"]
    reads_text: bool = True
    reads_audit: bool = False
    tokens: int = TOKENS
    fixes: tuple[str, ...] = ()

    def __call__(self, evidence: Evidence, options: PolicyOptions, **own: Any) -> "Plan":
        """Returns the plan; options are not checked against each other here, see `decide`."""
        return self.function(evidence, options, **own)

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.function.__name__

    @cached_property
    def options(self) -> Mapping[str, PolicyOption]:
        """The common options that it does not fix, then its own."""
        own = {
            name: PolicyOption.of(name, each.annotation, each.default)
            for name, each in signature(self.function).parameters.items()
            if each.kind is Parameter.KEYWORD_ONLY
        }
        return {name: each for name, each in COMMON.items() if name not in self.fixes} | own

    @cached_property
    def width_options(self) -> tuple[str, ...]:
        """The options that set the width of the weights: bits, or what this policy takes instead of them."""
        return tuple(name for name, each in self.options.items() if "bits" in (name, each.about.instead_of))


def policy(
    *, reads_text: bool = True, reads_audit: bool = False, tokens: int = TOKENS, fixes: tuple[str, ...] = ()
) -> Callable[[Callable[..., "Plan"]], Policy]:
    """Returns a decorator that makes a policy of a function."""

    def declare(function: Callable[..., "Plan"]) -> Policy:
        return Policy(function, reads_text, reads_audit, tokens, fixes)

    return declare
