"""Traits of languages: what is measured of every language, in one table that several experiments read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.language import Language, find_language
from fairbits.language.tokenization import tokenization
from fairbits.model.scheme import Clip
from fairbits.probe import Measurements
from fairbits.probe.measurements import Measure
from fairbits.probe.points import PointKind
from fairbits.research.dropout import dropped
from fairbits.research.laboratory import Lab, Laboratory, values
from fairbits.research.many_languages import many
from fairbits.research.result import Table, brief
from fairbits.risk.patterns import Pattern
from fairbits.risk.redundancy import Redundancy, redundancy
from fairbits.stats import Estimate, LanguageFrame
from fairbits.stats.intervals import combination
from fairbits.steps.audit import MEASURES, PATTERNS

OWN, MANY, KNOWN = "own", "many", "known"
"""The model's own languages, many of the declaration, and those of them in which its loss is meaningful."""
KAPPA = 125.0, 148.0
"""The excess kurtosis that the founding documents found in the two outlier layers of BLOOM-560M."""
ACTIVATION: tuple[PointKind, Measure] = "mlp", "norm"
"""What the founding documents call activation: the mean norm of what the MLP of a block gives."""
TREATMENTS: Mapping[str, tuple[int, Clip]] = {
    "nearest, 3 bits": (3, "absmax"),
    "nearest, 4 bits": (4, "absmax"),
    "exact clip, 4 bits": (4, "exact"),
}
LEAST_DAMAGE = 1e-4
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
        return [find_language(code) for code in self.languages]

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
        tables = {name: {key: each[rows] for key, each in getattr(self, name).items()} for name in _BY_NAME}
        return replace(
            self,
            among=among,
            languages=tuple(code for code, kept in zip(self.languages, rows, strict=True) if kept),
            damage={name: _only(frame, codes) for name, frame in self.damage.items()},
            dropout=None if self.dropout is None else _only(self.dropout, codes),
            outlier_share=_only(self.outlier_share, codes),
            shares=None if self.shares is None else self.shares[rows],
            **{name: getattr(self, name)[rows] for name in ("base_bits", "bytes_per_token", "quality")},
            **tables,
        )

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


_BY_NAME = "activation", "kappa", "proxies"


