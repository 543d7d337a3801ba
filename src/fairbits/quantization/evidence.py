"""Evidence: what a policy can find out about a model and its text. Nothing is computed until it is requested.

numpy and torch are not imported before they are needed, because the command line reads the declarations of policies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairbits.core.checks import same_shape
from fairbits.core.errors import InputError

if TYPE_CHECKING:
    from fairbits.auditing.record import Audit
    from fairbits.core.array_checks import Floats
    from fairbits.models.architecture.records import Weight
    from fairbits.models.checkpoint import Checkpoint

How = Literal["predicted", "measured"]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The damage of rounding one block alone: `damage` (languages, blocks, widths), in nats per token.

    "predicted" is half the mean square of the change of log p, in linear approximation; it is never negative.
    "measured" is the loss with the block rounded minus the loss without, which noise can make negative. Blocks are
    rounded to nearest with absmax scales, as a clip that ignores the inputs can destroy a block.
    """

    how: How
    languages: tuple[str, ...]
    widths: tuple[int, ...]
    damage: "Floats"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from fairbits.core.array_checks import finite_array

        damage = finite_array("damage", self.damage, ndim=3)
        expected = (len(self.languages), damage.shape[1], len(self.widths))
        same_shape("damage", damage.shape, "(languages, blocks, widths)", expected)

    def at(self, bits: int) -> "Floats":
        """Returns the damage at one of the widths, (languages, blocks)."""
        if bits not in self.widths:
            raise InputError(
                f"the sensitivity at {bits} bits was not computed; there are {', '.join(map(str, self.widths))}"
            )
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
    """Weights π of the languages that a search has found, its rounds, and notes on the result."""

    pi: Mapping[str, float]
    rounds: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


def _unknown(*_: object) -> Any:
    raise InputError("this needs text of every language: name languages, or give text")


@dataclass(frozen=True, eq=False)
class Evidence:
    """A model, the languages of its calibration text (none without text), and what can be computed about them.

    `kappa()`               κ_l of the linear layers of every block
    `sensitivity(widths, how)`  the damage of each block to each language at each width
    `damage(allocations)`   measured nats per token (allocations, languages), each allocation one width per block
    `minimax()`             the mix of languages for which calibrated rounding damages the worst language least
    `device`                where the plan will probably be executed
    """

    checkpoint: "Checkpoint"
    languages: tuple[str, ...] = ()
    kappa: "Callable[[], Floats]" = _unknown
    sensitivity: Callable[[Sequence[int], How], Sensitivity] = _unknown
    damage: "Callable[[Sequence[Sequence[int]]], Floats]" = _unknown
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
                counts[weight.block] += prod(weight.shape)
        return tuple(counts)


def is_rounded(weight: "Weight") -> bool:
    """Returns whether this is a linear layer of a block that policies may round.

    Maps that steer others stay, being small and decisive; so do experts that no file can hold one by one.
    """
    return weight.linear and weight.block is not None and not weight.is_control and weight.stacked is None


def kappa_of_audit(audit: "str | Path | Audit", fingerprint: str) -> "Floats":
    """Returns κ_l of every block from an audit, or a saved one, if it is of the model with this fingerprint."""
    from fairbits.auditing.record import Audit
    from fairbits.core.array_checks import finite_array

    if isinstance(audit, Audit):
        name, audited, kappa = "the audit", audit.model.fingerprint, [block.kappa for block in audit.moments.blocks]
    else:
        name, (audited, kappa) = str(audit), _saved_kappa(audit)
    if audited != fingerprint:
        raise InputError(f"{name} audits a model with other weights; audit this model first, or leave the audit out")
    return finite_array(f"κ in {name}", kappa, ndim=1)


def _saved_kappa(path: str | Path) -> tuple[str, list[float]]:
    """Returns the fingerprint of the model that a file audits, and κ_l of its blocks."""
    from fairbits.auditing.audit_file import AUDIT

    found = AUDIT.read(path)
    return found.model.fingerprint, [block.kappa for block in found.blocks]
