"""Variants: a policy with options of its own, written in one word, such as gptq:mix=english."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.errors import InputError
from fairbits.policies import takes


@dataclass(frozen=True)
class Variant:
    """A policy and the options it is told beside width and group; `name` is how it was written."""

    name: str
    policy: str
    options: Mapping[str, Any]

    def at(self, bits: int) -> dict[str, Any]:
        """Returns its options at a width; a policy that takes a mean width is given that.

        >>> variant("protect:k=2").at(4)
        {'bits': 4, 'k': 2}
        """
        width = "bits" if "bits" in takes(self.policy) else "avg_bits"
        return {width: bits, **self.options}


def variant(text: str) -> Variant:
    """Returns the policy and its options in name:option=value:…

    >>> variant("gptq:mix=english").options
    {'mix': 'english'}
    """
    policy, *given = str(text).split(":")
    known = [name for name in takes(policy) if name != "bits"]  # which is asked for beside it
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in known:
            raise InputError(
                f"{text!r:.80} says {each!r:.40} of {policy}; it must read name:option=value, "
                f"the options being {', '.join(known)}"
            )
        options[name] = _value(value)
    return Variant(str(text), policy, options)


def _value(text: str) -> int | float | str:
    """Returns a number where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
