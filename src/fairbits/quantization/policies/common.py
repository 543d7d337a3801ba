"""Options that all policies have. Nothing here needs torch."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.model.scheme import Group, Rounding, Scheme, WeightGrid
from fairbits.quantization.policies.option import Option

if TYPE_CHECKING:
    from fairbits.quantization.plan import Calibration

Embeddings = Literal["keep", 8, 4]


@dataclass(frozen=True)
class PolicyOptions:
    """What the user chose for all policies: bits of the blocks, how many weights share a scale, and the grid.

    `embeddings` are the bits of embedding and head. 4 means a head of 4 bits and an embedding of 8, the fewest that the
    format allows for it.
    `calibration` is the text that the plan will be executed with. Policies that read no text can be given it as well:
    the error of every language is then measured layer by layer.
    """

    _: KW_ONLY
    bits: Annotated[int, Option("bits per weight, 2 to 8")] = 4
    group: Annotated[Group, Option("number of weights that share a scale; or channel; or tensor")] = 128
    grid: Annotated[WeightGrid, Option("codes: all of two's complement, or symmetric ones")] = "twos"
    embeddings: Annotated[Embeddings, Option("bits of embedding and head; 4: head 4, embedding 8")] = "keep"
    calibration: "Calibration | None" = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.scheme.group)  # checked there, with bits and grid
        if self.embeddings not in ("keep", 8, 4):
            raise InputError(f"embeddings is {self.embeddings!r}; it must be keep, 8 or 4")

    @property
    def scheme(self) -> Scheme:
        """Rounding to nearest with the largest weight of every group as a level; policies replace what they decide."""
        return Scheme(self.bits, self.group, "absmax", self.grid)


def input_weighted(options: PolicyOptions, rounding: Rounding) -> Scheme:
    """Returns the scheme of policies that decide widths or weights of languages only: the exact clip, weighted."""
    one_of("rounding", rounding, ("gptq", "nearest"))
    return replace(options.scheme, clip="exact", objective="mean", rounding=rounding)


def with_all_text(options: PolicyOptions, *, count: int) -> PolicyOptions:
    """Returns options in which one language has the tokens of `count` languages: mixes differ, budgets do not."""
    asked = options.calibration
    return options if asked is None else replace(options, calibration=replace(asked, tokens=count * asked.tokens))
