"""Evidence: what a policy can find out about a model and its text. Nothing is computed until it is requested."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.errors import InputError

if TYPE_CHECKING:
    from fairbits.auditing.record import Audit
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.stats.intervals import Estimate

How = Literal["predicted", "measured"]
Form = Literal["global", "product"]
Thresholds = Mapping[str, Mapping[str, float]]  # α by layer and language


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The damage of rounding one block alone, to nearest with absmax scales: (languages, blocks, bits) in nats/token.

    "predicted" is half the mean square of the change of log p, in linear approximation; "measured" is the added loss.
    """

    how: How
    languages: tuple[str, ...]
    bits: tuple[int, ...]
    damage: Floats
    notes: tuple[str, ...] = ()

    def at(self, bits: int) -> Floats:
        table: Floats = self.damage[:, :, self.bits.index(bits)]
        return table

    def of(self, languages: Sequence[str] | None = None, blocks: Sequence[int] | None = None) -> "Sensitivity":
        """Returns the table of some languages and blocks; of all if none are given."""
        codes = self.languages if languages is None else tuple(languages)
        rows = self.damage[[self.languages.index(code) for code in codes]]
        return replace(self, languages=codes, damage=rows if blocks is None else rows[:, list(blocks)])

    def as_data(self) -> dict[str, Any]:
        """Returns the table for JSON: one row of blocks per language and number of bits."""
        return {
            "how": self.how,
            "widths": list(self.bits),
            "nats_per_token": {
                code: {str(bits): [float(f"{value:.4g}") for value in self.at(bits)[i]] for bits in self.bits}
                for i, code in enumerate(self.languages)
            },
        }


@dataclass(frozen=True)
class LanguageWeights:
    """Weights π of the languages that a search has found, its rounds, and notes on the result."""

    pi: Mapping[str, float]
    rounds: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


def _needs_text(*_: object) -> Any:
    raise InputError("this needs text of every language: name languages, or give text")


@dataclass(frozen=True, eq=False)
class Evidence:
    """A model, the languages of its calibration text (none without text), and what can be computed about them.

    `kappa()`                 κ_l of the linear layers of every block
    `kappa_eff()`             κ_eff(λ) = Σ_l ā_l(λ)·κ_l of every language, by the norms of the blocks' outputs
    `sensitivity(bits, how)`  the damage of each block to each language at each number of bits
    `damage(allocations)`     measured nats per token (allocations, languages); an allocation has the bits of each
                              block, 0 for one that keeps its weights
    `minimax()`               the language weights with which calibrated rounding damages the worst language least
    `alphas(form, bits)`      the thresholds of LA-ACIQ as the research notes write it, by layer and language
    """

    checkpoint: "Checkpoint"
    languages: tuple[str, ...] = ()
    kappa: Callable[[], Floats] = _needs_text
    kappa_eff: "Callable[[], Mapping[str, Estimate]]" = _needs_text
    sensitivity: Callable[[Sequence[int], How], Sensitivity] = _needs_text
    damage: Callable[[Sequence[Sequence[int]]], Floats] = _needs_text
    minimax: Callable[[], LanguageWeights] = _needs_text
    alphas: Callable[[Form, int], Thresholds] = _needs_text
    device: str = "cpu"  # where the plan will probably be executed

    @property
    def n_blocks(self) -> int:
        return self.checkpoint.architecture.n_blocks

    @cached_property
    def block_weights(self) -> tuple[int, ...]:
        """How many weights of each block can be rounded."""
        blocks = self.checkpoint.architecture.blocks
        return tuple(sum(prod(w.shape) for w in block.linears.values() if w.is_quantizable) for block in blocks)


def audited_kappa(audit: "str | Path | Audit", fingerprint: str) -> Floats:
    """Returns κ_l of every block from an audit, or a saved one, if it is of the model with this fingerprint."""
    from fairbits.auditing.audit_file import AUDIT
    from fairbits.auditing.record import Audit

    if isinstance(audit, Audit):
        name, audited, kappa = "the audit", audit.model.fingerprint, [block.kappa for block in audit.moments.blocks]
    else:
        saved = AUDIT.read(audit)
        name, audited, kappa = str(audit), saved.model.fingerprint, [block.kappa for block in saved.blocks]
    if audited != fingerprint:
        raise InputError(
            f"{name} is of a model with other weights; audit this model first (fairbits audit MODEL --out audit.json), "
            "or leave the audit out"
        )
    return finite_array(f"κ in {name}", kappa, ndim=1)
