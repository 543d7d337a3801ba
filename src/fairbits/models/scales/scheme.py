"""Scheme: how a linear layer is rounded. Nothing here needs torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError

Group = int | Literal["channel", "tensor"]
ClipRule = Literal["absmax", "gaussian", "laplace", "kappa", "exact"]
Clip = ClipRule | float
WeightGrid = Literal["symmetric", "twos", "signed"]
Objective = Literal["mean", "worst", "regret"]
Rounding = Literal["nearest", "gptq"]
BYTE_BITS = 8
"""The bits of what is stored in whole bytes: the only ones that an embedding can have."""


def within_rows(group: Group) -> Group:
    """Returns the group; "channel" if the whole tensor shares a scale."""
    return "channel" if group == "tensor" else group


@dataclass(frozen=True)
class Scheme:
    """How a linear layer is rounded to whole numbers of `bits` bits.

    `group`      how many neighbouring weights of a row share a scale; "channel": all of a row; "tensor": all
    `clip`       how the scale of a group is chosen. "absmax": by the largest weight, see `grid`; "gaussian" and
                 "laplace": Banner's closed forms; "kappa": the formula of the research notes; "exact": the least
                 squared error; a number: this threshold α, whatever the weights are
    `grid`       "symmetric": codes −n … n, n = 2^(bits−1) − 1; under absmax the scale is max|w|/n, and the largest
                 weight is a level. "twos": all codes of two's complement, −n − 1 … n; under absmax the scale is
                 max|w|/(n + ½), and the largest weight is half a scale from its level. "signed": the codes of
                 "twos" with scales of either sign, so that code −n − 1 serves the side that needs it
    `objective`  how languages enter the exact clip, whose errors are then weighted by E[x²] of each input: by their
                 mean, the worst of them, or the worst regret; None: all weights count equally
    `rounding`   "nearest", or "gptq": the weights that follow compensate for the error of each weight
    """

    bits: int = 4
    group: Group = 128
    clip: Clip = "absmax"
    grid: WeightGrid = "symmetric"
    objective: Objective | None = None
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        whole("bits", self.bits, least=2, most=8)
        if isinstance(self.group, str):
            one_of("group", self.group, ("channel", "tensor"))
        else:
            whole("group", self.group, least=2)
        if isinstance(self.clip, str):
            one_of("clip", self.clip, get_args(ClipRule))
        else:
            object.__setattr__(self, "clip", in_range("clip", self.clip, above=0))
        one_of("grid", self.grid, get_args(WeightGrid))
        one_of("rounding", self.rounding, get_args(Rounding))
        if self.objective is not None:
            one_of("objective", self.objective, get_args(Objective))
            if self.clip != "exact":
                raise InputError(
                    f"clip is {self.clip!r} and objective is {self.objective!r}; only the exact clip can weigh "
                    "languages: use it, or omit the objective"
                )

    @property
    def name(self) -> str:
        where = f"group {self.group}" if isinstance(self.group, int) else f"per {self.group}"
        clip = (
            "exact clip" if self.clip == "exact" else self.clip if isinstance(self.clip, str) else f"α={self.clip:.4g}"
        )
        grid = "" if self.grid == "symmetric" else f" on {self.grid}"
        objective = "" if self.objective is None else f", {self.objective} of languages"
        rounding = "" if self.rounding == "nearest" else f", {self.rounding}"
        return f"W{self.bits} {where} {clip}{grid}{objective}{rounding}"

    @property
    def reads_text(self) -> bool:
        return self.objective is not None or self.rounding == "gptq"

    @property
    def group_size(self) -> int | None:
        return self.group if isinstance(self.group, int) else None

    @property
    def as_stored(self) -> "Scheme":
        """The simplest scheme with the same form in a file; one scale of a tensor is repeated for each row."""
        return Scheme(self.bits, within_rows(self.group))

    def fits(self, columns: int) -> bool:
        return self.group_size is None or columns % self.group_size == 0

    def groups(self, columns: int) -> int:
        if not self.fits(columns):
            raise InputError(
                f"rows of {columns} weights cannot be cut into groups of {self.group}; "
                "the group must divide the inputs of every layer: choose a smaller one, or one scale per channel"
            )
        return 1 if self.group_size is None else columns // self.group_size
