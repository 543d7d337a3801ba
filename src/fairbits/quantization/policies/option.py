"""Policies and their options, as they are declared: help, type and default.

The flags of the command line, the checks of `decide` and the names of variants come from these declarations alone.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fairbits.core.checks import one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import WEIGHTS_ONLY, Group, Rounding, Scheme, Served, WeightGrid, named_scheme
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Calibration, Plan
from fairbits.text.mix import parse_weights


@dataclass(frozen=True)
class Option:
    """What is known of an option besides its name, type and default: it annotates a parameter of a policy."""

    help: str
    default: str = ""  # the default in words, for a parameter that is None by default
    needs: str = ""  # another option, without which this one has no effect
    instead_of: str = ""  # another option, which cannot be given together with this one
    language: bool = False  # whether the value names a language, or several
    numbers: str = "bit widths such as 4,3 or a range such as 2..8"  # what a list of numbers holds


@dataclass(frozen=True)
class PolicyOption:
    """An option of a policy. `kinds` are the types that a value may have, `default` is empty if there is none."""

    name: str
    about: Option
    kinds: tuple[Any, ...]
    default: str
    required: bool

    @classmethod
    def of(cls, name: str, annotation: Any, default: Any = Parameter.empty) -> "PolicyOption":
        """Returns the option of a parameter that is annotated with its type and an `Option`."""
        kind, about = get_args(annotation)
        union = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        kinds = tuple(kind for kind in union if kind is not NoneType)
        required = default is Parameter.empty
        return cls(name, about, kinds, about.default or ("" if required else _text(default)), required)

    @property
    def words(self) -> tuple[Any, ...]:
        return tuple(word for kind in self.kinds if get_origin(kind) is Literal for word in get_args(kind))

    def parse(self, text: str, name: str | None = None) -> Any:
        """Returns the value that a text stands for; an error names the option `name`."""
        words = {str(word): word for word in self.words}
        if text in words:
            return words[text]
        for kind in self.kinds:
            if kind is str:
                return text
            if kind in (int, float) and re.fullmatch(r"-?\d+", text):
                return int(text)
            if kind is float and re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) and text.count(".") < 2:
                return float(text)
            if get_origin(kind) is Sequence:
                strings = get_args(kind) == (str,)
                return text.split(",") if strings else parse_numbers(text, name or self.name, self.about.numbers)
            if get_origin(kind) is Mapping and "=" in text:
                return parse_weights(text)
        raise InputError(f"{name or self.name} is {text!r:.40}; it must be {' or '.join(self._forms())}")

    def _forms(self) -> Iterator[str]:
        described = {int: "a whole number", float: "a number", Mapping: "weights such as eng=2,fra=1"}
        for kind in self.kinds:
            if get_origin(kind) is Literal:
                yield from map(str, get_args(kind))
            else:
                yield described[get_origin(kind) or kind]


def parse_bits(text: str, name: str) -> list[int]:
    """Returns the bit widths in a list such as 4,3, in a range such as 2..8, or in both."""
    return parse_numbers(text, name, Option.numbers)


def parse_numbers(text: str, name: str, form: str) -> list[int]:
    """Returns the numbers in a list, in a range, or in both; an error says what `form` they must have."""
    numbers: list[int] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("..")]
        if len(ends) > 2 or not all(end.isdecimal() and len(end) <= 3 for end in ends) or int(ends[0]) > int(ends[-1]):
            raise InputError(f"{name} is {text!r:.40}; it must be {form}")
        numbers += range(int(ends[0]), int(ends[-1]) + 1)
    return numbers


def _text(default: Any) -> str:
    """Returns a default as the user would write it; nothing for None."""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


Embeddings = Literal["keep", 8, 4]
SchemeName = Literal["W4A16", "W8A16", Served]
SCHEMES: tuple[str, ...] = get_args(SchemeName)
Part = Literal["attention", "mlp", "experts", "rest"]
PARTS: tuple[Part, ...] = get_args(Part)
FLOAT_BITS = 16


@dataclass(frozen=True)
class PolicyOptions:
    """What the user chose for all policies: bits of the blocks, how many weights share a scale, and the grid.

    `embeddings` 4 means a head of 4 bits and an embedding of 8, the fewest that the format allows for it.
    """

    _: KW_ONLY
    scheme: Annotated[
        SchemeName | str | None,
        Option(
            "format that servers know, such as NVFP4, instead of bits and group; or attention=FP8_BLOCK,mlp=NVFP4",
            default="integers of --bits",
        ),
    ] = None
    bits: Annotated[int, Option("bits per weight, 2 to 8")] = 4
    group: Annotated[Group, Option("weights that share a scale: a number, channel or tensor")] = 128
    grid: Annotated[
        WeightGrid,
        Option("integer grid: twos (full two's complement), signed (the same, scales may be negative), or symmetric"),
    ] = "twos"
    embeddings: Annotated[Embeddings, Option("bits of embedding and head; 4: head 4, embedding 8")] = "keep"
    keep: Annotated[
        Sequence[int],
        Option(
            "blocks that keep the model's precision, such as 0,9,11",
            default="none",
            numbers="blocks such as 0,9,11 or 0..3",
        ),
    ] = ()
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if self.bits == FLOAT_BITS:
            raise InputError(
                f"bits is {self.bits}; weights are quantized to 2 to 8 bits: no server has integers of {FLOAT_BITS}, "
                "and at that width the model's own floating point is used. Name the blocks that should have it with "
                "keep, such as 0,9,11"
            )
        if self.scheme is not None:
            for name in dict.fromkeys(self.schemes.values()):
                one_of("scheme", name, SCHEMES)
                self._take_format(name, mixed="=" in self.scheme)
        object.__setattr__(self, "group", self.nearest.group)  # checked there, with bits and grid
        blocks = {whole("a block in keep", block, least=0) for block in sequence("keep", self.keep)}
        object.__setattr__(self, "keep", tuple(sorted(blocks)))
        if self.embeddings not in get_args(Embeddings):
            raise InputError(f"embeddings is {self.embeddings!r}; it must be keep, 8 or 4")

    @cached_property
    def schemes(self) -> Mapping[str, str]:
        """The name of the scheme of each part of a block that has one; without a scheme, of none."""
        if self.scheme is None or "=" not in self.scheme:
            return {} if self.scheme is None else dict.fromkeys(PARTS, self.scheme)
        pairs = [pair.partition("=") for pair in self.scheme.split(",")]
        names = {one_of("a part in scheme", part.strip(), PARTS): name.strip() for part, _, name in pairs}
        if len(names) < len(pairs):
            raise InputError(f"scheme is {self.scheme!r:.80}, and names a part twice: name each once")
        return names

    def scheme_of(self, part: Part) -> Scheme | None:
        """Returns how a part is rounded to nearest, with scales set by the largest weight; None if it is kept."""
        if self.scheme is None:
            return self.nearest
        return named_scheme(self.schemes[part], self.grid) if part in self.schemes else None

    def _take_format(self, name: str, *, mixed: bool) -> None:
        scheme = named_scheme(name)
        bits, group = scheme.bits, scheme.group
        if not mixed and (self.bits, self.group) not in ((PolicyOptions.bits, PolicyOptions.group), (bits, group)):
            raise InputError(
                f"scheme is {name}, which has {bits} bits and group {group}, and bits and group are {self.bits} and "
                f"{self.group}: leave them out"
            )
        if self.embeddings != "keep" and name not in WEIGHTS_ONLY:
            raise InputError(f"scheme is {name} and embeddings is {self.embeddings}; {name} keeps them: leave it out")
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "group", group)

    @property
    def nearest(self) -> Scheme:
        """Rounding to nearest with scales set by the largest weight; policies replace what they decide."""
        first = next((self.scheme_of(part) for part in PARTS if part in self.schemes), None)
        return Scheme(self.bits, self.group, "absmax", self.grid) if first is None else first


def input_weighted(options: PolicyOptions, rounding: Rounding) -> Scheme:
    """Returns the scheme of policies that decide bits or language weights only: the exact clip, weighted by inputs."""
    one_of("rounding", rounding, ("gptq", "nearest"))
    return replace(options.nearest, clip="exact", objective="mean", rounding=rounding)


COMMON = {
    option.name: PolicyOption.of(option.name, option.type, option.default)
    for option in fields(PolicyOptions)
    if get_origin(option.type) is Annotated
}
"""Options that all policies have, unless they decide one themselves."""
TOKENS = 4096


@dataclass(frozen=True)
class Policy:
    """A policy: a function of evidence and the common options, whose keyword-only parameters are its own options."""

    function: Callable[..., Plan]
    reads_text: bool = True  # whether it needs text of every language
    reads_audit: bool = False  # whether it can take κ of the blocks from an audit
    tokens: int = TOKENS  # how many tokens of every language it reads by default
    fixes: tuple[str, ...] = ()  # common options that it decides itself

    def __call__(self, evidence: Evidence, options: PolicyOptions, **extra: Any) -> Plan:
        """Returns the plan; options are not checked against each other here, see `decide`."""
        return self.function(evidence, options, **extra)

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def options(self) -> Mapping[str, PolicyOption]:
        parameters = signature(self.function).parameters.values()
        return {name: option for name, option in COMMON.items() if name not in self.fixes} | {
            parameter.name: PolicyOption.of(parameter.name, parameter.annotation, parameter.default)
            for parameter in parameters
            if parameter.kind is Parameter.KEYWORD_ONLY
        }

    @cached_property
    def bits_options(self) -> tuple[str, ...]:
        """The options that set the bits of the weights: bits, or what this policy takes instead of them."""
        return tuple(name for name, option in self.options.items() if "bits" in (name, option.about.instead_of))


def policy(
    *, reads_text: bool = True, reads_audit: bool = False, tokens: int = TOKENS, fixes: tuple[str, ...] = ()
) -> Callable[[Callable[..., Plan]], Policy]:
    """Returns a decorator that makes a policy of a function."""
    return lambda function: Policy(function, reads_text, reads_audit, tokens, fixes)
