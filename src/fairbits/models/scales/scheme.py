"""Scheme: how a linear layer is rounded. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError

Group = int | Literal["channel", "tensor", "block"]
ClipRule = Literal["absmax", "gaussian", "laplace", "kappa", "exact"]
Clip = ClipRule | float
WeightGrid = Literal["symmetric", "twos", "signed"]
Objective = Literal["mean", "worst", "regret"]
Rounding = Literal["nearest", "gptq"]
BYTE_BITS = 8
"""The bits of what is stored in whole bytes: the only ones that an embedding can have."""
BLOCK_SIZE = 128  # rows and columns that share a scale in a block
Numbers = Literal["int", "e2m1", "e4m3"]
ScaleNumbers = Literal["model", "e4m3", "e8m0"]
Inputs = Literal["kept", "dynamic", "static"]
Served = Literal[
    "W8A8",
    "W4AFP8",
    "FP8_DYNAMIC",
    "FP8",
    "FP8_BLOCK",
    "NVFP4",
    "NVFP4A16",
    "MXFP4",
    "MXFP4A16",
    "MXFP8",
    "MXFP8A16",
]
FormatName = Literal["integer", Served]


@dataclass(frozen=True)
class Format:
    """What servers know by a name: the numbers that weights are rounded to, their scales, and the inputs of layers.

    `scales`  "model": in the type of the model; "e4m3": in 8 bits, with one more scale for the whole tensor; "e8m0":
              powers of two
    `inputs`  "dynamic": rounded with scales that a server finds while it computes; "static": with a scale in the file
    """

    numbers: Numbers
    bits: int
    group: Group
    scales: ScaleNumbers = "model"
    inputs: Inputs = "kept"


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "W8A8": Format("int", 8, "channel", inputs="dynamic"),
        "W4AFP8": Format("int", 4, 128, inputs="dynamic"),
        "FP8_DYNAMIC": Format("e4m3", 8, "channel", inputs="dynamic"),
        "FP8": Format("e4m3", 8, "tensor", inputs="static"),
        "FP8_BLOCK": Format("e4m3", 8, "block", inputs="dynamic"),
        "NVFP4": Format("e2m1", 4, 16, "e4m3", "static"),
        "NVFP4A16": Format("e2m1", 4, 16, "e4m3"),
        "MXFP4": Format("e2m1", 4, 32, "e8m0", "dynamic"),
        "MXFP4A16": Format("e2m1", 4, 32, "e8m0"),
        "MXFP8": Format("e4m3", 8, 32, "e8m0", "dynamic"),
        "MXFP8A16": Format("e4m3", 8, 32, "e8m0"),
    }
)
"""All formats but "integer", whose bits and groups are free."""


def within_rows(group: Group) -> Group:
    """Returns the group; "channel" if the whole tensor shares a scale."""
    return "channel" if group == "tensor" else group


@dataclass(frozen=True)
class Scheme:
    """How a linear layer is rounded to numbers of `bits` bits.

    `group`      how many neighbouring weights of a row share a scale; "channel": all of a row; "tensor": all; "block":
                 128 × 128
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
    `format`     "integer", or one of FORMATS; floating-point numbers have no `grid`
    """

    bits: int = 4
    group: Group = 128
    clip: Clip = "absmax"
    grid: WeightGrid = "symmetric"
    objective: Objective | None = None
    rounding: Rounding = "nearest"
    format: FormatName = "integer"

    def __post_init__(self) -> None:
        whole("bits", self.bits, least=2, most=8)
        if one_of("format", self.format, ("integer", *FORMATS)) != "integer":
            self._check_format(FORMATS[self.format])
        elif isinstance(self.group, str):
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

    def _check_format(self, format: Format) -> None:
        stated, planned = (self.bits, self.group), (format.bits, format.group)
        if stated != planned:
            raise InputError(
                f"bits and group are {stated}, and the format {self.format} has {planned}: leave them out, or choose "
                "another format"
            )
        if format.numbers != "int":
            object.__setattr__(self, "grid", "symmetric")
            if self.clip not in ("absmax", "exact"):
                raise InputError(f"clip is {self.clip!r}; {self.format} is rounded with absmax or exact")

    @property
    def _kind(self) -> Format:
        return FORMATS.get(self.format) or Format("int", self.bits, self.group)

    @property
    def numbers(self) -> Numbers:
        return self._kind.numbers

    @property
    def scales(self) -> ScaleNumbers:
        return self._kind.scales

    @property
    def inputs(self) -> Inputs:
        return self._kind.inputs

    @property
    def has_tensor_scale(self) -> bool:
        """Whether a scale of the whole tensor is in the file, which is the same in all layers that servers join."""
        return self.scales == "e4m3" or (self.group == "tensor" and self.format != "integer")

    @property
    def input_bits(self) -> int:
        """The bits that inputs are rounded to; 16 if they are not rounded."""
        return 16 if self.inputs == "kept" else BYTE_BITS if self.format == "W4AFP8" else self.bits

    @property
    def name(self) -> str:
        where = f"group {self.group}" if isinstance(self.group, int) else f"per {self.group}"
        clip = (
            "exact clip" if self.clip == "exact" else self.clip if isinstance(self.clip, str) else f"α={self.clip:.4g}"
        )
        grid = "" if self.grid == "symmetric" else f" on {self.grid}"
        objective = "" if self.objective is None else f", {self.objective} of languages"
        rounding = "" if self.rounding == "nearest" else f", {self.rounding}"
        what = f"W{self.bits} {where}" if self.format == "integer" else self.format
        return f"{what} {clip}{grid}{objective}{rounding}"

    @property
    def weighs_inputs(self) -> bool:
        return self.objective is not None or self.rounding == "gptq"

    @property
    def reads_text(self) -> bool:
        return self.weighs_inputs or self.inputs == "static"

    @property
    def group_size(self) -> int | None:
        return BLOCK_SIZE if self.group == "block" else self.group if isinstance(self.group, int) else None

    @property
    def as_stored(self) -> "Scheme":
        """The simplest scheme with the same form in a file; one scale of a tensor is repeated for each row."""
        group = within_rows(self.group) if self.format == "integer" else self.group
        return Scheme(self.bits, group, format=self.format)

    def fits(self, columns: int) -> bool:
        return self.group_size is None or columns % self.group_size == 0

    def groups(self, columns: int) -> int:
        if not self.fits(columns):
            raise InputError(
                f"rows of {columns} weights cannot be cut into groups of {self.group}; "
                "the group must divide the inputs of every layer: choose a smaller one, or one scale per channel"
            )
        return 1 if self.group_size is None else columns // self.group_size


WEIGHTS_ONLY: Mapping[str, tuple[int, Group]] = MappingProxyType({"W4A16": (4, 128), "W8A16": (8, "channel")})
"""The schemes of integers alone, with their bits and group."""


def named_scheme(name: str, grid: WeightGrid = "twos") -> Scheme:
    """Returns the scheme that servers know by a name, rounding to nearest with scales set by the largest weight."""
    if name in WEIGHTS_ONLY:
        return Scheme(*WEIGHTS_ONLY[name], "absmax", grid)
    chosen: Any = name
    return Scheme(FORMATS[name].bits, FORMATS[name].group, "absmax", grid, format=chosen)
