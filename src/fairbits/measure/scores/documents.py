"""What is stored of an evaluation: sums of every document, and percentiles over the tokens of every language."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.records import Column, Count, NonNegative

Sums = Annotated[Floats, Column(NonNegative)]


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """One entry per document and language; sums over its predicted tokens, losses and divergence in nats."""

    lang: Annotated[NDArray[np.str_], Column(str)]
    document: Annotated[NDArray[np.int64], Column(Count)]
    tokens: Sums
    bytes: Sums
    nll_reference: Sums
    nll_quantized: Sums
    kl: Sums
    flips: Sums

    def __post_init__(self) -> None:
        """Checks that every column has an entry for every document."""
        for name, column in self.columns().items():
            if len(column) != len(self.lang) or not len(column):
                raise InputError(f"{name} has {len(column)} entries and lang has {len(self.lang)}; they must agree")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns the columns by their names."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class TokenPercentiles:
    """Percentiles over the predicted tokens of a language; None in scores of version 1, which have only `kl_p99`.

    `kl_…` are those of the divergence in nats; `margin_…` those of the change of the decision margin in nats: the
    logit of the reference's first choice less that of the next best token. A negative change brings the choice closer
    to a flip.
    """

    kl_p99: NonNegative
    kl_p50: NonNegative | None = None
    kl_p95: NonNegative | None = None
    kl_p99_9: NonNegative | None = None
    margin_p50: float | None = None
    margin_p1: float | None = None

    @classmethod
    def of(cls, kl: NDArray[np.float32], margin: NDArray[np.float32]) -> "TokenPercentiles":
        """Returns the percentiles of the tokens of one language."""
        p50, p95, p99, p99_9 = np.quantile(kl, [0.5, 0.95, 0.99, 0.999]).tolist()
        median, least = np.quantile(margin, [0.5, 0.01]).tolist()
        return cls(p99, p50, p95, p99_9, median, least)