def outlier_blocks(n: int) -> dict[int, float]:
    """Returns which of n blocks get outliers, and their κ.

    >>> outlier_blocks(12)
    {3: 125.0, 7: 148.0}
    """
    return dict(zip((n // 4, (7 * n) // 12), KAPPA, strict=True))


def of_all(
    laboratory: Laboratory, *, dropout: bool = False, treatments: Iterable[str] = TREATMENTS
) -> tuple[list[Traits], tuple[str, ...]]:
    """Returns the traits of own, many and known languages, and notes; own ones alone where text or languages are given.

    They are measured on the variant with outlier blocks, which computes what the model computes.
    """
    model = laboratory.with_outliers(outlier_blocks(laboratory.lab().n_blocks))
    asked = [*treatments]
    own = measure(laboratory.lab(model), OWN, dropout=dropout, treatments=asked, shares=known_shares(laboratory))
    laboratory.lab()  # lets go of the variant
    others, notes = of_others(laboratory, model, dropout=dropout, treatments=asked)
    return [own, *others], notes


def of_others(
    laboratory: Laboratory, model: str, *, dropout: bool, treatments: Sequence[str]
) -> tuple[list[Traits], tuple[str, ...]]:
    """Returns the traits of many languages, then those of the known ones alone, and how they were found."""
    found = many(laboratory)
    if found is None:
        return [], ()
    other, screening = found
    traits = measure(other.lab(model), MANY, dropout=dropout, treatments=treatments)
    known = [code for code in traits.languages if code in screening.known]
    return [traits, traits.only(known, KNOWN)], (screening.said(),)


def deciding(found: Iterable[Traits]) -> list[Traits]:
    """Returns those that decide: languages added to make many, in which the loss says little, are only shown."""
    return [each for each in found if each.among != MANY]


def measure(
    lab: Lab, among: str, *, dropout: bool, treatments: Sequence[str], shares: Mapping[str, float] | None = None
) -> Traits:
    """Returns the traits of the languages of a lab: one pass for the base loss, one for activations, one per damage."""
    codes, measured = lab.languages, lab.measured
    damage = {}
    for i, name in enumerate(treatments):
        lab.tell(f"rounding, {among} languages", i, len(treatments))
        bits, clip = TREATMENTS[name]
        damage[name] = lab.rounded(bits, clip=clip)
    lost = dropped(lab) if dropout else None
    pieces = tokenization(lab.corpus.calibration, lab.checkpoint.tokenizer(), parallel=lab.corpus.parallel)
    per_token = np.array([pieces[code].bytes_per_token.value for code in codes])
    found = [pieces[code].quality for code in codes]
    quality = np.array([each.value for each in found if each is not None])
    patterns = {(kind, way): _share(measured, kind, way) for kind in PATTERNS for way in MEASURES}
    patterns = {key: table for key, table in patterns.items() if table.size}
    outliers = outlier_blocks(lab.n_blocks)
    rows = np.array([measured.languages.index(code) for code in codes])
    bits_per_byte = lab.reference_bits()
    return Traits(
        among=among,
        languages=codes,
        damage=damage,
        dropout=lost,
        outlier_share=outlier_share(measured, outliers, seed=lab.setting.seed),
        activation={k: v[rows][:, _places(measured, k[0], outliers)].sum(axis=1) for k, v in patterns.items()},
        kappa={k: v[rows] @ lab.kappa[measured.blocks(k[0])] for k, v in patterns.items()},
        base_bits=np.array([bits_per_byte[code] for code in codes]),
        bytes_per_token=per_token,
        quality=quality if len(quality) == len(codes) else per_token / per_token.max(),
        proxies=_proxies(measured, codes),
        shares=None if shares is None else np.array([shares[code] for code in codes]),
    )


def outlier_share(measured: Measurements, outliers: Iterable[int], *, seed: int) -> LanguageFrame:
    """Returns the frame of ā_outlier: Σ activation in the outlier blocks / Σ activation, per document and language."""
    kind, way = ACTIVATION
    sums = measured.sums(kind, way)
    inside = sums[:, _places(measured, kind, outliers)].sum(axis=1)
    return LanguageFrame(
        measured.lang, measured.document, values=inside, weights=sums.sum(axis=1), unit="ratio", seed=seed
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


def known_shares(laboratory: Laboratory) -> dict[str, float] | None:
    """Returns the training shares; None where they are not known."""
    try:
        return laboratory.shares
    except InputError:
        return None


def _share(measured: Measurements, kind: PointKind, way: Measure) -> Floats:
    """Returns ā of every language and block at the points of a kind; empty if there are none."""
    if not measured.blocks(kind):
        return np.empty(0)
    sums, tokens = measured.sums(kind, way), measured.sums(kind, "positions")
    pattern = Pattern(measured.lang, measured.document, sums=sums, tokens=tokens)
    rows = [pattern.languages.index(code) for code in measured.languages]
    return pattern.share[rows]


def _places(measured: Measurements, kind: PointKind, blocks: Iterable[int]) -> NDArray[np.intp]:
    """Returns where the blocks are among those that have a point of this kind."""
    wanted = set(blocks)
    return np.array([at for at, block in enumerate(measured.blocks(kind)) if block in wanted], dtype=np.intp)


def _proxies(measured: Measurements, codes: Sequence[str]) -> dict[str, Floats]:
    found = redundancy(
        measured.languages,
        lang=measured.lang,
        document=measured.document,
        tokens=measured.predicted,
        nll=measured.nll,
        entropy=measured.entropy,
        unigrams=measured.unigrams,
        mean_squares={each.name: measured.channels[each.name] for each in measured.points if each.kind == "block"},
    )
    ways: dict[str, Callable[[Redundancy], float]] = {
        "R, as written": lambda each: each.as_written.value,
        "R, effective dimension": lambda each: each.effective_dimension,
        "R, predictive entropy": lambda each: each.predictive_entropy.value,
    }
    return {name: np.array([read(found[code]) for code in codes]) for name, read in ways.items()}
