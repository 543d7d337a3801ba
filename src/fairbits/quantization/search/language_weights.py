"""The search for the language weights π with which GPTQ damages the worst language least."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress, part
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.evidence import LanguageWeights
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.plan import Plan
from fairbits.quantization.search.block_sensitivity import LossTrial, per_token
from fairbits.stats.resample import Replicates, link_languages, replicate
from fairbits.text.documents import seeded_hash

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class WeightsTrial:
    """One round: the weights, the loss that they add to every document, and per token of every language."""

    pi: Floats
    added: Floats
    damage: Floats


def minimax_mix(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: TokenizedText,
    rounds: int = 4,
    rate: float = 1.0,
    floor: float = 0.2,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LanguageWeights:
    """Returns π after a few rounds of exponentiated gradient from equal weights: π ← π·exp(η (d_λ − d̄)/d̄).

    Each round quantizes with one half of the text as `plan` says and measures d_λ, the added nats per token, on the
    other half. No language falls below `floor` times its equal share. The round with the smallest worst d is selected
    if it beats equal weights by more than the noise over documents; its d is slightly optimistic.
    """
    fit, check = halves(text, seed=seed)
    _check_documents(text, check)
    trial = LossTrial(checkpoint, check, device=device)
    least = floor / len(text.languages)
    pi, tried = np.full(len(text.languages), 1 / len(text.languages)), list[WeightsTrial]()
    for number in range(rounds + 1):  # round 0 has equal weights
        named = dict(zip(text.languages, pi.tolist(), strict=True))
        stage = part(progress, "trying language weights", number=number, count=rounds + 1)
        weighted = replace(plan, languages=named)
        for block in round_model(checkpoint, weighted, text=fit, device=device, progress=stage):
            trial.swapped.replace(block.layers)
        added = trial.added_nll()
        tried.append(WeightsTrial(pi, added, per_token(added, trial.predicted, check)))
        pi = update_weights(pi, tried[-1].damage, rate=rate, least=least)
    equal, best = tried[0], min(tried, key=lambda trial: trial.damage.max())
    sure = best is not equal and is_better(best.added, equal.added, predicted=trial.predicted, text=check, seed=seed)
    return LanguageWeights(
        pi=dict(zip(text.languages, (best if sure else equal).pi.tolist(), strict=True)),
        rounds=tuple({"pi": _named(text, one.pi), "damage": _named(text, one.damage)} for one in tried),
        notes=(_verdict(tried, best if sure else equal),),
    )


def _check_documents(text: TokenizedText, check: TokenizedText) -> None:
    few = min(text.languages, key=lambda code: int((check.lang == code).sum()))
    if (check.lang == few).sum() < LEAST_DOCUMENTS:
        raise InputError(
            f"{few} has {(text.lang == few).sum()} documents; half of them must be at least {LEAST_DOCUMENTS} to "
            "tell better language weights from noise: give more tokens or documents, or choose another mix than minimax"
        )


def update_weights(pi: Floats, damage: Floats, *, rate: float, least: float) -> Floats:
    """Returns π·exp(η (d − mean d) / mean |d|), normalised, none below `least`."""
    scale = float(np.abs(damage).mean()) or 1.0  # not the mean itself, which noise can make negative
    raised = pi * np.exp(np.clip(rate * (damage - damage.mean()) / scale, -5.0, 5.0))
    # what the floor adds is taken from the others in proportion
    mixed: Floats = least + (1 - least * len(pi)) * raised / raised.sum()
    return mixed


def halves(text: TokenizedText, *, seed: int) -> tuple[TokenizedText, TokenizedText]:
    """Returns the text in two halves, split by the seed; parallel documents are in the same half in all languages."""
    order = sorted(set(text.document.tolist()), key=lambda number: seeded_hash(seed, number))
    rank = {number: i for i, number in enumerate(order)}
    ranks = np.array([rank[number] for number in text.document.tolist()])
    side = np.zeros(len(ranks), dtype=bool)
    for code in text.languages:  # by rank within the language, because not all documents are parallel
        documents = np.flatnonzero(text.lang == code)
        side[documents[np.argsort(ranks[documents], kind="stable")][1::2]] = True
    return _subset(text, ~side), _subset(text, side)


def _subset(text: TokenizedText, kept: NDArray[np.bool_]) -> TokenizedText:
    number = np.cumsum(kept) - 1
    windows = tuple(
        replace(window, document=int(number[window.document])) for window in text.windows if kept[window.document]
    )
    return replace(
        text, lang=text.lang[kept], document=text.document[kept], size_bytes=text.size_bytes[kept], windows=windows
    )


def is_better(new: Floats, old: Floats, *, predicted: Floats, text: TokenizedText, seed: int) -> bool:
    """Returns whether the worst language loses less in 95 % of the resamples of documents, given their added nats."""
    pair = [_replicates(added, predicted, text, seed=seed) for added in (new, old)]  # both draw the same documents
    worst = [(resampled.value + resampled.deviation).max(1) for resampled in pair]
    return bool(np.quantile(worst[0] - worst[1], CONFIDENCE) < 0)


def _replicates(added: Floats, predicted: Floats, text: TokenizedText, *, seed: int) -> Replicates:
    documents = np.unique(text.document, return_inverse=True)[1]
    linked = link_languages(text.language_of, documents, values=added, weights=predicted)
    return replicate(linked, text.languages, resamples=RESAMPLES, rng=np.random.default_rng(seed))


def _named(text: TokenizedText, values: Floats) -> dict[str, float]:
    return {code: float(f"{value:.6g}") for code, value in zip(text.languages, values, strict=True)}


def _verdict(tried: list[WeightsTrial], taken: WeightsTrial) -> str:
    worst = [float(one.damage.max()) for one in tried]
    if taken is tried[0]:
        return (
            f"none of {len(tried) - 1} searched language weights lowered the damage of the worst language "
            f"({worst[0]:.4g} nats/token) by more than the noise, so the weights stay equal"
        )
    number = tried.index(taken)
    return (
        f"the language weights are from round {number} of {len(tried) - 1}: the worst language lost "
        f"{worst[number]:.4g} nats/token on held-out text, and {worst[0]:.4g} with equal weights"
    )
