"""The channels of a block in the order in which they receive outliers, and the largest factor of each."""

from collections.abc import Mapping, Sequence
from itertools import islice, permutations
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits_research.outliers.couplings import Coupling, Route, Slice, couplings
from fairbits_research.outliers.kurtosis_search import LARGEST_EXPONENT, MOST_CHANNELS

if TYPE_CHECKING:
    from fairbits.models.checkpoint import Checkpoint

# The loss allowed in ÷ c when float16 numbers become subnormal, relative to the norm of what is divided.
# Many norm channels lose nothing at all, being two numbers each; a whole column without a small weight is rare.
LOSS: Mapping[Route, float] = {"norm": 0.0, "value": 2.0**-16, "mlp": 2.0**-16}

PowerSums = Mapping[str, tuple[Floats, Floats]]  # by tensor: of its rows (rows, 4) and of its columns (columns, 4)


class Channels:
    """The couplings of a block that touch the measured weights, channel by channel in an order drawn from the seed.

    An order names sites that take turns: with route `norm` the attention norm alone, the MLP norm alone, or the same
    channel behind one and the other. Several orders give the search more values of κ to choose from.
    """

    def __init__(self, checkpoint: "Checkpoint", block: int, *, seed: int, route: Route, measured: PowerSums) -> None:
        turned = (_growing(site, measured) for site in couplings(checkpoint, block, route=route))
        sites = [site for site in turned if site]
        if not sites:
            raise InputError(f"route {route!r} does not pass through weights of this role; choose another route")
        self.orders = tuple(order for size in range(len(sites)) for order in permutations(range(len(sites)), size + 1))
        self._sites = sites
        self._sequence = np.random.default_rng(seed).permutation(len(sites[0])).tolist()
        touched = {part.tensor for site in sites for part in (*site[0].grows, *site[0].shrinks)}
        self._tensors = {name: checkpoint.read(name) for name in touched}
        self._measured, self._loss = measured, LOSS[route]
        self._bearable: dict[Coupling, int] = {}

    def bearing(self, order: tuple[int, ...], exponent: int) -> list[Coupling]:
        """Returns the first couplings that can be rescaled by 2^exponent."""
        couplings = (self._sites[site][channel] for channel in self._sequence for site in order)
        return list(islice((c for c in couplings if self._largest_exponent(c) >= exponent), MOST_CHANNELS))

    def power_sums(self, order: tuple[int, ...], exponent: int) -> tuple[Floats, Floats]:
        """Returns the power sums of the measured weights that grow in each of those couplings, and that shrink."""
        able = self.bearing(order, exponent)
        grows, shrinks = np.zeros((len(able), 4)), np.zeros((len(able), 4))
        for i, coupling in enumerate(able):
            for sums, side in ((grows, coupling.grows), (shrinks, coupling.shrinks)):
                for part in side:
                    if part.tensor in self._measured:
                        sums[i] += self._measured[part.tensor][part.axis][list(part.indices)].sum(0)
        return grows, shrinks

    def _largest_exponent(self, coupling: Coupling) -> int:
        if coupling not in self._bearable:
            grows, shrinks = ([self._values(part) for part in side] for side in (coupling.grows, coupling.shrinks))
            self._bearable[coupling] = largest_exponent(grows, shrinks, loss=self._loss)
        return self._bearable[coupling]

    def _values(self, part: Slice) -> torch.Tensor:
        return self._tensors[part.tensor].index_select(part.axis, torch.tensor(part.indices)).flatten()


def largest_exponent(grows: Sequence[torch.Tensor], shrinks: Sequence[torch.Tensor], *, loss: float) -> int:
    """Returns the largest e such that `grows` × 2^e stays finite and `shrinks` ÷ 2^e loses at most the share `loss`.

    >>> largest_exponent([torch.tensor([6000.0]).half()], [torch.tensor([1.0]).half()], loss=0.0)
    3
    """
    factors = 2.0 ** torch.arange(1, LARGEST_EXPONENT + 1)[:, None]
    able = torch.ones(len(factors), dtype=torch.bool)
    lost, whole = torch.zeros(len(factors), dtype=torch.double), 0.0
    for x in shrinks:
        lost += (x.double() - (x / factors.to(x.dtype)) * factors.double()).square().sum(1)
        whole += float(x.double().square().sum())
    for x in grows:
        able &= (x.abs().max() * factors.to(x.dtype)).isfinite().flatten()
    return int((able & (lost <= loss**2 * whole)).long().cumprod(0).sum())


def _growing(site: Sequence[Coupling], measured: PowerSums) -> Sequence[Coupling]:
    """Returns the site turned so that measured weights grow, empty if it has none."""
    if any(part.tensor in measured for part in site[0].grows):
        return site
    if any(part.tensor in measured for part in site[0].shrinks):
        return [coupling.reversed() for coupling in site]
    return []
