"""Traits of languages, such as damage, activation and tokenization, in one table that several experiments use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.api.audit import MEASURES, PATTERNS, language_redundancy
from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.forward.recorder import PointKind
from fairbits.forward.statistics import ActivationStatistics, Measure
from fairbits.kurtosis.patterns import Pattern
from fairbits.kurtosis.redundancy import Redundancy
from fairbits.models.scales.scheme import Clip
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, combination, estimate_within
from fairbits.text.catalog import Language
from fairbits.text.language_codes import language_from_code
from fairbits.text.tokenization import tokenization
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, language_values, outlier_blocks
from fairbits_research.experiments.language_screening import many_languages
from fairbits_research.experiments.result import Table, number_text

OWN, MANY, KNOWN = "own", "many", "known"
"""The model's own languages, many of the declaration, and those of them that the model knows."""
ACTIVATION: tuple[PointKind, Measure] = "mlp", "norm"
"""What the research notes call activation: the mean norm of the output of a block's MLP."""
LEAST_DAMAGE = 1e-3
"""Bits per byte; smaller damage cannot be distinguished from none and would make 1/damage infinite."""
TREATMENTS: Mapping[str, tuple[int, Clip]] = {
    "nearest, 3 bits": (3, "absmax"),
    "nearest, 4 bits": (4, "absmax"),
    "exact clip, 4 bits": (4, "exact"),
}
"""Name -> width and clip."""
DROPPED = 0.05
"""The share of input columns that is set to 0."""
DRAWS = 4
"""Random choices of these columns."""


