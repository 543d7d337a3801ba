"""Alignment: how well a model's states of a text in a language match its states of the same text in another language.

A(λ) of theorem 4 (004-27), which the theorem does not define. From parallel sections: after which blocks does the state
of a section in λ find the same section in the pivot language, and by how much are true pairs nearer than others?
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.correlation import spearman
from fairbits.stats.intervals import Estimate
from fairbits.text.tokenization import tokenization
from fairbits_research.experiments.document_states import (
    DocumentStates,
    StateLayer,
    document_states,
    parallel_text,
    states_note,
)
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, language_values
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    describe,
    estimate_text,
    number_text,
    sentence,
)
from fairbits_research.experiments.trait_correlation import has_sign, languages_needed
from fairbits_research.stats.unit_estimates import unit_mean, unit_share

BITS = 3
"""The width of the damage that alignment is compared with."""
LEAST_LANGUAGES = 4


@dataclass(frozen=True, eq=False)
class Alignment:
    """How well the states of languages match those of the pivot; arrays are (layers, languages, sections).

    `hits` and `raw_hits` say whether a section finds itself among all sections of the pivot by cosine, with states
    centred per language and as they are; `true` is the cosine of the centred pair, `others` the mean cosine with the
    other sections of the pivot.
    """

    pivot: str
    languages: tuple[str, ...]
    layers: tuple[StateLayer, ...]
    hits: Floats
    raw_hits: Floats
    true: Floats
    others: Floats

    @property
    def sections(self) -> int:
        """The number of sections, so that chance is 1 of them."""
        return int(self.hits.shape[2])

    @cached_property
    def blocks(self) -> list[int]:
        """The layers that are after a block."""
        return [number for number, layer in enumerate(self.layers) if layer.is_block]

    @property
    def best(self) -> int:
        """The layer with the largest mean accuracy over languages."""
        return max(self.blocks, key=lambda layer: float(self.hits[layer].mean()))

    @property
    def margin(self) -> Floats:
        """True minus other pairs' cosine, mean over blocks: (languages, sections)."""
        nearer: Floats = (self.true - self.others)[self.blocks].mean(axis=0)
        return nearer

    def scores(self) -> dict[str, Estimate]:
        """Returns A(λ) of every language but the pivot: `margin`, mean over sections, from −1 to 1."""
        return {code: unit_mean(row) for code, row in zip(self.languages, self.margin, strict=True)}

    def accuracy(self) -> dict[str, Estimate]:
        """Returns the accuracy of every language, mean over blocks."""
        rows = self.hits[self.blocks].mean(axis=0)
        return {code: unit_share(row) for code, row in zip(self.languages, rows, strict=True)}


def measure_alignment(states: DocumentStates, other: DocumentStates | None = None) -> Alignment:
    """Returns how well languages match the pivot; the pivot's states are those of `other`, if it is there."""
    pivot = states.pivot
    place = states.languages.index(pivot)
    if states.by_language(0).shape[1] < 2:
        raise InputError("the parallel text has one section; at least two are needed to tell sections apart")
    tables = []
    for layer in range(len(states.layers)):
        X, target = states.by_language(layer), (other or states).by_language(layer)[place]
        rest = np.delete(X, place, axis=0)
        centred = cosines(rest - rest.mean(axis=1, keepdims=True), target - target.mean(axis=0))
        tables.append((_finds(centred), _finds(cosines(rest, target)), *_pairs(centred)))
    languages = tuple(code for code in states.languages if code != pivot)
    return Alignment(pivot, languages, states.layers, *map(np.array, zip(*tables, strict=True)))


def cosines(X: Floats, Y: Floats) -> Floats:
    """Returns the cosine of every row of X (…, rows, width) with every row of Y (rows, width); 0 for a row of zeros."""
    a, b = (Z / np.maximum(np.linalg.norm(Z, axis=-1, keepdims=True), np.finfo(np.float64).tiny) for Z in (X, Y))
    similar: Floats = a @ b.T
    return similar


def _finds(similar: Floats) -> Floats:
    """Returns 1 where the most similar row is the same one, else 0."""
    hits: Floats = (similar.argmax(axis=2) == np.arange(similar.shape[1])).astype(np.float64)
    return hits


def _pairs(similar: Floats) -> tuple[Floats, Floats]:
    """Returns the similarity of every row with itself, and its mean similarity with all others."""
    true = np.diagonal(similar, axis1=1, axis2=2)
    return true, (similar.sum(axis=2) - true) / (similar.shape[2] - 1)


def tokenization_quality(lab: ModelLab) -> dict[str, float]:
    """Returns T(λ): tokens of English over those of a language; bytes per token over the largest without English."""
    pieces = tokenization(lab.corpus.calibration, lab.checkpoint.tokenizer(), parallel=lab.corpus.parallel)
    qualities = {code: piece.quality.value for code, piece in pieces.items() if piece.quality is not None}
    if len(qualities) == len(pieces):
        return qualities
    per_token = {code: piece.bytes_per_token.value for code, piece in pieces.items()}
    return {code: size / max(per_token.values()) for code, size in per_token.items()}


