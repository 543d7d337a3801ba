"""Proxies for a language's redundancy: the research notes' R, the effective dimension and the prediction entropy.

None of them measures how much is stored twice, and none is known to predict damage. They are reported next to the
measured damage so that readers can judge. Bits per token depend on the tokenizer and cannot rank languages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, as_array, finite_array, nonnegative_array
from fairbits.core.checks import same_shape
from fairbits.core.errors import InputError
from fairbits.core.units import NATS_PER_BIT, bits
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate

FOREIGN = 1.25
"""Loss over predictive entropy above which a model does not know a text (a heuristic): it is surer than it is right.

The embedded model has 0.95 to 1.05 on text like that of its training, and 1.08 to 1.65 on the declaration.
"""


@dataclass(frozen=True)
class Redundancy:
    """Proxies of one language; entropies and losses are in bits per token.

    `as_written` is the research notes' R = I(X;Y) − H(Y|X) = H(Y) − 2·H(Y|X) (004-01), with `unigram_entropy` for
    H(Y) and `loss` for H(Y|X). It is negative if the loss exceeds half of H(Y), and biased downwards, because a loss is
    at least H(Y|X) and a small sample misses tokens (`miller_madow`). `predictive_entropy` is the mean entropy of the
    predictions, and `calibration_gap` is loss − predictive entropy: above 0 for an overconfident model.

    `effective_dimension` is (Σh)²/Σh² of the mean squares h of the channels, averaged over the points: over how many
    channels the energy is spread. `effective_dimension_full` is (tr H)²/‖H‖²_F of second moments H, which no rotation
    changes; None without second moments.
    """

    as_written: Estimate
    unigram_entropy: float
    loss: Estimate
    predictive_entropy: Estimate
    calibration_gap: Estimate
    effective_dimension: float
    effective_dimension_full: float | None

    @property
    def foreign(self) -> bool:
        """Whether the text is foreign to the model (FOREIGN); its predicted damage should then not be trusted."""
        return self.loss.value > FOREIGN * self.predictive_entropy.value

    def as_data(self) -> dict[str, Any]:
        return asdict(self) | {
            name: value.to_dict() for name, value in vars(self).items() if isinstance(value, Estimate)
        }


def redundancy(
    languages: Sequence[str],
    *,
    lang: ArrayLike,
    document: ArrayLike,
    tokens: ArrayLike,
    nll: ArrayLike,
    entropy: ArrayLike,
    unigrams: ArrayLike,
    mean_squares: Mapping[str, ArrayLike],
    second_moments: Mapping[str, ArrayLike] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Redundancy]:
    """Returns the redundancy proxies of each language.

    Per document: language, id, predicted tokens, and the sums of their loss and entropy in nats. Per language:
    `unigrams` counts the predicted tokens; `mean_squares` maps points to E[x²], and `second_moments` to E[x xᵀ].
    """
    frame = LanguageFrame(
        as_array("lang", lang),
        as_array("document", document),
        values=bits(nonnegative_array("nll", nll, ndim=1)),
        weights=nonnegative_array("tokens", tokens, ndim=1),
        unit="ratio",
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    undecided = bits(nonnegative_array("entropy", entropy, ndim=1))
    same_shape("entropy", undecided.shape, "the shape of nll", frame.values.shape)
    unigram_entropy = [miller_madow(row) for row in _checked_counts(languages, frame, unigrams)]
    loss = frame.by_language()
    predictive_entropy = replace(frame, values=undecided).by_language()
    calibration_gap = replace(frame, values=frame.values - undecided).by_language()
    spread = _mean_over_points("mean_squares", mean_squares, languages=languages)
    full: Sequence[float | None] = [None] * len(languages)
    if second_moments:
        full = _mean_over_points("second_moments", second_moments, languages=languages)
    return {
        code: Redundancy(
            as_written=loss[code].transform(partial(as_written, unigram_entropy[row])),
            unigram_entropy=unigram_entropy[row],
            loss=loss[code],
            predictive_entropy=predictive_entropy[code],
            calibration_gap=calibration_gap[code],
            effective_dimension=spread[row],
            effective_dimension_full=full[row],
        )
        for row, code in enumerate(languages)
    }


def miller_madow(counts: ArrayLike) -> float:
    """Returns an entropy estimate in bits: −Σ p log₂ p + (m − 1)/(2 N ln 2), p = counts/N, m counts above 0.

    The second term corrects the leading bias of the first for N independent draws. Rare tokens that the sample has not
    seen, and tokens that come in clusters, make the estimate too low.
    """
    seen = np.asarray(counts, dtype=np.float64)
    seen = seen[seen > 0]
    n = seen.sum()
    p = seen / n
    return float(-(p * np.log2(p)).sum() + (len(seen) - 1) / (2 * n * NATS_PER_BIT))


def effective_dimension(moments: ArrayLike, *, name: str = "moments") -> float:
    """Returns (Σh)²/Σh² of mean squares h, or (tr H)²/‖H‖²_F of second moments: 1 (one channel) to their number."""
    values = finite_array(name, moments)
    energy = values if values.ndim == 1 else np.diagonal(values)
    if (energy < 0).any() or not energy.any():
        what = "a negative mean square" if (energy < 0).any() else "mean squares of 0 only"
        raise InputError(f"{name} holds {what}; none may be negative and at least one must be above 0")
    largest = energy.max()  # also the largest element of second moments, so that no square overflows
    return float(((energy / largest).sum() / np.linalg.norm(values / largest)) ** 2)


def as_written(unigram_entropy: float, loss: float) -> float:
    """Returns H(Y) − 2·H(Y|X), which is high where the loss is low."""
    return unigram_entropy - 2 * loss


def _checked_counts(codes: Sequence[str], frame: LanguageFrame, unigrams: ArrayLike) -> Floats:
    counts = nonnegative_array("unigrams", unigrams, ndim=2)
    same_shape("unigrams", counts.shape[:1], "the number of languages", (len(codes),))
    for code, counted in zip(codes, counts.sum(axis=1), strict=True):
        predicted = frame.weights[frame.lang == code].sum()
        if counted != predicted:
            raise InputError(
                f"unigrams count {counted:,.0f} tokens of {code} and its documents hold {predicted:,.0f}; "
                "count only the tokens that are predicted"
            )
    return counts


def _mean_over_points(name: str, moments: Mapping[str, ArrayLike], *, languages: Sequence[str]) -> list[float]:
    dimensions = [
        [
            effective_dimension(row, name=f"{name}[{point!r}] of {code}")
            for row, code in zip(np.asarray(rows), languages, strict=True)
        ]
        for point, rows in moments.items()
    ]
    return [float(mean) for mean in np.mean(dimensions, axis=0)]
