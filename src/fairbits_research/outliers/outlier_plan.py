"""The plan that gives chosen blocks a requested kurtosis without changing the function."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.couplings import Channels, Coupling, Route, Slice
from fairbits_research.outliers.kurtosis_search import find_staircase, kurtosis, power_sums


@dataclass(frozen=True)
class Rescaling:
    """One channel of one block: what its coupling grows × `factor`, what it shrinks ÷ `factor` (a power of two)."""

    block: int
    factor: int
    coupling: Coupling


@dataclass(frozen=True)
class OutlierPlan:
    """What is rescaled, and the excess kurtosis per block before, as requested and as achieved.

    κ is that of all linear weights of the block together, or of those with the given role.
    """

    route: Route
    role: str | None
    seed: int
    before: Mapping[int, float]
    requested: Mapping[int, float]
    achieved: Mapping[int, float]
    rescalings: tuple[Rescaling, ...]

    @property
    def factors(self) -> Mapping[str, tuple[tuple[Slice, float], ...]]:
        """The slices to multiply and their factors, by tensor name."""
        factors: dict[str, list[tuple[Slice, float]]] = {}
        for step in self.rescalings:
            grows = [(part, float(step.factor)) for part in step.coupling.grows]
            shrinks = [(part, 1 / step.factor) for part in step.coupling.shrinks]
            for part, factor in grows + shrinks:
                factors.setdefault(part.tensor, []).append((part, factor))
        return {name: tuple(parts) for name, parts in factors.items()}


def plan_outliers(
    checkpoint: Checkpoint, kappa: Mapping[int, float], *, seed: int = 0, route: Route = "norm", role: str | None = None
) -> OutlierPlan:
    """Returns the plan that brings every block in `kappa` to that excess kurtosis within 2 %, at an equal function.

    The fewest channels that come within 1 % are taken. The seed orders the channels, with one order for all blocks
    since the outliers of real models keep to the same channels throughout.
    """
    if not isinstance(kappa, Mapping) or not kappa:
        raise InputError(f"kappa is {kappa!r}; it must map at least one block to a κ, for example {{3: 125}}")
    for block, target in kappa.items():
        whole("block", block, least=0, most=checkpoint.architecture.n_blocks - 1)
        in_range(f"kappa of block {block}", target, above=0.0)
    whole("seed", seed, least=0)
    requested = {block: float(kappa[block]) for block in sorted(kappa)}
    before, achieved, rescalings = {}, {}, []
    for block, target in requested.items():
        try:
            before[block], achieved[block], chosen = _plan_block(
                checkpoint, block, target=target, seed=seed, route=route, role=role
            )
        except InputError as error:
            raise InputError(f"block {block} of {checkpoint.target}: {error}") from None
        rescalings += chosen
    return OutlierPlan(route, role, seed, before, requested, achieved, tuple(rescalings))


def _plan_block(
    checkpoint: Checkpoint, block: int, *, target: float, seed: int, route: Route, role: str | None
) -> tuple[float, float, list[Rescaling]]:
    linears = checkpoint.architecture.blocks[block].linears.values()
    if role is not None:
        one_of("role", role, sorted({weight.role for weight in linears}))
    weights = {w.name: checkpoint.read(w.name) for w in linears if role in (None, w.role)}
    for name, W in weights.items():
        if W.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise InputError(f"{name} is stored as {W.dtype}; it must be float16, bfloat16 or float32")
    measured = {name: power_sums(W) for name, W in weights.items()}
    channels = Channels(checkpoint, block, seed=seed, route=route, measured=measured)
    n = sum(W.numel() for W in weights.values())
    sums = np.sum([rows.sum(0) for rows, _ in measured.values()], axis=0)
    if not (np.isfinite(sums).all() and sums[1] > 0):
        raise InputError("its weights are all 0, or some are NaN or infinite; repair them first")
    staircase = find_staircase(target, n, sums, orders=channels.orders, slices=channels.power_sums)
    couplings = channels.bearing(staircase.order, max(staircase.exponents, default=0))
    chosen = [Rescaling(block, 2**e, c) for e, c in zip(staircase.exponents, couplings, strict=False)]
    return float(kurtosis(n, sums)), staircase.kappa, chosen