def alignment(laboratory: Laboratory) -> Result:
    """Returns the result: how well is every language aligned, and better where its tokenization is better?"""
    lab = laboratory.lab()
    if len(lab.languages) < LEAST_LANGUAGES + 1:
        raise InputError(f"{len(lab.languages)} languages are too few; name at least {LEAST_LANGUAGES + 1}")
    measured = measure_alignment(document_states(lab, parallel_text(lab)))
    scores, T = measured.scores(), tokenization_quality(lab)
    damage = dict(zip(lab.languages, language_values(lab.rounding_damage(BITS)).tolist(), strict=True))
    A = [scores[code].value for code in measured.languages]
    links = {
        "T and A": spearman([T[code] for code in measured.languages], A).estimate,
        f"A and damage at {BITS} bits": spearman(A, [damage[code] for code in measured.languages]).estimate,
    }
    answer = has_sign(links["T and A"], 1)
    best = measured.best
    aligned = [code for code, score in scores.items() if score.low > 0]
    numbers = (
        f"the states of {len(aligned)} of {len(scores)} languages are nearer to those of the same section in "
        f"{measured.pivot} than to those of other sections; after {measured.layers[best].name}, the best layer, a "
        f"section finds itself in {estimate_text(unit_share(measured.hits[best].mean(axis=0)))} of cases "
        f"(chance {1 / measured.sections:.3f}); " + _links_text(links)
    )
    return describe(
        "alignment",
        design=_design(measured),
        subject=laboratory.subject(bits=[BITS], sections=measured.sections, pivot=measured.pivot),
        answer=answer,
        verdict=f"{sentence(numbers)}.",
        meaning=_meaning(measured, answer),
        tables=(*_languages(measured, T, damage), _layers(measured)),
        figure=_figure(measured),
        power=languages_needed({"r of T and A": links["T and A"]}) if answer is Answer.UNDECIDED else "",
        notes=states_note(lab),
    )


def _links_text(links: dict[str, Estimate]) -> str:
    return " and ".join(f"{name} have a rank correlation of {estimate_text(link)}" for name, link in links.items())


def _design(measured: Alignment) -> str:
    return (
        f"The mean state of every section before the first block and after every block, in {len(measured.languages)} "
        f"languages and in {measured.pivot}: {measured.sections} parallel sections, both splits of the text. States "
        "are centred per language. Accuracy: the share of sections that are nearest, by cosine, to the same section of "
        f"{measured.pivot}. A: the cosine of true pairs minus the mean cosine with other sections, mean over blocks; "
        "before the first block it shows what shared words and names alone give. T: the tokens of English over those "
        "of a language for the same text. Intervals over sections, those of correlations over languages."
    )


def _meaning(measured: Alignment, answer: Answer) -> str:
    raw, centred = (float(hits[measured.blocks].mean()) for hits in (measured.raw_hits, measured.hits))
    ending = {
        Answer.SUPPORTED: "Languages that take fewer tokens are better aligned; this alone shows no cause.",
        Answer.NOT_SUPPORTED: "Languages that take fewer tokens are not better aligned.",
        Answer.UNDECIDED: "Whether languages that take fewer tokens are better aligned stays open.",
    }[answer]
    return (
        f"Without centring a section finds itself in {raw:.3f} of cases, mean over blocks and languages, with it in "
        f"{centred:.3f}: each language has its own region, which centring removes. {ending}"
    )


def _languages(measured: Alignment, T: dict[str, float], damage: dict[str, float]) -> tuple[ResultTable, ...]:
    best, scores, accuracy = measured.best, measured.scores(), measured.accuracy()
    rows, more = [], []
    for place, code in enumerate(measured.languages):
        there = unit_share(measured.hits[best, place])
        rows.append((code, *map(estimate_text, (scores[code], accuracy[code], there))))
        cosine = (float(pairs[measured.blocks, place].mean()) for pairs in (measured.true, measured.others))
        more.append((code, *map(number_text, (*cosine, T[code], damage[code]))))
    title = f"Alignment with {measured.pivot}; chance of a hit 1/{measured.sections}"
    columns = ("language", "A", "accuracy, mean of blocks", f"accuracy, {measured.layers[best].name}")
    others = ("language", "cosine of true pairs", "of other pairs", "T", f"D, {BITS} bits")
    return ResultTable(title, columns, tuple(rows)), ResultTable("What A may go with", others, tuple(more))


def _layers(measured: Alignment) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for number, layer in enumerate(measured.layers):
        nearer = measured.true[number] - measured.others[number]
        shares = (unit_share(hits[number].mean(axis=0)) for hits in (measured.hits, measured.raw_hits))
        rows.append((layer.name, *map(estimate_text, chain(shares, [unit_mean(nearer.mean(axis=0))]))))
    columns = ("layer", "accuracy", "accuracy, not centred", "cosine of true minus other pairs")
    return ResultTable("By layer, mean of languages", columns, tuple(rows))


def _figure(measured: Alignment) -> ResultFigure:
    x = range(len(measured.layers))
    series = [
        Series.of_estimates(name, x, [unit_share(hits[layer].mean(axis=0)) for layer in x])
        for name, hits in (("centred per language", measured.hits), ("as they are", measured.raw_hits))
    ]
    title = f"Sections that find themselves in {measured.pivot}"
    return ResultFigure(title, "layer (0: embedding)", "share of sections", tuple(series), lines=True)
