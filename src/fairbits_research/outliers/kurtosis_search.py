"""The search for powers of two that bring the excess kurtosis of a set of weights to a target.

Scaling disjoint slices changes the power sums Σw, Σw², Σw³, Σw⁴ by known amounts, so every candidate is evaluated
without touching a weight. A candidate is a staircase: the first channels × c, the next × c/2, the next × c/4. That
leaves few gaps between the values of κ, although c is a power of two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError

LARGEST_EXPONENT = 8  # beyond it κ hardly grows: the outliers hold nearly all of the variance already
MOST_CHANNELS = 48
WIDENED_WEIGHTS = 2**20  # weights that are widened to float64 at a time: 8 MiB
AIM, TOLERANCE = 0.01, 0.02  # the fewest channels within AIM of κ, otherwise the nearest within TOLERANCE
POWERS = np.arange(1.0, 5.0)

Order = TypeVar("Order")
Counts = NDArray[np.int64]  # (staircases, 3): channels on every step


@dataclass(frozen=True)
class Staircase(Generic[Order]):
    """The exponents of two for the first channels of an order, none rising, and the κ that they give."""

    order: Order
    exponents: tuple[int, ...]
    kappa: float


def power_sums(W: torch.Tensor) -> tuple[Floats, Floats]:
    """Returns Σw, Σw², Σw³, Σw⁴ of every row and of every column of a matrix, as (rows, 4) and (columns, 4)."""
    rows, columns = np.empty((W.shape[0], 4)), np.zeros((W.shape[1], 4))
    height = max(1, WIDENED_WEIGHTS // W.shape[1])
    for start in range(0, W.shape[0], height):
        part = W[start : start + height].double()
        power = torch.ones_like(part)
        for order in range(4):
            power *= part
            rows[start : start + height, order] = power.sum(1).numpy()
            columns[:, order] += power.sum(0).numpy()
    return rows, columns


def kurtosis(n: int, sums: Floats) -> Floats:
    """Returns the excess kurtosis of n numbers from their four power sums (…, 4)."""
    mean, second, third, fourth = np.moveaxis(sums / n, -1, 0)
    variance = second - mean**2
    return np.asarray((fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4) / variance**2 - 3)


def find_staircase(
    target: float,
    n: int,
    sums: Floats,
    *,
    orders: Sequence[Order],
    slices: Callable[[Order, int], tuple[Floats, Floats]],
) -> Staircase[Order]:
    """Returns the staircase with the fewest channels that takes n weights with these power sums to κ = `target`.

    `slices(order, exponent)` gives the power sums, each (channels, 4), of what grows and of what shrinks in every
    channel that allows this exponent, in the order in which channels are used.
    """
    now = float(kurtosis(n, sums))
    if target < now * (1 + AIM):
        if target < now * (1 - TOLERANCE):
            raise InputError(f"κ is {now:.4g} already and {target:g} was requested; outliers can only raise it")
        return Staircase(orders[0], (), now)
    tried, ranked = [], []
    for order in orders:
        for top in range(1, LARGEST_EXPONENT + 1):
            grows, shrinks = slices(order, top)
            if not len(grows):
                break  # no channel allows a larger exponent either
            steps = _step_counts(min(top, 3), len(grows))
            tried.append(kurtosis(n, sums + _change(top, steps, grows=grows, shrinks=shrinks)))
            ranked.append(_ranked(target, tried[-1], steps=steps, top=top, order=order))
    (_, error), best = min(ranked, key=itemgetter(0), default=((0, np.inf), Staircase(orders[0], (), now)))
    if error > TOLERANCE:
        raise InputError(_unreachable(target, np.concatenate([[now], *tried])))
    return best


def _ranked(
    target: float, kappa: Floats, *, steps: Counts, top: int, order: Order
) -> tuple[tuple[int, float], Staircase[Order]]:
    """Returns the best of the staircases with one top, and its rank: fewer channels first, then the smaller error."""
    error = np.abs(kappa / target - 1)
    channels = np.where(error <= AIM, steps.sum(1), MOST_CHANNELS + 1)
    best = int(np.argmin(np.where(channels == channels.min(), error, np.inf)))
    exponents = np.repeat(top - np.arange(3), steps[best]).tolist()
    return (int(channels[best]), float(error[best])), Staircase(order, tuple(exponents), float(kappa[best]))


@cache
def _step_counts(n_steps: int, n_channels: int) -> Counts:
    """Returns every way to give channels to each of at most three steps, at least one to the first."""
    lengths = [range(n_channels + 1) if step < n_steps else range(1) for step in range(3)]
    counts = np.stack(np.meshgrid(*lengths, indexing="ij"), -1).reshape(-1, 3)
    return np.asarray(counts[(counts[:, 0] > 0) & (counts.sum(1) <= n_channels)], np.int64)


def _change(top: int, counts: Counts, *, grows: Floats, shrinks: Floats) -> Floats:
    """Returns the change of the four power sums for every staircase with these counts."""
    ends = np.cumsum(counts, axis=1)
    change = np.zeros((len(counts), 4))
    for step in range(min(top, 3)):
        factor = 2.0 ** ((top - step) * POWERS)
        by_channel = (factor - 1) * grows + (1 / factor - 1) * shrinks
        running = np.concatenate((np.zeros((1, 4)), np.cumsum(by_channel, axis=0)))
        change += running.take(ends[:, step], axis=0) - running.take(ends[:, step] - counts[:, step], axis=0)
    return change


def _unreachable(target: float, kappa: Floats) -> str:
    now, largest = float(kappa[0]), float(kappa.max())
    if target > largest:
        return f"κ = {target:g} was requested; {largest:.5g} is the largest within reach (it is {now:.4g} now)"
    below, above = float(kappa[kappa <= target].max()), float(kappa[kappa >= target].min())
    return f"κ = {target:g} was requested; the nearest within reach are {below:.5g} and {above:.5g}"
