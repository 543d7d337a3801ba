"""Evidence: what a policy may ask of a model and its text before it decides. Nothing is computed until it is asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairbits.checks import Floats, finite_array, same_shape
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.measure.audit.audit import Audit
    from fairbits.model.architecture import Weight
    from fairbits.model.checkpoint import Checkpoint

How = Literal["predicted", "measured"]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """What rounding one block alone costs: `damage` (languages, blocks, widths), nats per token.

    "predicted": half the mean square of the change of log p, in linear approximation (never negative); "measured": the
    loss with the block rounded less the loss without, which noise can make negative. Blocks are rounded to nearest
    with the largest weight as a level, as a clip that does not know the inputs can destroy a block by itself.
    """

    how: How
    languages: tuple[str, ...]
    widths: tuple[int, ...]
    damage: Floats
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        damage = finite_array("damage", self.damage, ndim=3)
        expected = (len(self.languages), damage.shape[1], len(self.widths))
        same_shape("damage", damage.shape, "(languages, blocks, widths)", expected)

    def at(self, bits: int) -> Floats:
        """Returns the damage at one of the widths, (languages, blocks)."""
        if bits not in self.widths:
            raise InputError(f"{bits} bits were not looked at; there are {', '.join(map(str, self.widths))}")
        table: Floats = self.damage[:, :, self.widths.index(bits)]
        return table

    def as_data(self) -> dict[str, Any]:
        """Returns the table for JSON: one row of blocks per language and width."""
        return {
            "how": self.how,
            "widths": list(self.widths),
            "nats_per_token": {
                code: {str(bits): [float(f"{each:.4g}") for each in self.at(bits)[i]] for bits in self.widths}
                for i, code in enumerate(self.languages)
            },
        }


@dataclass(frozen=True)
class Mix:
    """Weights π of the languages that were searched for, the rounds of the search, and what must be said of them."""

    pi: Mapping[str, float]
    rounds: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


def _unknown(*_: object) -> Any:
    raise InputError("this needs text of every language: name languages, or give text")


@dataclass(frozen=True, eq=False)
class Evidence:
    """A model, the languages of its calibration text (none without text), and what can be found out about them.

    `kappa()`               κ_l of the linear maps of every block
    `sensitivity(widths, how)`  what each block costs each language at each width
    `damage(allocations)`   measured nats per token (allocations, languages), each allocation one width per block
    `minimax()`             the mix of languages for which the worst language of a calibrated rounding loses least
    `device`                where a plan is expected to be carried out
    """

    checkpoint: "Checkpoint"
    languages: tuple[str, ...] = ()
    kappa: Callable[[], Floats] = _unknown
    sensitivity: Callable[[Sequence[int], How], Sensitivity] = _unknown
    damage: Callable[[Sequence[Sequence[int]]], Floats] = _unknown
    minimax: Callable[[], Mix] = _unknown
    device: str = "cpu"

    @cached_property
    def n_blocks(self) -> int:
        """The number of blocks in all stacks."""
        return self.checkpoint.architecture.n_blocks

    @cached_property
    def block_weights(self) -> tuple[int, ...]:
        """How many weights of each block can be rounded."""
        counts = [0] * self.n_blocks
        for weight in self.checkpoint.architecture.linears.values():
            if weight.block is not None and is_rounded(weight):
                counts[weight.block] += int(np.prod(weight.shape))
        return tuple(counts)


def is_rounded(weight: "Weight") -> bool:
    """Returns whether this is a linear map of a block that policies may round.

    Routers stay, being small and decisive; so do experts, which transformers keep in one tensor without linear modules.
    """
    is_expert = weight.expert is not None or weight.stacked is not None
    return weight.linear and weight.block is not None and weight.role != "router" and not is_expert


def kappa_of_audit(audit: "str | Path | Audit", fingerprint: str) -> Floats:
    """Returns κ_l of every block from an audit, or a saved one, if it is of the model with this fingerprint."""
    from fairbits.measure.audit.audit import Audit  # heavy: policies are declared without torch

    if isinstance(audit, Audit):
        name, audited, kappa = "the audit", audit.subject.fingerprint, [block.kappa for block in audit.moments.blocks]
    else:
        name, (audited, kappa) = str(audit), _saved_kappa(audit)
    if audited != fingerprint:
        raise InputError(f"{name} audits a model with other weights; audit this model first, or leave the audit out")
    return finite_array(f"κ in {name}", kappa, ndim=1)


def _saved_kappa(path: str | Path) -> tuple[str, list[float]]:
    """Returns the fingerprint of the model that a file audits, and κ_l of its blocks."""
    from fairbits.measure.audit.audit_file import AUDIT  # heavy: as above

    found = AUDIT.read(path)
    return found.model.fingerprint, [block.kappa for block in found.blocks]
