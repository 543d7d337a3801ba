"""Which languages to calibrate on if there can only be a few: those that leave the others the least to lose."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairbits.checks import Floats, same_shape, whole
from fairbits.errors import InputError
from fairbits.measure.audit.audit_arrays import stored_arrays
from fairbits.measure.audit.audit_file import AUDIT, AuditFile
from fairbits.theory.allocation.facilities import choose_facilities

NAMED = 10
"""Languages that a note lists."""
LEAST = 1e-12
"""The least share of the mean square of an input that a channel is taken to have."""


@dataclass(frozen=True)
class Cover:
    """The languages to calibrate on, and what each audited language is predicted to lose by it.

    `loss` is predicted damage × distance to the nearest of them: good for comparing sets, but not in nats.
    `left_out` are candidates that the audit lacks.
    """

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
        """The languages that were chosen and those that they protect least, and candidates that the audit lacks.

        >>> Cover(("fra_Latn",), {"fra_Latn": 0.0, "spa_Latn": 0.1, "heb_Hebr": 0.7}).notes
        ('1 of 3 audited languages chosen: fra_Latn; least protected: heb_Hebr, spa_Latn',)
        """
        least = f"; least protected: {', '.join(self.farthest)}" if self.farthest else ""
        chosen = (
            f"{len(self.languages)} of {len(self.loss)} audited languages chosen: {', '.join(self.languages)}{least}"
        )
        if not self.left_out:
            return (chosen,)
        some = ", ".join(self.left_out[:NAMED]) + (" …" if len(self.left_out) > NAMED else "")
        return (
            chosen,
            f"{len(self.left_out)} languages of the text are not in the audit and were not considered: {some}",
        )


def cover_languages(
    audit: str | Path, size: int, *, candidates: Iterable[str] | None = None, fingerprint: str | None = None
) -> Cover:
    """Returns the `size` languages to calibrate on so that the languages of an audit lose least on average.

    `audit` is a saved audit, with its second file. `candidates` are those that there is text of, by default all of the
    audit. With a `fingerprint`, the audit must be of the model that has it.
    """
    found = AUDIT.read(audit)
    if fingerprint is not None and found.model.fingerprint != fingerprint:
        raise InputError(f"{audit} audits a model with other weights; audit this model first")
    known = tuple(found.languages)
    given = known if candidates is None else tuple(candidates)
    chosen = tuple(code for code in given if code in known)
    if whole("the number of languages", size, least=1) > len(chosen):
        raise InputError(
            f"{size} languages are requested, but only {len(chosen)} have text and are in {audit}: request fewer, "
            "audit more languages, or give more text"
        )
    damage = np.array([found.predicted.nats_per_token[code].value for code in known])
    costs = transfer_costs(moment_distances(_input_moments(Path(audit), found)), damage)
    result = choose_facilities(costs[:, [known.index(code) for code in chosen]], size)
    return Cover(
        tuple(chosen[i] for i in result.chosen),
        dict(zip(known, result.cost.tolist(), strict=True)),
        tuple(code for code in given if code not in known),
    )


def audited_languages(audit: str | Path) -> tuple[str, ...]:
    """Returns the languages of a saved audit."""
    return tuple(AUDIT.read(audit).languages)


def moment_distances(moments: Sequence[Floats]) -> Floats:
    """Returns how much the second moments of every two languages differ, (languages, languages).

    `moments` are E_λ[x_j²] (languages, channels) of every input. With h_λj = E_λ[x_j²] / mean_j E_λ[x_j²], the distance
    is the mean square of log h_λj − log h_μj over the channels, and the mean of that over the inputs.

    >>> moment_distances([np.array([[1.0, 1.0], [3.0, 1.0]])]).round(3).tolist()
    [[0.0, 0.322], [0.322, 0.0]]
    """
    total = np.zeros((len(moments[0]), len(moments[0])))
    for each in moments:
        h = np.asarray(each, dtype=np.float64)
        logs = np.log(np.maximum(h / h.mean(axis=1, keepdims=True), LEAST))
        square = (logs**2).mean(axis=1)
        total += square[:, None] + square[None] - 2 * logs @ logs.T / logs.shape[1]
    np.fill_diagonal(total, 0.0)
    distances: Floats = np.maximum(total, 0.0) / len(moments)
    return distances


def transfer_costs(distances: Floats, damage: Floats) -> Floats:
    """Returns what language λ loses if the nearest language of the calibration set is μ: damage_λ × distance_λμ.

    A heuristic, which `benchmarks/cover.py` tests: GPTQ moves its errors to where the calibration text has little
    activation, and a language that has more there pays, in proportion to what any error costs it.
    """
    same_shape("damage", damage.shape, "(languages,)", distances.shape[:1])
    costs: Floats = damage[:, None] * distances
    return costs


def _input_moments(path: Path, found: AuditFile) -> list[Floats]:
    """Returns E_λ[x_j²] of every input of linear maps, from the second file of an audit."""
    names = [f"channels/{point.name}" for point in found.points if point.kind == "input"]
    return stored_arrays(path, found, names)
