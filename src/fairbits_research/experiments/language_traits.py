"""Traits of languages, such as damage, activation and tokenization, in one table that several experiments use.

They are measured on the model's own languages and on many languages of the declaration, some of which it knows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.api.audit import MEASURES, PATTERNS, language_redundancy
from fairbits.auditing.record import HEADLINE
from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.forward.points import Measure, PointKind
from fairbits.forward.statistics import ActivationStatistics
from fairbits.kurtosis.redundancy import Redundancy
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Clip
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, combination, estimate_within
from fairbits.text.catalog import Language
from fairbits.text.documents import seeded_hash
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import language_from_code
from fairbits.text.tokenization import tokenization
from fairbits_research.experiments.laboratory import Blocks, Laboratory, ModelLab, Setting, language_values
from fairbits_research.experiments.result import ResultTable, estimate_text, number_text

OWN, MANY, KNOWN = "own", "many", "known"
"""The model's own languages, many of the declaration, and those of them that the model knows."""
POINT_NAMES: Mapping[PointKind, str] = {"block": "block", "mlp": "MLP", "attention": "attention"}
MEASURE_NAMES: Mapping[Measure, str] = {"norm": "norm", "square": "square"}
NO_OUTLIERS = "the model has no outlier blocks; name some with --outlier-layers, or give a cut-off with --outlier-kappa"
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
MOST_LANGUAGES = 100
"""The most languages of the declaration that an experiment uses."""
LEAST_LANGUAGES = 60
"""Where the model knows fewer, the next best ones are added up to this number."""
LEAST_CORRELATED = 4
"""The fewest languages over which a correlation has an interval."""
TOKENS_OF_MANY = 768
"""Tokens per language where there are many languages."""
SCREENING_TOKENS = 128
"""Tokens per language that decide whether the model knows it; at least five documents."""


