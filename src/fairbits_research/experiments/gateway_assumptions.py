"""The assumptions of theorem 3 (004-21) on a model: language-specific ends, a bottleneck, low-resource languages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.memory import LOGIT_POSITIONS
from fairbits.forward.batches import batches
from fairbits.forward.body_and_head import positions_per_batch, split_head
from fairbits.forward.fisher import LossSums
from fairbits.forward.windows import NO_LABEL
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.document_states import (
    DocumentStates,
    document_states,
    parallel_text,
    standardize,
    states_note,
)
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, language_values
from fairbits_research.experiments.language_traits import dropout_damage
from fairbits_research.experiments.probes import LANGUAGE, ProbeHits, probe_states
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    all_of,
    common_answer,
    describe,
    estimate_text,
    is_above,
    is_below,
    number_text,
)
from fairbits_research.experiments.trait_correlation import has_sign, languages_needed
from fairbits_research.stats.unit_estimates import CONFIDENCE, jackknife

BITS = 4
LEAST_LANGUAGES, LEAST_BLOCKS = 4, 4
ENTROPY, MARGIN = "entropy, bits per byte", "margin p₁ − p₂"
DAMAGE, RELATIVE, DROPOUT = f"D, {BITS} bits", "D / base loss", "1/R"
EXPECTED: Mapping[str, int] = {ENTROPY: -1, MARGIN: 1, DAMAGE: -1, RELATIVE: -1, DROPOUT: -1}
"""The sign of the correlation with the amount of training text that the theorem assumes."""


@dataclass(frozen=True, eq=False)
class Jackknifed:
    """A number, and its values without each of the sections."""

    value: float
    without: Floats

    @property
    def estimate(self) -> Estimate:
        """The number with its interval over sections."""
        return jackknife(self.value, self.without)

    def minus(self, *others: "Jackknifed") -> "Jackknifed":
        """Returns this number minus the mean of others."""
        value = self.value - float(np.mean([other.value for other in others]))
        return Jackknifed(value, self.without - np.mean([other.without for other in others], axis=0))

    def log(self) -> "Jackknifed":
        """Returns the logarithm."""
        return Jackknifed(float(np.log(self.value)), np.log(self.without))


def language_share(X: Floats) -> Jackknifed:
    """Returns the share of the variance of states (languages, sections, width) that lies between languages.

    Σ_λ n|x̄_λ − x̄|² / Σ_λ Σ_i |x_λi − x̄|², coordinates scaled to variance 1; without a section from the Gram matrices.
    """
    X = standardize(X)
    m, n, _ = X.shape
    inside, over = np.einsum("lid,ljd->ij", X, X), X.mean(axis=0) @ X.mean(axis=0).T
    square = np.einsum("lid,lid->i", X, X)

    def share(left: Floats, grand: Floats, total: Floats, count: int) -> Floats:
        ratio: Floats = (left / count - m * grand / count) / (total - m * grand / count)
        return ratio

    without = share(_without_one(inside), _without_one(over), square.sum() - square, n - 1)
    return Jackknifed(float(share(inside.sum(), over.sum(), square.sum(), n)), without)


def effective_dimension(X: Floats, sections: NDArray[np.intp]) -> Jackknifed:
    """Returns the participation ratio of states (tokens, width), (tr C)²/tr C², C their covariance.

    tr C² is the mean of (x·y)² over pairs of tokens of different sections, so that few tokens do not make it smaller.
    """
    X = X - X.mean(axis=0)
    members = np.equal.outer(np.unique(sections), sections).astype(np.float64)
    products = members @ (X @ X.T) ** 2 @ members.T
    pairs = np.outer(members.sum(axis=1), members.sum(axis=1))
    squares, count = members @ np.einsum("ij,ij->i", X, X), members.sum(axis=1)
    for table in (products, pairs):
        np.fill_diagonal(table, 0.0)
    without = ((squares.sum() - squares) / (count.sum() - count)) ** 2
    value = (squares.sum() / count.sum()) ** 2 / (products.sum() / pairs.sum())
    return Jackknifed(float(value), without / (_without_one(products) / _without_one(pairs)))


def _without_one(table: Floats) -> Floats:
    """Returns the sum of a symmetric table without each row and its column."""
    sums: Floats = table.sum() - 2 * table.sum(axis=1) + table.diagonal()
    return sums


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """By layer: the share of variance between languages, the effective dimension as it is and with scaled coordinates,
    and the hits of the probe of the language."""

    states: DocumentStates
    language: tuple[Jackknifed, ...]
    dimension: tuple[Jackknifed, ...]
    scaled: tuple[Jackknifed, ...]
    probe: ProbeHits

    def end_answers(self) -> dict[str, tuple[Answer, Estimate]]:
        """Returns for the first and the last block whether it is more language-specific than the middle of its stack.

        The middle is the blocks L/4 … 3L/4, without both ends.
        """
        stacks = list(self.states.stack_blocks().values())
        ends = {"first": (stacks[0], 0), "last": (stacks[-1], -1)}
        answers = {}
        for name, (blocks, at) in ends.items():
            L = len(blocks)
            middle = [b for i, b in enumerate(blocks) if L / 4 <= i <= 3 * L / 4 and i not in (0, L - 1)]
            more = self.language[blocks[at]].minus(*(self.language[block] for block in middle)).estimate
            answers[name] = is_above(more, 0.0), more
        return answers

    def bottleneck(self) -> tuple[Answer, dict[str, int]]:
        """Returns whether the least effective dimension of every stack is in L/2 … 3L/4, and where it is.

        Not scaled, a few huge coordinates can make the dimension small; both ways must agree.
        """
        narrowest, answers = {}, []
        stacks = self.states.stack_blocks()
        for stack, blocks in stacks.items():
            band = [b for i, b in enumerate(blocks) if len(blocks) / 2 <= i <= 3 * len(blocks) / 4]
            for way, dimension in (("as they are", self.dimension), ("scaled", self.scaled)):
                name = f"{stack}, {way}" if len(stacks) > 1 else way
                narrowest[name] = min(blocks, key=lambda block: dimension[block].value)
                answers.append(_least_inside(band, [block for block in blocks if block not in band], dimension))
        return common_answer(answers), narrowest


def _least_inside(band: Sequence[int], outside: Sequence[int], dimension: Sequence[Jackknifed]) -> Answer:
    """Returns whether the least dimension is inside: below that of all other blocks; not supported if one is below it.

    By the logarithms of quotients, with Bonferroni's correction for the number of other blocks.
    """
    inside = min(band, key=lambda block: dimension[block].value)
    quotients = [dimension[inside].log().minus(dimension[block].log()) for block in outside]
    level = 1 - (1 - CONFIDENCE) / len(outside)
    answers = [is_below(jackknife(quotient.value, quotient.without, level), 0.0) for quotient in quotients]
    return all_of(answers)


def layer_profile(states: DocumentStates) -> LayerProfile:
    """Returns how language-specific and how wide the states are, by layer."""
    layers = range(len(states.layers))
    sections = [states.document[rows] for rows in states.token_rows]
    tokens = states.tokens
    return LayerProfile(
        states,
        tuple(language_share(states.by_language(layer)) for layer in layers),
        tuple(effective_dimension(tokens[layer], sections[layer]) for layer in layers),
        tuple(effective_dimension(standardize(tokens[layer]), sections[layer]) for layer in layers),
        probe_states(states)[LANGUAGE],
    )


@torch.no_grad()
def certainty(lab: ModelLab) -> dict[str, LanguageFrame]:
    """Returns how sure the model is in every language: entropy in bits per byte, and mean margin p₁ − p₂ per token."""
    text, model = lab.text, lab.trial.swapped.model
    scores, margins = LossSums(len(text.lang)), torch.zeros(len(text.lang), dtype=torch.float64)
    split = split_head(model, next(batches(text, positions=1)).on(model.device))
    for batch in batches(text, positions=positions_per_batch(model, split)):
        features = split.body(batch.on(model.device))
        for at in torch.split((batch.labels != NO_LABEL).nonzero(), LOGIT_POSITIONS):
            rows, columns = at.T
            p = scores.add(split.head(features[rows, columns]), batch.labels[rows, columns], batch.document[rows])
            first, second = p.topk(2, dim=1).values.T.double().cpu()
            margins.index_add_(0, batch.document[rows], first - second)
    predicted, _, entropy = scores.sums.numpy()
    places = text.lang, text.document
    per_byte = LanguageFrame.from_nats(*places, nats=entropy, tokens=predicted, size_bytes=text.size_bytes)
    per_token = LanguageFrame(*places, values=margins.numpy(), weights=predicted, unit="ratio")
    return {ENTROPY: per_byte, MARGIN: per_token}


def gateway_assumptions(laboratory: Laboratory) -> Result:
    """Returns the result: do the assumptions of theorem 3 hold on this model?"""
    lab = laboratory.lab()
    least = min(map(len, _stacks(lab).values()))
    if least < LEAST_BLOCKS or len(lab.languages) < LEAST_LANGUAGES:
        raise InputError(
            f"{lab.checkpoint.target} has {least} blocks in a stack, and {len(lab.languages)} languages are named; at "
            f"least {LEAST_BLOCKS} blocks and {LEAST_LANGUAGES} languages are needed"
        )
    profile = layer_profile(document_states(lab, parallel_text(lab)))
    traits, links, by = _resource_links(laboratory, lab)
    ends, (narrow, narrowest) = profile.end_answers(), profile.bottleneck()
    answers = {f"the {name} block": answer for name, (answer, _) in ends.items()} | {"the bottleneck": narrow}
    signs = {name: has_sign(link, EXPECTED[name]) for name, link in links.items()}
    answers |= {
        "less redundant": signs[DROPOUT],
        "less sure": all_of([signs[ENTROPY], signs[MARGIN]]),
        "damaged more": all_of([signs[DAMAGE], signs[RELATIVE]]),
    }
    answer = all_of(answers.values())
    because = _because(profile, ends, narrowest, links, by)
    return describe(
        "gateway-assumptions",
        design=_design(profile, by),
        subject=laboratory.subject(bits=[BITS], sections=profile.states.by_language(0).shape[1], resource=by),
        answer=answer,
        verdict=f"That all assumptions hold is {answer.value}: {because}.",
        meaning=_meaning(answers),
        tables=(_answer_table(answers), _layer_table(profile), _link_table(links, by), _trait_table(lab, traits, by)),
        figure=_figure(profile),
        judgements=(
            Judgement(
                "004-21",
                answer,
                because,
                {name.replace(" ", "_"): float(part is Answer.SUPPORTED) for name, part in answers.items()}
                | {f"{name}_minus_middle": more.value for name, (_, more) in ends.items()},
            ),
        ),
        power=languages_needed({f"the rank correlation of {by} and 1/R": links[DROPOUT]})
        if answer is Answer.UNDECIDED
        else "",
        notes=states_note(lab),
    )


def _stacks(lab: ModelLab) -> dict[str, list[int]]:
    stacks: dict[str, list[int]] = {}
    for block in lab.checkpoint.architecture.blocks:
        stacks.setdefault(block.stack, []).append(block.index)
    return stacks


def _resource_links(laboratory: Laboratory, lab: ModelLab) -> tuple[dict[str, Floats], dict[str, Estimate], str]:
    """Returns traits of every language, their rank correlations with the amount of training text, and what stands
    for that amount: the known share, else a low base loss."""
    base = np.array([lab.reference_bits()[code] for code in lab.languages])
    shares, _ = laboratory.shares_or_note()
    by = "low base loss" if shares is None else "training share"
    resource = -base if shares is None else np.array([shares[code] for code in lab.languages])
    traits = {name: language_values(frame) for name, frame in certainty(lab).items()}
    damage = language_values(lab.rounding_damage(BITS))
    traits |= {DAMAGE: damage, RELATIVE: damage / base, DROPOUT: language_values(dropout_damage(lab))}
    links = {name: spearman(resource, values).estimate for name, values in traits.items()}
    return {by: resource, **traits}, links, by


def _because(
    profile: LayerProfile,
    ends: Mapping[str, tuple[Answer, Estimate]],
    narrowest: Mapping[str, int],
    links: Mapping[str, Estimate],
    by: str,
) -> str:
    layers = profile.states.layers
    specific = " and ".join(f"{estimate_text(more)} for the {name} block" for name, (_, more) in ends.items())
    narrow = ", ".join(f"{layers[block].name} ({way})" for way, block in narrowest.items())
    related = ", ".join(f"{name} {estimate_text(link)}" for name, link in links.items())
    return (
        f"the share of variance between languages exceeds that of the middle blocks by {specific}, the effective "
        f"dimension is least after {narrow}, and the rank correlations with {by} are {related}"
    )


def _design(profile: LayerProfile, by: str) -> str:
    states = profile.states
    n = states.by_language(0).shape[1]
    return (
        f"Mean states of {n} parallel sections in {len(states.languages)} languages after every block. "
        "Language-specific: the share of their variance that lies between languages (coordinates scaled to variance "
        "1), compared with the blocks L/4 … 3L/4; the accuracy of a linear probe of the language on held-out sections "
        "is next to it. Bottleneck: the least effective dimension (participation ratio of the covariance) of about "
        f"{len(states.tokens[0])} token states lies in L/2 … 3L/4, with states as they are and with scaled "
        "coordinates. Intervals of both by the jackknife over sections. "
        f"Low-resource: {by}"
        + (", as the shares of the training text are not known" if by != "training share" else "")
        + f". R is 1/damage of dropping columns, D the damage of rounding to nearest at {BITS} bits, margin that "
        "of the two likeliest tokens; correlations are over languages."
    )


def _meaning(answers: Mapping[str, Answer]) -> str:
    listed = {answer: [name for name, part in answers.items() if part is answer] for answer in Answer}
    parts = [f"{answer.value}: {', '.join(names)}" for answer, names in listed.items() if names]
    return (
        f"Of the assumptions, {'; '.join(parts)}. Which layers to protect does not follow from them in any case: "
        "measure it (`--policy protect`)."
    )


def _answer_table(answers: Mapping[str, Answer]) -> ResultTable:
    rows = tuple((name, answer.value) for name, answer in answers.items())
    return ResultTable("The assumptions one by one", ("assumption", "answer"), rows)


def _layer_table(profile: LayerProfile) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for number, layer in enumerate(profile.states.layers):
        measured = (profile.language, profile.dimension, profile.scaled)
        cells = [estimate_text(values[number].estimate) for values in measured]
        rows.append((layer.name, cells[0], estimate_text(profile.probe.share(number)), *cells[1:]))
    columns = ("layer", "variance between languages", "probe of the language", "effective dimension", "scaled")
    return ResultTable("By layer", columns, tuple(rows))


def _link_table(links: Mapping[str, Estimate], by: str) -> ResultTable:
    rows = tuple(
        (name, "+" if EXPECTED[name] > 0 else "−", estimate_text(link), has_sign(link, EXPECTED[name]).value)
        for name, link in links.items()
    )
    return ResultTable(f"Rank correlations with {by}", ("of", "assumed sign", "ρ", "answer"), rows)


def _trait_table(lab: ModelLab, traits: Mapping[str, Floats], by: str) -> ResultTable:
    columns: Sequence[Floats] = [*traits.values()]
    rows = tuple(
        (code, *map(number_text, values))
        for code, *values in zip(lab.languages, *(column.tolist() for column in columns), strict=True)
    )
    names = (by if by == "training share" else "− base bits per byte", *list(traits)[1:])
    return ResultTable("Languages", ("language", *names), rows)


def _figure(profile: LayerProfile) -> ResultFigure:
    x = range(len(profile.states.layers))
    series = (
        Series.of_estimates("variance between languages", x, [share.estimate for share in profile.language]),
        Series.of_estimates("accuracy of the probe of the language", x, [profile.probe.share(layer) for layer in x]),
    )
    return ResultFigure("How language-specific the layers are", "layer (0: embedding)", "share", series, lines=True)
