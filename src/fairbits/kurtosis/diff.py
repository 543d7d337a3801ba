"""Two models side by side: their architecture, and the weights of their blocks.

The research notes ask why BLOOM has outlier weights and XGLM has none, and want the configurations compared (6.2 of
the second). Two models differ in many traits at once, so such a table suggests causes but does not prove them.
"""

from dataclasses import dataclass
from typing import Any

from fairbits.core.checks import instance
from fairbits.core.progress import Progress
from fairbits.core.version import __version__
from fairbits.kurtosis.traits import UNKNOWABLE, Trait, Traits, traits
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import WeightMoments, weight_moments

SCHEMA = "fairbits.diff/1"


@dataclass(frozen=True)
class Side:
    """One of the two models: its traits, and the moments of the linear layers of each of its blocks."""

    target: str
    fingerprint: str
    notes: tuple[str, ...]
    traits: Traits
    blocks: tuple[WeightMoments, ...]

    @property
    def kappa(self) -> tuple[float, ...]:
        """The excess kurtosis of every block."""
        return tuple(block.kappa for block in self.blocks)

    @property
    def worst(self) -> int:
        """The block with the largest κ."""
        return max(range(len(self.blocks)), key=self.kappa.__getitem__)

    def as_data(self) -> dict[str, Any]:
        """Returns the model for JSON."""
        return {
            "target": self.target,
            "fingerprint": self.fingerprint,
            "notes": list(self.notes),
            "traits": self.traits.as_data(),
            "blocks": [block.as_data() for block in self.blocks],
            "max_kappa": self.kappa[self.worst],
            "max_kappa_block": self.worst,
        }


@dataclass(frozen=True)
class ModelDiff:
    """Two models, and which block of one is shown next to which of the other."""

    a: Side
    b: Side
    pairs: tuple[tuple[int, int], ...]

    @property
    def differing(self) -> tuple[str, ...]:
        """The names of the traits that are known for both and differ."""
        both = zip(self.a.traits.items(), self.b.traits.items(), strict=True)
        return tuple(name for (name, of_a), (_, of_b) in both if differ(of_a, of_b))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the comparison must know."""
        deep = (len(self.a.blocks), len(self.b.blocks))
        matched = (f"blocks of {deep[0]} and {deep[1]} are matched by relative depth; some appear twice",)
        return (
            *(matched if deep[0] != deep[1] else ()),
            f"{', '.join(UNKNOWABLE)} cannot be read from a checkpoint: see the models' papers",
        )

    def as_data(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        return {
            "schema": SCHEMA,
            "fairbits": __version__,
            "a": self.a.as_data(),
            "b": self.b.as_data(),
            "differing": [name.replace(" ", "_") for name in self.differing],
            "pairs": [list(pair) for pair in self.pairs],
            "notes": list(self.notes),
        }


def diff(a: Checkpoint, b: Checkpoint, *, progress: Progress | None = None) -> ModelDiff:
    """Returns the traits and the κ profiles of two models; every file is read once for its moments.

    `progress` is called with the stage, the bytes read so far and the bytes of both models.
    """
    models = (instance("a", a, Checkpoint), instance("b", b, Checkpoint))
    sizes = [sum(info.nbytes for info in model.tensors.values()) for model in models]
    # first: a model of unknown architecture fails before any weights are read
    architectures = [traits(model) for model in models]

    def side(i: int) -> Side:
        before = sum(sizes[:i])
        step = None if progress is None else lambda stage, done, _: progress(stage, before + done, sum(sizes))
        blocks = weight_moments(models[i], progress=step).blocks
        return Side(models[i].target, models[i].fingerprint, models[i].notes, architectures[i], blocks)

    sides = side(0), side(1)
    return ModelDiff(*sides, block_pairs(len(sides[0].blocks), len(sides[1].blocks)))


def block_pairs(n: int, m: int) -> tuple[tuple[int, int], ...]:
    """Returns pairs of blocks at the same relative depth, one for every block of the deeper model.

    Block i of n spans the depths i/n … (i + 1)/n; its middle is in block ⌊(i + ½)·m/n⌋ of the other.

    >>> block_pairs(2, 4)
    ((0, 0), (0, 1), (1, 2), (1, 3))
    """
    deep = max(n, m)
    return tuple(((2 * i + 1) * n // (2 * deep), (2 * i + 1) * m // (2 * deep)) for i in range(deep))


def differ(of_a: Trait, of_b: Trait) -> bool:
    """Returns whether a trait is known for both models and differs."""
    return of_a is not None and of_b is not None and of_a != of_b
