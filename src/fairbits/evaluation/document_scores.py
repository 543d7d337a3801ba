"""What scores store: sums of every document, and percentiles over the tokens of every language."""

import math
from collections import Counter
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.records import LARGEST, Amount, Code, Column, Count, check_ordered
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate

Sums = Annotated[Floats, Column(Amount)]


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """One entry per document and language; sums over its predicted tokens, losses and divergence in nats."""

    lang: Annotated[NDArray[np.str_], Column(Code)]
    document: Annotated[NDArray[np.int64], Column(Count)]
    tokens: Sums
    bytes: Sums
    nll_reference: Sums
    nll_quantized: Sums
    kl: Annotated[Floats, Column(Annotated[float, Ge(-LARGEST), Le(LARGEST)])]  # negative only where it is an estimate
    flips: Sums
    sure: Sums | None = None  # tokens where the reference's first choice has more than half of the probability
    sure_flips: Sums | None = None  # and those of them where it changes; not known to llama.cpp, nor in older files

    def __post_init__(self) -> None:
        for name, column in self.columns().items():
            if len(column) != len(self.lang) or not len(column):
                raise InputError(f"{name} has {len(column)} entries and lang has {len(self.lang)}; they must agree")
        self._check_counts()

    def _check_counts(self) -> None:
        if (self.sure is None) != (self.sure_flips is None):
            raise InputError("one of sure and sure_flips is missing; both or none must be there")
        for name in ("tokens", "flips", *(() if self.sure is None else ("sure", "sure_flips"))):
            odd = np.flatnonzero(getattr(self, name) % 1)
            if odd.size:
                raise InputError(f"{name}.{odd[0]} is {getattr(self, name)[odd[0]]:g}; it must be a whole number")
        for name, most in (("flips", "tokens"), ("sure", "tokens"), ("sure_flips", "sure"), ("sure_flips", "flips")):
            column, limit = getattr(self, name), getattr(self, most)
            odd = np.flatnonzero(column > limit) if column is not None else np.empty(0, dtype=np.intp)
            if odd.size:
                raise InputError(
                    f"{name}.{odd[0]} is {column[odd[0]]:g}; it must be at most its {most}, {limit[odd[0]]:g}"
                )
        for name in ("kl", "nll_reference", "nll_quantized"):
            odd = np.flatnonzero((getattr(self, name) != 0) & (self.tokens == 0))
            if odd.size:
                raise InputError(f"{name}.{odd[0]} is {getattr(self, name)[odd[0]]:g} of no token; it must be 0")
        names = self.lang.tolist()
        pairs = list(zip(names, self.document.tolist(), strict=True))
        if len(set(pairs)) < len(pairs):
            code, number = next(pair for pair, times in Counter(pairs).items() if times > 1)
            raise InputError(f"document {number} of {code} occurs twice; each must occur once")
        place = {code: i for i, code in enumerate(dict.fromkeys(names))}
        codes = [place[code] for code in names]
        for column in (self.tokens, self.bytes):
            empty = np.flatnonzero(np.bincount(codes, weights=column) == 0)
            if empty.size:
                raise InputError(f"{[*place][empty[0]]} has no token or no byte; every language must have text")

    def columns(self) -> dict[str, NDArray[Any]]:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    def shares(self, values: Floats, weights: Floats, least: float = -math.inf) -> dict[str, Estimate]:
        """Returns Σ values / Σ weights of every language whose documents have weights."""
        rows = np.isin(self.lang, self.lang[weights > 0])
        if not rows.any():
            return {}
        lang, document, values, weights = self.lang[rows], self.document[rows], values[rows], weights[rows]
        return LanguageFrame(lang, document, values=values, weights=weights, unit="ratio", least=least).by_language()


@dataclass(frozen=True)
class TokenPercentiles:
    """Percentiles over the predicted tokens of a language: of the divergence, and of the change of the margin, nats.

    llama.cpp reports no margins.
    """

    kl_p99: Amount
    kl_p50: Amount
    kl_p95: Amount
    kl_p99_9: Amount
    margin_p50: float | None = None
    margin_p1: float | None = None

    def __post_init__(self) -> None:
        check_ordered("kl_p50, kl_p95, kl_p99, kl_p99_9", (self.kl_p50, self.kl_p95, self.kl_p99, self.kl_p99_9))
        check_ordered("margin_p1, margin_p50", (self.margin_p1, self.margin_p50))

    @classmethod
    def of(cls, kl: NDArray[np.float32], margin: NDArray[np.float32]) -> "TokenPercentiles":
        p50, p95, p99, p99_9 = np.quantile(kl, [0.5, 0.95, 0.99, 0.999]).tolist()
        median, least = np.quantile(margin, [0.5, 0.01]).tolist()
        return cls(p99, p50, p95, p99_9, median, least)
