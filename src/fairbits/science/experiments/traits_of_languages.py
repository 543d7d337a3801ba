"""Traits of languages: what is measured of every language, in one table that several experiments read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.language import Language
from fairbits.language.lookup import language_of
from fairbits.measure.passes.measurements import Measure
from fairbits.measure.passes.recorder import PointKind
from fairbits.science.experiments.laboratory import values
from fairbits.science.experiments.result import Table, brief
from fairbits.stats import Estimate, LanguageFrame
from fairbits.stats.intervals import combination

OWN, MANY, KNOWN = "own", "many", "known"
"""The model's own languages, many of the declaration, and those of them in which its loss is meaningful."""
ACTIVATION: tuple[PointKind, Measure] = "mlp", "norm"
"""What the founding documents call activation: the mean norm of what the MLP of a block gives."""
LEAST_DAMAGE = 1e-3
"""Bits per byte; less is not told from none, and would make a redundancy of 1/damage infinite."""


@dataclass(frozen=True, eq=False)
class Traits:
    """What is measured of languages; arrays follow `languages`, which are sorted, as those of every frame.

    `activation` maps (kind, measure) to ā_outlier and `kappa` to κ_eff; `outlier_share` is the frame of the ā_outlier
    that the documents mean. `quality` is T(λ); `proxies` are those of redundancy. `shares` are known of own languages.
    """

    among: str
    languages: tuple[str, ...]
    damage: Mapping[str, LanguageFrame]
    dropout: LanguageFrame | None
    outlier_share: LanguageFrame
    activation: Mapping[tuple[PointKind, Measure], Floats]
    kappa: Mapping[tuple[PointKind, Measure], Floats]
    base_bits: Floats
    bytes_per_token: Floats
    quality: Floats
    proxies: Mapping[str, Floats]
    shares: Floats | None

    @property
    def catalogued(self) -> list[Language]:
        """What the catalog knows of the languages."""
        return [language_of(code) for code in self.languages]

    @property
    def latin(self) -> Floats:
        """1 for a language in Latin script."""
        return np.array([float(each.script == "Latn") for each in self.catalogued])

    @property
    def a(self) -> Floats:
        """ā_outlier, as the documents mean it."""
        return self.activation[ACTIVATION]

    @property
    def kappa_eff(self) -> Floats:
        """κ_eff, as the documents mean it."""
        return self.kappa[ACTIVATION]

    @property
    def robustness(self) -> Floats:
        """R = 1/(damage by dropping columns)."""
        if self.dropout is None:
            raise InputError("no columns were dropped; measure the traits with dropout=True")
        found: Floats = 1 / np.maximum(values(self.dropout), LEAST_DAMAGE)
        return found

    @property
    def log_share(self) -> Mapping[str, Floats]:
        """The logarithm of the training share as a covariate, where it is known."""
        return {} if self.shares is None else {"log share": np.log(self.shares)}

    @property
    def text_traits(self) -> Mapping[str, Floats]:
        """Script, bytes per token and base loss as covariates."""
        return {"Latin script": self.latin, "bytes per token": self.bytes_per_token, "base loss": self.base_bits}

    def only(self, codes: Sequence[str], among: str) -> "Traits":
        """Returns the traits of some of the languages."""
        rows = np.isin(self.languages, codes)
        return replace(
            self,
            among=among,
            languages=tuple(code for code, kept in zip(self.languages, rows, strict=True) if kept),
            damage={name: _only(frame, codes) for name, frame in self.damage.items()},
            dropout=None if self.dropout is None else _only(self.dropout, codes),
            outlier_share=_only(self.outlier_share, codes),
            shares=None if self.shares is None else self.shares[rows],
            activation={key: each[rows] for key, each in self.activation.items()},
            kappa={key: each[rows] for key, each in self.kappa.items()},
            proxies={key: each[rows] for key, each in self.proxies.items()},
            base_bits=self.base_bits[rows],
            bytes_per_token=self.bytes_per_token[rows],
            quality=self.quality[rows],
        )

    def with_redundancy(self) -> "Traits":
        """Returns the traits of the languages that lose by dropped columns, of which alone 1/damage means anything."""
        if self.dropout is None:
            raise InputError("no columns were dropped; measure the traits with dropout=True")
        lost = values(self.dropout) > LEAST_DAMAGE
        return self.only([code for code, each in zip(self.languages, lost, strict=True) if each], self.among)

    def table(self) -> Table:
        """Returns the traits of every language."""
        columns: dict[str, Floats] = {f"D, {name}": values(frame) for name, frame in self.damage.items()}
        columns |= {f"ā, {kind} {measure}": each for (kind, measure), each in self.activation.items()}
        columns |= {"κ_eff": self.kappa_eff, "base bits per byte": self.base_bits}
        columns |= {"bytes per token": self.bytes_per_token, "T": self.quality, **self.proxies}
        columns |= {} if self.dropout is None else {"R, dropout": self.robustness}
        columns |= {} if self.shares is None else {"share": self.shares}
        cells = zip(*(map(brief, each.tolist()) for each in columns.values()), strict=True)
        rows = zip(self.catalogued, cells, strict=True)
        return Table(
            f"Traits of {self.among} languages",
            ("language", "script", "family", *columns),
            tuple((each.code, each.script, each.family, *row) for each, row in rows),
        )


def contrast(frame: LanguageFrame, coefficients: Mapping[str, float]) -> Estimate | None:
    """Returns Σ c_λ v_λ over the named languages with its interval; None if the frame lacks one of them."""
    if not set(coefficients) <= set(frame.languages):
        return None
    weights = np.array([coefficients.get(code, 0.0) for code in frame.languages])
    value, low, high = combination(frame.replicates, weights, frame.confidence)
    return Estimate(value, low, high, frame.replicates.clusters, frame.confidence)


def _only(frame: LanguageFrame, codes: Sequence[str]) -> LanguageFrame:
    rows = np.isin(frame.lang, codes)
    records = {name: getattr(frame, name)[rows] for name in ("lang", "document", "values", "weights")}
    return replace(frame, **records)
