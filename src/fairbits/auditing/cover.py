"""Which languages to calibrate on if there can only be a few: the set that leaves all languages the least to lose.

A language costs more the farther it is from the nearest chosen one, so the set is a k-median (least mean cost) of
the languages. It is found exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from fairbits.auditing.audit_file import AUDIT, stored_arrays
from fairbits.core.array_checks import Floats, nonnegative_array
from fairbits.core.checks import whole
from fairbits.core.errors import FairbitsError, InputError

MOST_NAMED = 10  # languages that a note lists
LEAST_SHARE = 1e-12  # the least share of the mean square of an input that a channel is taken to have


@dataclass(frozen=True, eq=False)
class Facilities:
    """The chosen candidates, the cost of the best of them for every client, and its mean."""

    chosen: tuple[int, ...]
    cost: Floats
    value: float


def choose_facilities(cost: ArrayLike, k: int) -> Facilities:
    """Returns the k columns of `cost` (clients, candidates) that minimise the mean of the least cost of every client.

    Solved by HiGHS to optimality. Variables: x_s, whether candidate s is open, and y_λs, the share of client λ that s
    serves: Σ_s y_λs = 1, y_λs ≤ x_s.
    """
    table = nonnegative_array("cost", cost, ndim=2)
    clients, candidates = table.shape
    whole("k", k, least=1, most=candidates)
    serve = clients * candidates
    served = hstack([csr_array((clients, candidates)), kron(eye_array(clients), np.ones((1, candidates)))])
    opened = hstack([vstack([-eye_array(candidates)] * clients), eye_array(serve)])
    is_open = np.concatenate([np.ones(candidates), np.zeros(serve)])
    unit = float(table.max()) or 1.0
    constraints: list[tuple[Any, float, float]] = [(served, 1.0, 1.0), (opened, -np.inf, 0.0), (is_open[None], k, k)]
    result = milp(
        np.concatenate([np.zeros(candidates), table.ravel() / (unit * clients)]),
        integrality=is_open.astype(np.int64),
        bounds=Bounds(np.zeros(candidates + serve), np.ones(candidates + serve)),
        constraints=[LinearConstraint(csr_array(matrix), low, high) for matrix, low, high in constraints],
        options={"mip_rel_gap": 0.0},
    )
    if result.status == 2:
        raise FairbitsError("HiGHS found no set although one exists; give costs of similar size")
    if result.status != 0:
        raise FairbitsError(f"HiGHS stopped without a solution: {result.message.strip()}")
    chosen = np.flatnonzero(result.x[:candidates] > 0.5).tolist()
    nearest: Floats = table[:, chosen].min(axis=1)
    return Facilities(tuple(chosen), nearest, float(nearest.mean()))


@dataclass(frozen=True)
class Cover:
    """The languages to calibrate on, and damage × distance to the nearest of them for each audited language."""

    languages: tuple[str, ...]
    loss: Mapping[str, float]
    left_out: tuple[str, ...] = ()

    @property
    def farthest(self) -> tuple[str, ...]:
        """The languages outside that lose most, the worst first; three at most."""
        outside = sorted(set(self.loss) - set(self.languages), key=lambda code: -self.loss[code])
        return tuple(outside[:3])

    @property
    def notes(self) -> tuple[str, ...]:
        """The languages that were chosen and those that they protect least, and candidates that the audit lacks."""
        least = f"; least protected: {', '.join(self.farthest)}" if self.farthest else ""
        chosen = (
            f"{len(self.languages)} of {len(self.loss)} audited languages chosen: {', '.join(self.languages)}{least}"
        )
        if not self.left_out:
            return (chosen,)
        some = ", ".join(self.left_out[:MOST_NAMED]) + (" …" if len(self.left_out) > MOST_NAMED else "")
        return (
            chosen,
            f"{len(self.left_out)} languages of the text are not in the audit and were not considered: {some}",
        )


def cover_languages(
    audit: str | Path, size: int, *, candidates: Iterable[str] | None = None, fingerprint: str | None = None
) -> Cover:
    """Returns the `size` of the `candidates` to calibrate on, so that audited languages lose least on average."""
    saved = AUDIT.read(audit)
    if fingerprint is not None and saved.model.fingerprint != fingerprint:
        raise InputError(
            f"{audit} audits a model with other weights; audit this model first: fairbits audit MODEL --out audit.json"
        )
    audited = tuple(saved.languages)
    with_text = audited if candidates is None else tuple(candidates)
    eligible = tuple(code for code in with_text if code in audited)
    if whole("the number of languages", size, least=1) > len(eligible):
        raise InputError(
            f"{size} languages are requested, but only {len(eligible)} have text and are in {audit}: request fewer, "
            "audit more languages, or give more text"
        )
    damage = np.array([saved.predicted.nats_per_token[code].value for code in audited])
    points = [f"channels/{point.name}" for point in saved.points if point.kind == "input"]
    costs = transfer_costs(moment_distances(stored_arrays(Path(audit), saved, points)), damage)
    result = choose_facilities(costs[:, [audited.index(code) for code in eligible]], size)
    return Cover(
        tuple(eligible[i] for i in result.chosen),
        dict(zip(audited, result.cost.tolist(), strict=True)),
        tuple(code for code in with_text if code not in audited),
    )


def audited_languages(audit: str | Path) -> tuple[str, ...]:
    """Returns the languages of a saved audit."""
    return tuple(AUDIT.read(audit).languages)


def moment_distances(moments: Sequence[Floats]) -> Floats:
    """Returns how much the second moments of every two languages differ, (languages, languages).

    `moments` are E_λ[x_j²] (languages, channels) of every input. With h_λj = E_λ[x_j²] / mean_j E_λ[x_j²], the distance
    is the mean square of log h_λj − log h_μj over the channels, and the mean of that over the inputs.
    """
    total = np.zeros((len(moments[0]), len(moments[0])))
    for point in moments:
        h = np.asarray(point, dtype=np.float64)
        logs = np.log(np.maximum(h / h.mean(axis=1, keepdims=True), LEAST_SHARE))
        square = (logs**2).mean(axis=1)
        total += square[:, None] + square[None] - 2 * logs @ logs.T / logs.shape[1]
    np.fill_diagonal(total, 0.0)
    distances: Floats = np.maximum(total, 0.0) / len(moments)
    return distances


def transfer_costs(distances: Floats, damage: Floats) -> Floats:
    """Returns what λ loses if μ is the nearest language to calibrate on (a heuristic): damage_λ × distance_λμ."""
    costs: Floats = damage[:, None] * distances
    return costs
