"""Variants: a policy with some of its options, written in one word, such as gptq:mix=english."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import FORMATS
from fairbits.quantization.policies import find_policy
from fairbits.quantization.policies.option import PolicyOptions

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Variant:
    """A policy and its options without the bits; `name` is how the user wrote it."""

    name: str
    policy: str
    options: Mapping[str, Any]

    @property
    def bits(self) -> int | None:
        """The bits of its scheme, which decides them; None without one."""
        return PolicyOptions(scheme=self.options["scheme"]).bits if "scheme" in self.options else None

    def bits_or(self, bits: int) -> int:
        """Returns the bits of its scheme, instead of the default; without a scheme, the given ones."""
        return bits if self.bits is None or bits != PolicyOptions.bits else self.bits

    @property
    def reads_text(self) -> bool:
        formats = [FORMATS[name] for name in self._schemes.values() if name in FORMATS]
        return find_policy(self.policy).reads_text or any(format.inputs == "static" for format in formats)

    @property
    def rounds_experts(self) -> bool:
        """Whether its scheme rounds the inputs of experts."""
        format = FORMATS.get(self._schemes.get("experts", ""))
        return format is not None and format.inputs != "kept"

    @property
    def _schemes(self) -> Mapping[str, str]:
        return PolicyOptions(scheme=self.options.get("scheme")).schemes

    def at(self, bits: int, common: Mapping[str, Any] = NO_OPTIONS) -> dict[str, Any]:
        """Returns its options and `common` ones at a number of bits; a policy that takes mean bits is given these."""
        if self.bits is not None:
            if self.bits != bits:
                raise InputError(f"{self.name} has {self.bits} bits, and not {bits}: give --bits {self.bits}")
            return {name: value for name, value in common.items() if name != "group"} | dict(self.options)
        names = find_policy(self.policy).bits_options
        return {**common, next((name for name in names if name in self.options), names[0]): bits, **self.options}


def with_options(
    text: str, options: Mapping[str, Any], *, spell: Callable[[str], str] = str
) -> tuple[str, dict[str, Any]]:
    """Returns the policy of name:option=value:… and its options with more `options`, which may not contradict them."""
    chosen = variant(text)
    for name, value in chosen.options.items():
        if options.get(name, value) != value:
            raise InputError(f"policy is {text!r:.80}, and {spell(name)} is {options[name]!s:.40}; give one of the two")
    return chosen.policy, {**chosen.options, **options}


def variant(text: str) -> Variant:
    """Returns the policy and its options in name:option=value:…; the parts of a list are joined by plus signs."""
    name, *parts = str(text).split(":")
    policy = find_policy(name)
    allowed = [option for option in policy.options if option != policy.bits_options[0]]  # which every caller sets
    options: dict[str, Any] = {}
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals or option not in allowed:
            raise InputError(
                f"{text!r:.80} has {part!r:.40} after {name}; it must have the form name:option=value, "
                f"where the options are {', '.join(allowed)}"
            )
        options[option] = policy.options[option].parse(value.replace("+", ","), f"{option} in {text!r:.80}")
    return Variant(str(text), name, options)