@dataclass(frozen=True, eq=False)
class LanguageTraits:
    """Measured traits of languages; arrays follow `languages`, which are sorted like those of every frame.

    `activation` maps (kind, measure) to ā_outlier and `kappa` to κ_eff; `outlier_share` is the frame of the ā_outlier
    that the documents use. `quality` is T(λ), `proxies` are proxies of redundancy, and `shares` of the training text
    are known for own languages.
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
        """The entries of the catalog."""
        return [language_from_code(code) for code in self.languages]

    @property
    def latin(self) -> Floats:
        """1 for a language in Latin script."""
        return np.array([float(each.script == "Latn") for each in self.catalogued])

    @property
    def a(self) -> Floats:
        """ā_outlier as the documents define it."""
        return self.activation[ACTIVATION]

    @property
    def kappa_eff(self) -> Floats:
        """κ_eff as the documents define it."""
        return self.kappa[ACTIVATION]

    @property
    def robustness(self) -> Floats:
        """R = 1/(damage of dropped columns)."""
        if self.dropout is None:
            raise InputError("no columns were dropped; measure the traits with dropout=True")
        found: Floats = 1 / np.maximum(language_values(self.dropout), LEAST_DAMAGE)
        return found

    @property
    def log_share(self) -> Mapping[str, Floats]:
        """The logarithm of the training share as a covariate, where it is known."""
        return {} if self.shares is None else {"log share": np.log(self.shares)}

    @property
    def text_traits(self) -> Mapping[str, Floats]:
        """Script, bytes per token and base loss as covariates."""
        return {"Latin script": self.latin, "bytes per token": self.bytes_per_token, "base loss": self.base_bits}

    def restrict(self, codes: Sequence[str], among: str) -> "LanguageTraits":
        """Returns the traits of some of the languages."""
        rows = np.isin(self.languages, codes)
        return replace(
            self,
            among=among,
            languages=tuple(code for code, kept in zip(self.languages, rows, strict=True) if kept),
            damage={name: _restrict(frame, codes) for name, frame in self.damage.items()},
            dropout=None if self.dropout is None else _restrict(self.dropout, codes),
            outlier_share=_restrict(self.outlier_share, codes),
            shares=None if self.shares is None else self.shares[rows],
            activation={key: each[rows] for key, each in self.activation.items()},
            kappa={key: each[rows] for key, each in self.kappa.items()},
            proxies={key: each[rows] for key, each in self.proxies.items()},
            base_bits=self.base_bits[rows],
            bytes_per_token=self.bytes_per_token[rows],
            quality=self.quality[rows],
        )

    def with_redundancy(self) -> "LanguageTraits":
        """Returns the traits of the languages that dropped columns damage; only for these 1/damage is meaningful."""
        if self.dropout is None:
            raise InputError("no columns were dropped; measure the traits with dropout=True")
        lost = language_values(self.dropout) > LEAST_DAMAGE
        return self.restrict([code for code, each in zip(self.languages, lost, strict=True) if each], self.among)

    def table(self) -> Table:
        """Returns the traits of every language."""
        columns: dict[str, Floats] = {f"D, {name}": language_values(frame) for name, frame in self.damage.items()}
        columns |= {f"ā, {kind} {measure}": each for (kind, measure), each in self.activation.items()}
        columns |= {"κ_eff": self.kappa_eff, "base bits per byte": self.base_bits}
        columns |= {"bytes per token": self.bytes_per_token, "T": self.quality, **self.proxies}
        columns |= {} if self.dropout is None else {"R, dropout": self.robustness}
        columns |= {} if self.shares is None else {"share": self.shares}
        cells = zip(*(map(number_text, each.tolist()) for each in columns.values()), strict=True)
        rows = zip(self.catalogued, cells, strict=True)
        return Table(
            f"Traits of {self.among} languages",
            ("language", "script", "family", *columns),
            tuple((each.code, each.script, each.family, *row) for each, row in rows),
        )


def combine_languages(frame: LanguageFrame, coefficients: Mapping[str, float]) -> Estimate | None:
    """Returns Σ c_λ v_λ over the named languages; None if the frame has no resamples of one of them."""
    drawn = frame.replicates
    if not set(coefficients) <= set(drawn.languages):
        return None
    weights = np.array([coefficients.get(code, 0.0) for code in drawn.languages])
    value, low, high = combination(drawn, weights, frame.confidence)
    return estimate_within(value, low, high, n=drawn.clusters, confidence=frame.confidence)


def _restrict(frame: LanguageFrame, codes: Sequence[str]) -> LanguageFrame:
    rows = np.isin(frame.lang, codes)
    records = {name: getattr(frame, name)[rows] for name in ("lang", "document", "values", "weights")}
    return replace(frame, **records)


def measure_all(
    laboratory: Laboratory, *, dropout: bool = False, treatments: Iterable[str] = TREATMENTS
) -> tuple[list[LanguageTraits], tuple[str, ...]]:
    """Returns the traits of own, many and known languages, and notes; own ones only where text or languages are given.

    They are measured on the variant with outlier blocks, which computes the same function as the model.
    """
    model = laboratory.with_outliers(outlier_blocks(laboratory.lab().n_blocks))
    names = [*treatments]
    own = measure_traits(laboratory.lab(model), OWN, dropout=dropout, treatments=names, shares=known_shares(laboratory))
    laboratory.lab()  # frees the variant
    others, notes = measure_others(laboratory, model, dropout=dropout, treatments=names)
    return [own, *others], notes


def measure_others(
    laboratory: Laboratory, model: str, *, dropout: bool, treatments: Sequence[str]
) -> tuple[list[LanguageTraits], tuple[str, ...]]:
    """Returns the traits of known languages, preceded by those of many where known ones are few, and a note on both."""
    found = many_languages(laboratory)
    if found is None:
        return [], ()
    other, screening = found
    traits = measure_traits(other.lab(model), MANY, dropout=dropout, treatments=treatments)
    known = [code for code in traits.languages if code in screening.known]
    enough = len(known) == len(traits.languages)
    return [*([] if enough else [traits]), traits.restrict(known, KNOWN)], (screening.note(),)


def measure_traits(
    lab: ModelLab, among: str, *, dropout: bool, treatments: Sequence[str], shares: Mapping[str, float] | None = None
) -> LanguageTraits:
    """Returns the traits of the languages of a lab: one pass for the base loss, one for activations, one per damage."""
    codes, measured = lab.languages, lab.measurements
    damage = {}
    for i, name in enumerate(treatments):
        lab.report(f"rounding, {among} languages", i, len(treatments))
        bits, clip = TREATMENTS[name]
        damage[name] = lab.rounding_damage(bits, clip=clip)
    lost = dropout_damage(lab) if dropout else None
    pieces = tokenization(lab.corpus.calibration, lab.checkpoint.tokenizer(), parallel=lab.corpus.parallel)
    per_token = np.array([pieces[code].bytes_per_token.value for code in codes])
    found = [pieces[code].quality for code in codes]
    quality = np.array([each.value for each in found if each is not None])
    patterns = {(kind, way): _share(measured, kind, way) for kind in PATTERNS for way in MEASURES}
    patterns = {key: table for key, table in patterns.items() if table.size}
    outliers = outlier_blocks(lab.n_blocks)
    rows = np.array([measured.languages.index(code) for code in codes])
    bits_per_byte = lab.reference_bits()
    return LanguageTraits(
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


def outlier_share(measured: ActivationStatistics, outliers: Iterable[int], *, seed: int) -> LanguageFrame:
    """Returns the frame of ā_outlier: Σ activation in the outlier blocks / Σ activation, per document and language."""
    kind, way = ACTIVATION
    sums = measured.sums(kind, way)
    inside = sums[:, _places(measured, kind, outliers)].sum(axis=1)
    return LanguageFrame(
        measured.lang, measured.document, values=inside, weights=sums.sum(axis=1), unit="ratio", seed=seed
    )


def known_shares(laboratory: Laboratory) -> dict[str, float] | None:
    """Returns the training shares; None where they are not known."""
    try:
        return laboratory.shares
    except InputError:
        return None


def _share(measured: ActivationStatistics, kind: PointKind, way: Measure) -> Floats:
    """Returns ā of every language and block at the points of a kind; empty if there are none."""
    if not measured.blocks(kind):
        return np.empty(0)
    sums, tokens = measured.sums(kind, way), measured.sums(kind, "positions")
    pattern = Pattern(measured.lang, measured.document, sums=sums, tokens=tokens)
    rows = [pattern.languages.index(code) for code in measured.languages]
    return pattern.share[rows]


def _places(measured: ActivationStatistics, kind: PointKind, blocks: Iterable[int]) -> NDArray[np.intp]:
    """Returns the positions of the blocks among those that have a point of this kind."""
    wanted = set(blocks)
    return np.array([at for at, block in enumerate(measured.blocks(kind)) if block in wanted], dtype=np.intp)


def _proxies(measured: ActivationStatistics, codes: Sequence[str]) -> dict[str, Floats]:
    found = language_redundancy(measured)
    ways: dict[str, Callable[[Redundancy], float]] = {
        "R, as written": lambda each: each.as_written.value,
        "R, effective dimension": lambda each: each.effective_dimension,
        "R, predictive entropy": lambda each: each.predictive_entropy.value,
    }
    return {name: np.array([read(found[code]) for code in codes]) for name, read in ways.items()}


def dropout_damage(lab: ModelLab) -> LanguageFrame:
    """Returns the damage of setting a random 5 % of the input columns of every linear layer to 0, mean of the draws."""
    frames = []
    for seed in range(DRAWS):
        lab.report("dropping columns", seed, DRAWS)
        frames.append(lab.weights_damage(_without_columns(lab, seed)))
    return replace(frames[0], values=np.mean([each.values for each in frames], axis=0))


def _without_columns(lab: ModelLab, seed: int) -> Iterator[tuple[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    for each in chain.from_iterable(lab.linear_maps):
        W = matrix(lab.checkpoint, each)
        yield each.name, W * (torch.rand(W.shape[1], generator=rng) >= DROPPED)
