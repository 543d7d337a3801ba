"""Compare: policies side by side, each applied to the same model and evaluated on the same text."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

from transformers import PreTrainedTokenizerBase

from fairbits.api.make_plan import check_variants
from fairbits.api.trial_tasks import Trial, TrialWork, pool_and_device, run_trials
from fairbits.comparison.comparison import Comparison, PolicyEntry
from fairbits.comparison.plan_trial import PlanResult, corpus_for
from fairbits.core.checks import one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.task_pool import Cluster
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.language_groups import NamedGroups, read_groups
from fairbits.evaluation.scores import check_unit
from fairbits.models.device import AUTO
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.scales.scheme import Group
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.text.corpus import Corpus, TextRequest

T = TypeVar("T")


def compare(
    model: Model,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
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
    groups: NamedGroups | None = None,
    device: str = AUTO,
    results: str | Path | None = None,
    ray: str | Cluster | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Returns the damage of every policy to every language at every width, on evaluation text.

    `model` may be a loaded model of transformers, with its `tokenizer`; it is not changed. The damage is the divergence
    from the reference model or, with `measure="loss"`, the added loss. A policy is a name, or a name with options, such
    as "gptq:mix=eng=2+fra=1" or "protect:k=2". `tokens` per language are for calibration, sampled again for every seed,
    and `evaluation_tokens` for evaluation, the same for all. Policies are compared with `baseline`, by default the
    first. `groups` of languages, such as "high=eng,fra;low=swh,yor", are compared with each other. The model is loaded
    once: its weights are replaced in place.

    `results` is a directory that keeps every finished trial, so that the same call continues after an interruption.
    `ray` is the address of a Ray cluster ("local" starts one here), or a `Cluster`: each policy, width and seed is a
    task there, and each process that Ray starts loads the model once.
    """
    calibration = TextRequest("calibration", tokens, sequence)
    evaluation = TextRequest("evaluation", evaluation_tokens, sequence)
    variants = {name: variant(name) for name in _distinct("policies", policies)}
    widths = [whole("bits", width, least=2, most=8) for width in _distinct("bits", bits)]
    requests = [replace(calibration, seed=seed) for seed in _distinct("seeds", seeds)]
    one_of("measure", measure, MEASURES)  # before anything is read
    one_of("unit", unit, UNITS)
    first = one_of("baseline", next(iter(variants)) if baseline is None else baseline, tuple(variants))
    checkpoint = open_checkpoint(model, tokenizer)
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    check_unit(unit, corpus=corpus.name, parallel=corpus.parallel)
    named = {} if groups is None else read_groups(groups, corpus.evaluation, model=checkpoint.target)
    common = {"group": group, "embeddings": embeddings}
    check_variants(checkpoint, corpus, variants.values(), widths=widths, common=common)
    # a policy that reads no text has the same result for all seeds
    trials = [
        Trial(policy, width, request, f"{policy.name}, {width} bits")
        for width in widths
        for policy in variants.values()
        for request in (requests if policy.reads_text else requests[:1])
    ]
    with pool_and_device(ray, device) as (pool, device):
        work = TrialWork(checkpoint, corpus, evaluation, common, device)
        done = run_trials(trials, work, pool=pool, results=results, progress=progress)
    remaining = iter(done)
    entries = tuple(
        _entry(policy, width, remaining, requests, measure, unit) for width in widths for policy in variants.values()
    )
    settings = {
        **common,
        "tokens": calibration.tokens,
        "sequence": calibration.sequence,
        "evaluation_tokens": evaluation.tokens,
        "seeds": [request.seed for request in requests],
        "text": corpus.name,
        **({"groups": {name: list(codes) for name, codes in named.items()}} if named else {}),
    }
    notes = done[0].scores.notes  # those on model, text and reference, which all trials share
    return Comparison(checkpoint.target, checkpoint.fingerprint, settings, measure, entries, first, notes)


def _entry(
    policy: Variant, bits: int, remaining: Iterator[PlanResult], requests: list[TextRequest], measure: str, unit: str
) -> PolicyEntry:
    count = len(requests)
    results = list(islice(remaining, count)) if policy.reads_text else [next(remaining)] * count
    return PolicyEntry(
        policy=policy.name,
        bits=bits,
        plans=tuple(result.plan for result in results),
        frames=tuple(result.scores.frame(unit, measure=measure) for result in results),
        seconds=tuple(result.seconds for result in results),
        scores=tuple(result.scores for result in results),
    )


def _distinct(name: str, values: Iterable[T]) -> tuple[T, ...]:
    distinct = tuple(dict.fromkeys(sequence(name, values)))
    if not distinct:
        raise InputError(f"{name} is empty; give at least one")
    return distinct