@dataclass(frozen=True, eq=False)
class LanguageTraits:
    """Measured traits of languages; arrays follow `languages`, which are sorted like those of every frame.

    ā_outlier and κ_eff are those of the block norm, as in an audit; `outlier_share`, the frame of ā_outlier, is None
    where the model has no outlier blocks. `activation` and `kappa` have every measure by (kind, measure), and
    `attention` ā of attention's output in the outlier blocks of the decoder (of all stacks where there is one).
    `quality` is T(λ), `proxies` are proxies of redundancy, and `shares` of the training text are known for own
    languages.
    """

    among: str
    languages: tuple[str, ...]
    damage: Mapping[str, LanguageFrame]
    dropout: LanguageFrame | None
    outlier_share: LanguageFrame | None
    kappa_frame: LanguageFrame
    activation: Mapping[tuple[PointKind, Measure], Floats]
    kappa: Mapping[tuple[PointKind, Measure], Floats]
    attention: Floats | None
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
        return np.array([float(language.script == "Latn") for language in self.catalogued])

    @property
    def outlier_frame(self) -> LanguageFrame:
        """The frame of ā_outlier; raises where the model has no outlier blocks."""
        if self.outlier_share is None:
            raise InputError(NO_OUTLIERS)
        return self.outlier_share

    @property
    def a(self) -> Floats:
        """ā_outlier = Σ ā_l over the outlier blocks (000-20), with a_l the mean norm of a block's output (000-10)."""
        if HEADLINE not in self.activation:
            raise InputError(NO_OUTLIERS)
        return self.activation[HEADLINE]

    @property
    def kappa_eff(self) -> Floats:
        """κ_eff = Σ ā_l κ_l (000-12), with the same ā_l."""
        return self.kappa[HEADLINE]

    def other_measures(self) -> dict[str, Floats]:
        """Returns ā_outlier and κ_eff of every measure of activation but the block norm, by name."""
        both = {"ā_outlier": self.activation, "κ_eff": self.kappa}
        return {
            f"{name}, {POINT_NAMES[kind]} {MEASURE_NAMES[way]}": values
            for name, measured in both.items()
            for (kind, way), values in measured.items()
            if (kind, way) != HEADLINE
        }

    @property
    def robustness(self) -> Floats:
        """R = 1/(damage of dropped columns)."""
        if self.dropout is None:
            raise InputError("no columns were dropped; measure the traits with dropout=True")
        tolerance: Floats = 1 / np.maximum(language_values(self.dropout), LEAST_DAMAGE)
        return tolerance

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
            outlier_share=None if self.outlier_share is None else _restrict(self.outlier_share, codes),
            kappa_frame=_restrict(self.kappa_frame, codes),
            attention=None if self.attention is None else self.attention[rows],
            shares=None if self.shares is None else self.shares[rows],
            activation={key: values[rows] for key, values in self.activation.items()},
            kappa={key: values[rows] for key, values in self.kappa.items()},
            proxies={key: values[rows] for key, values in self.proxies.items()},
            base_bits=self.base_bits[rows],
            bytes_per_token=self.bytes_per_token[rows],
            quality=self.quality[rows],
        )

    @property
    def damaged(self) -> list[str]:
        """The languages that dropped columns damage."""
        lost = (1 / self.robustness > LEAST_DAMAGE).tolist()
        return [code for code, loses in zip(self.languages, lost, strict=True) if loses]

    def with_redundancy(self) -> "LanguageTraits":
        """Returns the traits of the languages that dropped columns damage; only for these 1/damage is meaningful."""
        if len(self.damaged) < LEAST_CORRELATED:
            raise InputError(
                f"dropping columns damages {len(self.damaged)} of {len(self.languages)} {self.among} languages, and "
                f"only for these R = 1/damage exists; at least {LEAST_CORRELATED} are needed: name more languages, or "
                "give more tokens"
            )
        return self.restrict(self.damaged, self.among)

    def main_table(self, damage: str) -> ResultTable:
        """Returns the table of the research notes (000-14): ā_outlier, κ_eff and D of every language, least D first."""
        share, kappa, lost = (
            frame.by_language() for frame in (self.outlier_frame, self.kappa_frame, self.damage[damage])
        )
        rows = tuple(
            (
                code,
                estimate_text(share[code]),
                f"{kappa[code].value:.4g} [{kappa[code].low:.4g}, {kappa[code].high:.4g}]",
                estimate_text(lost[code]),
            )
            for code in sorted(self.languages, key=lambda code: lost[code].value)
        )
        title = f"ā_outlier, κ_eff and damage of {self.among} languages"
        return ResultTable(title, ("language", "ā_outlier", "κ_eff", f"D, {damage}, bits/byte"), rows)

    def tables(self) -> tuple[ResultTable, ...]:
        """Returns the traits of every language, in tables that fit a terminal."""
        others = self.other_measures()
        activation = {} if self.outlier_share is None else {"ā_outlier": self.a}
        activation |= {name: values for name, values in others.items() if name.startswith("ā")}
        kappa = {"κ_eff": self.kappa_eff} | {name: values for name, values in others.items() if name.startswith("κ")}
        damage = {f"D, {name}": language_values(frame) for name, frame in self.damage.items()}
        tolerance = {} if self.dropout is None else {"R, dropout": self.robustness}
        text = {"bytes per token": self.bytes_per_token, "T": self.quality}
        parts: dict[str, dict[str, Floats]] = {
            "Activation": activation,
            "Effective kurtosis": kappa,
            "Damage in bits per byte": damage | {"base loss": self.base_bits},
            "Redundancy": {**tolerance, **self.proxies},
            "Text": text if self.shares is None else text | {"share": self.shares},
        }
        return tuple(self._table(f"{name} of {self.among} languages", part) for name, part in parts.items() if part)

    def _table(self, title: str, columns: Mapping[str, Floats]) -> ResultTable:
        cells = zip(*(map(number_text, values.tolist()) for values in columns.values()), strict=True)
        rows = (
            (language.code, language.script, language.family or "–", *row)
            for language, row in zip(self.catalogued, cells, strict=True)
        )
        table = ResultTable(title, ("language", "script", "family", *columns), tuple(rows))
        if "T" in columns:
            return table
        return replace(table, columns=("language", *columns), rows=tuple((row[0], *row[3:]) for row in table.rows))


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

    ā_outlier is that of the model's outlier blocks (`Laboratory.outliers`).
    """
    names, (shares, _) = [*treatments], laboratory.shares_or_note()
    lab = laboratory.lab()
    of_own = measure_traits(lab, OWN, dropout=dropout, treatments=names, shares=shares)
    of_many, notes = measure_many(laboratory, dropout=dropout, treatments=names)
    return [of_own, *of_many], (lab.outlier_text(), *notes)


def measure_many(
    laboratory: Laboratory, *, dropout: bool, treatments: Sequence[str]
) -> tuple[list[LanguageTraits], tuple[str, ...]]:
    """Returns the traits of known languages, preceded by those of many where known ones are few, and a note on both."""
    many = many_languages(laboratory)
    if many is None:
        return [], ()
    with_many, screening = many
    traits = measure_traits(with_many.lab(), MANY, dropout=dropout, treatments=treatments)
    familiar = [code for code in traits.languages if code in screening.known]
    sets = [] if len(familiar) == len(traits.languages) else [traits]
    if len(familiar) >= LEAST_CORRELATED:
        sets.append(traits.restrict(familiar, KNOWN))
    return sets, (screening.note(),)


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
    qualities = [pieces[code].quality for code in codes]
    quality = np.array([estimate.value for estimate in qualities if estimate is not None])
    patterns = {(kind, way): _shares(lab, kind, way) for kind in PATTERNS if measured.blocks(kind) for way in MEASURES}
    outliers, headline = lab.outliers.blocks or (), lab.pattern(*HEADLINE)
    activation = {k: v[:, _places(measured, k[0], outliers)].sum(axis=1) for k, v in patterns.items() if outliers}
    bits_per_byte = lab.reference_bits()
    return LanguageTraits(
        among=among,
        languages=codes,
        damage=damage,
        dropout=lost,
        outlier_share=headline.frame(_chosen(lab.n_blocks, outliers)) if outliers else None,
        kappa_frame=headline.frame(lab.kappa),
        activation=activation,
        kappa={k: v @ lab.kappa[measured.blocks(k[0])] for k, v in patterns.items()},
        attention=_decoder_attention(lab, outliers, patterns.get(("attention", "norm"))),
        base_bits=np.array([bits_per_byte[code] for code in codes]),
        bytes_per_token=per_token,
        quality=quality if len(quality) == len(codes) else per_token / per_token.max(),
        proxies=_proxies(measured, codes),
        shares=None if shares is None else np.array([shares[code] for code in codes]),
    )


def _chosen(n: int, blocks: Blocks) -> Floats:
    """Returns 1 for the chosen of n blocks, and 0 for the others."""
    return np.isin(np.arange(n), blocks).astype(np.float64)


def _decoder_attention(lab: ModelLab, outliers: Blocks, shares: Floats | None) -> Floats | None:
    """Returns ā of attention's output in the decoder's outlier blocks (in all where the model has one stack)."""
    stacks = lab.stacks
    blocks = [block for block in outliers if len(set(stacks)) == 1 or stacks[block] == "decoder"]
    at = _places(lab.measurements, "attention", blocks)
    return None if shares is None or not len(at) else shares[:, at].sum(axis=1)


def _shares(lab: ModelLab, kind: PointKind, way: Measure) -> Floats:
    """Returns ā of every language of the lab and every block, at the points of a kind."""
    pattern = lab.pattern(kind, way)
    return pattern.share[[pattern.languages.index(code) for code in lab.languages]]


def _places(measured: ActivationStatistics, kind: PointKind, blocks: Iterable[int]) -> NDArray[np.intp]:
    """Returns the positions of the blocks among those that have a point of this kind."""
    wanted = set(blocks)
    return np.array([at for at, block in enumerate(measured.blocks(kind)) if block in wanted], dtype=np.intp)


def _proxies(measured: ActivationStatistics, codes: Sequence[str]) -> dict[str, Floats]:
    redundancy = language_redundancy(measured)
    ways: dict[str, Callable[[Redundancy], float]] = {
        "R, as written": lambda proxies: proxies.as_written.value,
        "R, effective dimension": lambda proxies: proxies.effective_dimension,
        "R, predictive entropy": lambda proxies: proxies.predictive_entropy.value,
    }
    return {name: np.array([read(redundancy[code]) for code in codes]) for name, read in ways.items()}


def dropout_damage(lab: ModelLab) -> LanguageFrame:
    """Returns the damage of setting a random 5 % of the input columns of every linear layer to 0, mean of the draws."""
    frames = []
    for seed in range(DRAWS):
        lab.report("dropping columns", seed, DRAWS)
        frames.append(lab.weights_damage(_without_columns(lab, seed)))
    return replace(frames[0], values=np.mean([frame.values for frame in frames], axis=0))


def _without_columns(lab: ModelLab, seed: int) -> Iterator[tuple[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    for layer in chain.from_iterable(lab.linear_layers):
        W = matrix(lab.checkpoint, layer)
        yield layer.name, W * (torch.rand(W.shape[1], generator=rng) >= DROPPED)


@dataclass(frozen=True)
class LanguageScreening:
    """The bits per byte of every language divided by the entropy of its bytes.

    Below 1 the model knows more than the frequencies of the bytes. Tokenizer and script do not move this threshold.
    """

    loss: Mapping[str, float]

    @property
    def known(self) -> tuple[str, ...]:
        """The languages that the model knows, so that their loss is meaningful."""
        return tuple(code for code, loss in self.loss.items() if loss < 1)

    def choose(self, seed: int) -> list[str]:
        """Returns at most MOST_LANGUAGES known languages, and the next best ones up to LEAST_LANGUAGES."""
        drawn = draw_languages(self.known, MOST_LANGUAGES, seed=seed)
        next_best = sorted(set(self.loss) - set(self.known), key=lambda code: (self.loss[code], code))
        return sorted(drawn + next_best[: max(LEAST_LANGUAGES - len(drawn), 0)])

    def note(self) -> str:
        """Returns a sentence on how many languages the model knows."""
        count = len(self.known)
        added = (
            f"; the {LEAST_LANGUAGES - count} next best are added to make {LEAST_LANGUAGES}"
            if count < LEAST_LANGUAGES
            else ""
        )
        return (
            f"In {count} of the {len(self.loss)} languages of the declaration the model needs fewer bits than a code "
            f"for the frequencies of the bytes{added}."
        )


def many_languages(laboratory: Laboratory) -> tuple[Laboratory, LanguageScreening] | None:
    """Returns a laboratory with many languages of the declaration; None where text or languages were requested."""
    setting = laboratory.setting
    if setting.text is not None or setting.languages is not None:
        return None
    laboratory.release()
    laboratory.report("finding languages the model knows", 0, 1)
    screening = screen_languages(setting.model, setting.sequence, setting.seed, setting.device)
    tokens, calibration = min(setting.tokens, TOKENS_OF_MANY), min(setting.calibration, TOKENS_OF_MANY)
    languages = tuple(screening.choose(setting.seed))
    setting = replace(setting, languages=languages, tokens=tokens, calibration=calibration, shares=None)
    return Laboratory(setting, laboratory.progress), screening


def screen_languages(model: str, sequence: int, seed: int, device: str) -> LanguageScreening:
    """Returns how well a model knows the languages of the declaration, from one pass over a little text of each."""
    checkpoint = Checkpoint(model)
    return _screen(model, (checkpoint.fingerprint, checkpoint.tokenizer_hash), sequence, seed, device)


@cache
def _screen(
    model: str,
    content: tuple[str, ...],  # noqa: ARG001  # another model at the same path is screened again
    sequence: int,
    seed: int,
    device: str,
) -> LanguageScreening:
    setting = Setting(model, tokens=SCREENING_TOKENS, sequence=sequence, seed=seed, device=device)
    corpus = udhr()
    lab = ModelLab(model, setting, corpus, lambda *_: None)
    return LanguageScreening(
        {code: bits / byte_entropy(corpus.evaluation[code]) for code, bits in lab.reference_bits().items()}
    )


def byte_entropy(documents: Iterable[str]) -> float:
    """Returns the entropy of the bytes of a text in bits, each byte on its own."""
    counts = np.bincount(np.frombuffer("".join(documents).encode(), dtype=np.uint8))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log2(p)).sum())


def draw_languages(codes: Iterable[str], most: int, *, seed: int) -> list[str]:
    """Returns at most this many of the languages, spread evenly over scripts and families."""
    strata: dict[tuple[str, str], list[str]] = {}
    for code in sorted(codes, key=lambda code: seeded_hash(seed, code)):
        language = language_from_code(code)
        strata.setdefault((language.script, language.family), []).append(code)
    in_turn = chain.from_iterable(zip_longest(*(strata[key] for key in sorted(strata))))
    return sorted([code for code in in_turn if code is not None][:most])
