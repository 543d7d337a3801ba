"""Probes: what a linear function can read from the hidden states, per layer, before and after quantization.

Language and script of a text, and which section of the source it is: parallel text gives these labels for nothing.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code
from fairbits_research.experiments.document_states import (
    DocumentStates,
    document_states,
    parallel_text,
    rounded_states,
    standardize,
    states_note,
)
from fairbits_research.experiments.laboratory import Laboratory, language_values
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
)
from fairbits_research.experiments.trait_correlation import NONE, has_sign, languages_needed
from fairbits_research.stats.unit_estimates import unit_mean, unit_share

BITS = (4, 3)
RIDGE = 1.0
"""The penalty, in mean squared norms of a state: a heuristic. On the embedded model 3 reads as much of the section as
1, and 0.01 half of it."""
INTERCEPT = 10.0
"""The size of the constant that is added to every state, so that the penalty hardly touches its weight."""
LANGUAGE, SCRIPT, SECTION, OTHER = "language", "script", "section", "other"
LEAST_LANGUAGES = 4

Labels = NDArray[np.intp]


def held_out_classes(X: Floats, labels: Labels, groups: Labels) -> Labels:
    """Returns the class of every row by a linear probe that was fitted without the rows of its group.

    Ridge regression of one-hot labels on standardised states. With S = (K + ρI)⁻¹, K = XXᵀ, the residual of a held-out
    group is S_gg⁻¹ (S Y)_g: all groups from one inverse.
    """
    Y = np.eye(int(labels.max()) + 1)[labels]
    K = X @ X.T
    K = K / K.diagonal().mean() + INTERCEPT
    S = np.linalg.inv(K + RIDGE * np.eye(len(K)))
    residual, scores = S @ Y, np.empty_like(Y)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        scores[rows] = Y[rows] - np.linalg.solve(S[np.ix_(rows, rows)], residual[rows])
    classes: Labels = scores.argmax(axis=1)
    return classes


@dataclass(frozen=True, eq=False)
class ProbeHits:
    """Which documents a probe got right, (layers, languages, sections), and what guessing the commonest class gets.

    `over` is the axis of what was held out: intervals are over its units.
    """

    hits: Floats
    languages: tuple[str, ...]
    chance: float
    over: int

    def share(self, layer: int) -> Estimate:
        """Returns the held-out accuracy after a layer, with its interval over what was held out."""
        return unit_share(self.hits[layer].mean(axis=1 - self.over))

    def mean_over(self, layers: list[int]) -> Floats:
        """Returns the accuracy of every held-out unit, mean over layers."""
        rows: Floats = self.hits[layers].mean(axis=(0, 2 - self.over))
        return rows

    def by_language(self, layers: list[int]) -> Floats:
        """Returns the accuracy in every language, mean over layers."""
        rows: Floats = self.hits[layers].mean(axis=(0, 2))
        return rows


def probe_states(states: DocumentStates) -> dict[str, ProbeHits]:
    """Returns what probes read of language, script and section from the states of parallel text.

    Language: fitted on other sections, in all languages. Script and section: fitted on other languages. For sections,
    states are centred per language. Scripts of one language count as one class, and it is left out if it is alone.
    """
    codes = states.languages
    all_scripts = [language_from_code(code).script for code in codes]
    scripts = [script if all_scripts.count(script) > 1 else OTHER for script in all_scripts]
    shared = [place for place, script in enumerate(scripts) if scripts.count(script) > 1]
    kinds = sorted({scripts[place] for place in shared})
    probed = {LANGUAGE: _probe(states, range(len(codes)), over=1), SECTION: _probe(states, None, over=0)}
    if len(kinds) > 1:
        rows = [kinds.index(scripts[place]) for place in shared]
        probed[SCRIPT] = _probe(states, rows, over=0, places=shared)
    return {name: probed[name] for name in (LANGUAGE, SCRIPT, SECTION) if name in probed}


def _probe(
    states: DocumentStates, classes: "range | list[int] | None", *, over: int, places: list[int] | None = None
) -> ProbeHits:
    """Returns the hits of a probe of classes of languages, or of sections (None); units of axis `over` are held out."""
    chosen = list(range(len(states.languages))) if places is None else places
    hits, truth = [], np.empty(0, dtype=np.intp)
    for layer in range(len(states.layers)):
        X = states.by_language(layer)[chosen]
        languages, sections = (axis.ravel() for axis in np.indices(X.shape[:2]))
        truth = sections if classes is None else np.array(classes, dtype=np.intp)[languages]
        X = standardize(X - X.mean(axis=1, keepdims=True) if classes is None else X)
        predicted = held_out_classes(X.reshape(len(truth), -1), truth, (languages, sections)[over])
        hits.append((predicted == truth).reshape(X.shape[:2]))
    chance = max(Counter(truth.tolist()).values()) / len(truth)
    return ProbeHits(np.array(hits, dtype=np.float64), tuple(states.languages[i] for i in chosen), chance, over)


def probes(laboratory: Laboratory) -> Result:
    """Returns the result: what can be read from the states, what quantization takes of it, and is that the damage?"""
    lab = laboratory.lab()
    if len(lab.languages) < LEAST_LANGUAGES:
        raise InputError(f"{len(lab.languages)} languages are too few; name at least {LEAST_LANGUAGES}")
    text = parallel_text(lab)
    states = document_states(lab, text)
    before, after, damage = probe_states(states), {}, {}
    for bits in BITS:
        rounded, damage[bits] = rounded_states(lab, text, bits)
        after[bits] = probe_states(rounded)
    lost = {(name, bits): _lost(before[name], after[bits][name], states.blocks) for name in before for bits in BITS}
    links = _links(before, after, damage, states.blocks)
    main = links[SECTION, BITS[-1]]
    answer = Answer.UNDECIDED if main is None else has_sign(main, 1)
    n = states.by_language(0).shape[1]
    return describe(
        "probes",
        design=_design(states, n),
        subject=laboratory.subject(bits=list(BITS), sections=n, ridge=RIDGE),
        answer=answer,
        verdict=_verdict(before, lost, main),
        meaning=_meaning(before, lost, states.blocks),
        tables=(
            _summary(before, states),
            _losses(before, after, lost, links, states),
            *_layer_tables(before, after, states),
        ),
        figure=_figure(before, after, states),
        power=languages_needed({"the correlation": main}) if main is not None and answer is Answer.UNDECIDED else "",
        notes=(
            *states_note(lab),
            *(() if SCRIPT in before else ("The languages have one script: no probe of scripts.",)),
        ),
    )


def _lost(before: ProbeHits, after: ProbeHits, blocks: list[int]) -> Estimate:
    """Returns the accuracy before minus that after, mean over blocks, paired by what was held out."""
    return unit_mean(before.mean_over(blocks) - after.mean_over(blocks))


def _links(
    before: Mapping[str, ProbeHits],
    after: Mapping[int, Mapping[str, ProbeHits]],
    damage: Mapping[int, LanguageFrame],
    blocks: list[int],
) -> dict[tuple[str, int], Estimate | None]:
    """Returns the rank correlation over languages of lost accuracy and damage; None where no language differs."""
    links: dict[tuple[str, int], Estimate | None] = {}
    for bits, frame in damage.items():
        values = dict(zip(frame.languages, language_values(frame).tolist(), strict=True))
        for name, hits in before.items():
            lost = hits.by_language(blocks) - after[bits][name].by_language(blocks)
            D = np.array([values[code] for code in hits.languages])
            varied = len(D) >= LEAST_LANGUAGES and np.ptp(lost) > 0
            links[name, bits] = spearman(lost, D).estimate if varied else None
    return links


def _kept(before: ProbeHits, lost: Estimate, blocks: list[int]) -> float:
    """Returns the share of what was above chance that is still read; 0 where nothing was."""
    above = float(before.mean_over(blocks).mean()) - before.chance
    return 1 - lost.value / above if above > 0 else 0.0


def _design(states: DocumentStates, n: int) -> str:
    return (
        f"Mean state of each of {n} parallel sections in {len(states.languages)} languages, before the first block and "
        f"after every block, of the model and of the model rounded to nearest at {BITS[0]} and {BITS[1]} bits. Linear "
        f"probes (ridge regression of one-hot labels, penalty {RIDGE:g} mean squared norm, coordinates scaled "
        "to variance 1), fitted anew to each model. The probe of the language is fitted on all other sections; those "
        "of script (scripts of one language count as one) and section on all other languages, for sections with states "
        "centred per language. Intervals are over what is held out. Lost accuracy is the mean over blocks; its rank "
        "correlation with the damage is over languages. Supported: languages that lose more of the section have more "
        f"damage at {BITS[-1]} bits."
    )


def _verdict(before: Mapping[str, ProbeHits], lost: Mapping[tuple[str, int], Estimate], main: Estimate | None) -> str:
    bits = BITS[-1]
    parts = ", ".join(f"{estimate_text(lost[name, bits])} of {name}" for name in before)
    relation = (
        "no language loses any of the section, so nothing can be related to damage"
        if main is None
        else f"over languages, lost accuracy of the section and damage have a rank correlation of {estimate_text(main)}"
    )
    return f"At {bits} bits probes lose accuracy by {parts}; {relation}."


def _meaning(before: Mapping[str, ProbeHits], lost: Mapping[tuple[str, int], Estimate], blocks: list[int]) -> str:
    for bits in BITS:
        clear = [name for name in before if lost[name, bits].low > 0]
        if clear:
            first = min(clear, key=lambda name: _kept(before[name], lost[name, bits], blocks))
            return (
                f"Quantization first takes the {first}: at {bits} bits a probe still reads "
                f"{_kept(before[first], lost[first, bits], blocks):.0%} of what it read above chance, clearly less "
                "than before. What other probes lose is in the table."
            )
    return f"Down to {BITS[-1]} bits no probe clearly loses anything that it could read."


def _summary(before: Mapping[str, ProbeHits], states: DocumentStates) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for name, hits in before.items():
        best = max(states.blocks, key=lambda layer: float(hits.hits[layer].mean()))
        mean, there = unit_share(hits.mean_over(states.blocks)), hits.share(best)
        rows.append(
            (name, number_text(hits.chance), estimate_text(mean), states.layers[best].name, estimate_text(there))
        )
    columns = ("probe of", "chance", "accuracy, mean of blocks", "best layer", "accuracy there")
    return ResultTable("What probes read in what they have not seen", columns, tuple(rows))


def _losses(
    before: Mapping[str, ProbeHits],
    after: Mapping[int, Mapping[str, ProbeHits]],
    lost: Mapping[tuple[str, int], Estimate],
    links: Mapping[tuple[str, int], Estimate | None],
    states: DocumentStates,
) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for (name, bits), link in links.items():
        by_layer = (before[name].hits - after[bits][name].hits).mean(axis=(1, 2))
        most = max(states.blocks, key=lambda layer: float(by_layer[layer]))
        kept = f"{_kept(before[name], lost[name, bits], states.blocks):.0%}"
        where = states.layers[most].name if by_layer[most] > 0 else NONE
        related = NONE if link is None else f"{estimate_text(link)}, n = {link.n}"
        rows.append((name, bits, estimate_text(lost[name, bits]), kept, where, related))
    columns = ("probe of", "bits", "accuracy lost", "kept above chance", "most after", "rank correlation with damage")
    return ResultTable("What quantization takes", columns, tuple(rows))


def _layer_tables(
    before: Mapping[str, ProbeHits], after: Mapping[int, Mapping[str, ProbeHits]], states: DocumentStates
) -> tuple[ResultTable, ...]:
    tables = []
    for name, hits in before.items():
        variants = [hits, *(after[bits][name] for bits in BITS)]
        rows = tuple(
            (layer.name, *(estimate_text(variant.share(number)) for variant in variants))
            for number, layer in enumerate(states.layers)
        )
        columns = ("layer", "not rounded", *(f"{bits} bits" for bits in BITS))
        tables.append(ResultTable(f"Probe of the {name}, chance {hits.chance:.3f}", columns, rows))
    return tuple(tables)


def _figure(
    before: Mapping[str, ProbeHits], after: Mapping[int, Mapping[str, ProbeHits]], states: DocumentStates
) -> ResultFigure:
    x, bits = range(len(states.layers)), BITS[-1]
    series = []
    for name, hits in before.items():
        for label, variant in ((name, hits), (f"{name}, {bits} bits", after[bits][name])):
            series.append(Series.of_estimates(label, x, [variant.share(layer) for layer in x]))
    return ResultFigure("What probes read", "layer (0: embedding)", "held-out accuracy", tuple(series), lines=True)
