"""An overlay: rows of linear layers, fitted to one or a few languages, that replace those of the base."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.models.io.compressed_tensors import packed_tensors
from fairbits.models.scales.groups import Codes

BASE = "base"
"""The name of the shared base itself."""
PLAIN = re.compile(r"\w[\w-]*")
"""Allowed names of overlays; the name is part of the file name."""


Form = Literal["residual", "codes", "steps"]
"""What is stored for a row: the difference to the original, new codes, or new scales for the codes of the base.

The last is called "steps" in files and on the command line.
"""


@dataclass(frozen=True, eq=False)
class Patch:
    """Rows of one linear layer (out, in), in one of the forms.

    `tensor`      the map in the files of the base, `module` in the loaded model, `transposed` there
    `rows`        which rows, int64 (n,); None: all
    `scales`      (n, groups), in the type that is stored
    `codes`       int8 (n, in) of `bits` each; None: those of the base stay
    `base_scales`  what `scales` replace where the codes stay
    """

    form: Form
    tensor: str
    module: str
    bits: int
    rows: Tensor | None
    scales: Tensor
    codes: Tensor | None = None
    base_scales: Tensor | None = None
    transposed: bool = False

    @property
    def count(self) -> int:
        """How many rows it changes."""
        return len(self.scales)

    def on(self, device: torch.device) -> "Patch":
        """Returns the patch on a device."""
        rows, codes, base_scales = (
            None if each is None else each.to(device) for each in (self.rows, self.codes, self.base_scales)
        )
        return replace(self, rows=rows, scales=self.scales.to(device), codes=codes, base_scales=base_scales)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors to store; the scales that it replaces are in the base."""
        if self.codes is None:
            stored = {f"{self.tensor}_scale": self.scales.contiguous()}
        else:
            stored = packed_tensors(self.tensor, Codes(self.codes, self.scales, self.bits))
            del stored[f"{self.tensor}_shape"]  # it is stored in the base
        if self.rows is not None:
            stored[f"{self.tensor}_rows"] = self.rows.to(torch.int32)
        return stored


@dataclass(frozen=True, eq=False)
class Overlay:
    """The patches of one or a few languages."""

    name: str
    languages: tuple[str, ...]
    patches: tuple[Patch, ...]

    def __post_init__(self) -> None:
        """Checks that no linear layer has two patches: the second would see rows that the first has changed."""
        twice = [name for name, times in Counter(each.tensor for each in self.patches).items() if times > 1]
        if twice:
            raise InputError(f"the overlay {self.name!r:.80} changes {twice[0]} twice; each map must be there once")

    @cached_property
    def size_bytes(self) -> int:
        """The bytes of its tensors in a file."""
        return sum(each.nbytes for patch in self.patches for each in patch.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors to store."""
        return {name: each for patch in self.patches for name, each in patch.tensors().items()}


def check_overlay_names(names: Sequence[str], languages: Mapping[str, str]) -> None:
    """Raises unless overlays have names of their own, safe in file names, and every overlay in use is there.

    >>> check_overlay_names(["a"], {"fra_Latn": "b"})
    Traceback (most recent call last):
    ...
    fairbits.core.errors.InputError: the overlay 'b' serves a language but is missing; give it as well
    """
    for name in names:
        if not PLAIN.fullmatch(name) or name == BASE:
            raise InputError(f"an overlay has the name {name!r:.80}; give letters, digits, '-', '_', not {BASE!r}")
    twice = [name for name, times in Counter(map(str.casefold, names)).items() if times > 1]
    if twice:
        raise InputError(f"two overlays have the name {twice[0]!r}; give each a name of its own")
    lost = sorted(set(languages.values()) - {BASE, *names})
    if lost:
        raise InputError(f"the overlay {lost[0]!r:.80} serves a language but is missing; give it as well")


def of_language(languages: Mapping[str, str], code: str | None) -> str:
    """Returns the overlay that serves a language; the base if there is none.

    >>> of_language({"fra_Latn": "a"}, "fra_Latn"), of_language({"fra_Latn": "a"}, None)
    ('a', 'base')
    """
    return BASE if code is None else languages.get(code, BASE)
