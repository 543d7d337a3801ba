"""Compare: policies side by side, each applied to the same model and evaluated on the same text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from fairbits.checks import one_of, sequence, whole
from fairbits.errors import InputError
from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.scores.scores import Scores, check_unit
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.device import AUTO, resolve_device
from fairbits.model.scheme import Group
from fairbits.progress import Progress
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.stats import LanguageFrame
from fairbits.trials.plan_trial import PlanResult, PlanTrial, corpus_for
from fairbits.units import MEASURES, UNITS
from fairbits.verbs.comparison import Comparison, Entry
from fairbits.verbs.plan import check_variants
from fairbits.verbs.plan import plan as make_plan

T = TypeVar("T")


def compare(
    model: str | Path | Checkpoint,
    *,
    policies: Iterable[str],
    bits: Iterable[int] = (4,),
    group: Group = 128,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int = 4096,
    evaluation_tokens: int = 8192,
    sequence: int = 512,
    seeds: Iterable[int] = (0,),
    measure: str = "divergence",
    unit: str = "bits_per_byte",
    baseline: str | None = None,
    embeddings: Literal["keep", 8, 4] = "keep",
    device: str = AUTO,
    progress: Progress | None = None,
) -> Comparison:
    """Returns the damage of every policy to every language at every width, on evaluation text.

    The damage is the divergence from the reference model or, with `measure="loss"`, the added loss.

    A policy is a name, or a name with options, such as "gptq:mix=eng=2+fra=1" or "protect:k=2". `tokens` per
    language are for calibration, sampled again for every seed, and `evaluation_tokens` for evaluation, the same for
    all. Policies are compared with `baseline`, by default the first. The model is loaded once: its
    weights are replaced in place.
    """
    device = resolve_device(device)
    calibration = TextRequest("calibration", tokens, sequence)
    evaluation = TextRequest("evaluation", evaluation_tokens, sequence)
    variants = {each: variant(each) for each in _distinct("policies", policies)}
    widths = [whole("bits", each, least=2, most=8) for each in _distinct("bits", bits)]
    requests = [replace(calibration, seed=each) for each in _distinct("seeds", seeds)]
    one_of("measure", measure, MEASURES)  # before anything is read
    one_of("unit", unit, UNITS)
    first = one_of("baseline", next(iter(variants)) if baseline is None else baseline, tuple(variants))
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(model)
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    check_unit(unit, corpus=corpus.name, parallel=corpus.parallel)
    common = {"group": group, "embeddings": embeddings}
    damage = partial(Scores.frame, unit=unit, measure=measure)
    check_variants(checkpoint, corpus, variants.values(), widths=widths, common=common)
    with PlanTrial.of(checkpoint, corpus, request=evaluation, device=device, progress=progress) as trial:
        entries = tuple(
            _entry(trial, each, bits=width, common=common, requests=requests, damage=damage, progress=progress)
            for width in widths
            for each in variants.values()
        )
        settings = {
            **common,
            "tokens": calibration.tokens,
            "sequence": calibration.sequence,
            "evaluation_tokens": evaluation.tokens,
            "seeds": [each.seed for each in requests],
            "text": corpus.name,
        }
        notes = trial.notes
    return Comparison(checkpoint.target, checkpoint.fingerprint, settings, measure, entries, first, notes)


def _entry(
    trial: PlanTrial,
    own: Variant,
    *,
    bits: int,
    common: Mapping[str, Any],
    requests: Sequence[TextRequest],
    damage: Callable[[Scores], LanguageFrame],
    progress: Progress | None,
) -> Entry:
    """Returns one policy at one width; a plan that reads no text is carried out once for all seeds."""
    results: list[PlanResult] = []
    for request in requests:
        plan = make_plan(
            trial.checkpoint,
            policy=own.policy,
            text=trial.corpus if own.reads_text else None,
            device=trial.device,
            progress=progress,
            **{**common, **request.settings, **own.at(bits)},
        )
        same = bool(results) and not plan.reads_text and plan.digest == results[0].plan.digest
        name = f"{own.name}, {bits} bits"
        results.append(results[0] if same else trial.run(plan, name=name, progress=progress))
    return Entry(
        policy=own.name,
        bits=bits,
        plans=tuple(each.plan for each in results),
        frames=tuple(damage(each.scores) for each in results),
        seconds=tuple(each.seconds for each in results),
        scores=tuple(each.scores for each in results),
    )


def _distinct(name: str, values: Iterable[T]) -> tuple[T, ...]:
    found = tuple(dict.fromkeys(sequence(name, values)))
    if not found:
        raise InputError(f"{name} is empty; give at least one")
    return found
