"""Variants: a policy with options of its own, written in one word, such as gptq:mix=english."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.core.errors import InputError
from fairbits.quantization.policies import find_policy


@dataclass(frozen=True)
class Variant:
    """A policy and its options apart from the width; `name` is how the user wrote it."""

    name: str
    policy: str
    options: Mapping[str, Any]

    @property
    def reads_text(self) -> bool:
        """Whether the policy needs text of every language."""
        return find_policy(self.policy).reads_text

    def at(self, bits: int) -> dict[str, Any]:
        """Returns its options at a width; a policy that takes a mean width instead of bits is given that.

        >>> variant("protect:k=2").at(4), variant("allocate").at(4)
        ({'bits': 4, 'k': 2}, {'avg_bits': 4})
        """
        widths = find_policy(self.policy).width_options
        return {next((name for name in widths if name in self.options), widths[0]): bits, **self.options}


def variant(text: str) -> Variant:
    """Returns the policy and its options in name:option=value:…; the parts of a list are joined by plus signs.

    >>> variant("gptq:mix=english").options, variant("gptq:mix=eng=2+fra=1").options
    ({'mix': 'english'}, {'mix': {'eng': 2.0, 'fra': 1.0}})
    """
    policy, *given = str(text).split(":")
    found = find_policy(policy)
    known = [name for name in found.options if name != found.width_options[0]]  # which every caller sets
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in known:
            raise InputError(
                f"{text!r:.80} has {each!r:.40} after {policy}; it must have the form name:option=value, "
                f"where the options are {', '.join(known)}"
            )
        options[name] = found.options[name].value_of(value.replace("+", ","), f"{name} in {text!r:.80}")
    return Variant(str(text), policy, options)
