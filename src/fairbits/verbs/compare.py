"""Compare: policies side by side, each put into the same model and asked the same text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from fairbits.checks import one_of, sequence, whole
from fairbits.errors import InputError
from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.scores.scores import check_unit
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.device import check_device
from fairbits.model.scheme import Group
from fairbits.progress import Progress
from fairbits.quantize.policies import reads_text
from fairbits.trials.plan_trial import Bench, Run, corpus_for
from fairbits.units import UNITS
from fairbits.verbs.comparison import Comparison, Entry
from fairbits.verbs.plan import plan as planned
from fairbits.verbs.variants import Variant, check_variants, variant

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
    unit: str = "bits_per_byte",
    baseline: str | None = None,
    embeddings: Literal["keep", 8, 4] = "keep",
    device: str = "cpu",
    progress: Progress | None = None,
) -> Comparison:
    """Returns what every policy costs every language at every width, on evaluation text.

    A policy is a name, or a name with options of its own, such as "gptq:mix=eng=2+fra=1" or "protect:k=2". `tokens`
    per language are for calibration, drawn anew for every seed, and `evaluation_tokens` for evaluation, the same for
    all. The others are held to `baseline`, the first policy if none is named. The model is loaded once: weights are
    exchanged in place.
    """
    check_device(device)
    calibration = TextRequest("calibration", tokens, sequence)
    evaluation = TextRequest("evaluation", evaluation_tokens, sequence)
    variants = {each: variant(each) for each in _distinct("policies", policies)}
    widths = [whole("bits", each, least=2, most=8) for each in _distinct("bits", bits)]
    requests = [replace(calibration, seed=each) for each in _distinct("seeds", seeds)]
    one_of("unit", unit, UNITS)  # before anything is read
    first = one_of("baseline", next(iter(variants)) if baseline is None else baseline, tuple(variants))
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(model)
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    check_unit(unit, corpus=corpus.name, parallel=corpus.parallel)
    told = {"group": group, "embeddings": embeddings}
    check_variants(checkpoint, corpus, variants.values(), widths=widths, common=told)
    with Bench.of(checkpoint, corpus, request=evaluation, device=device, progress=progress) as bench:
        entries = tuple(
            _entry(bench, each, bits=width, common=told, requests=requests, unit=unit, progress=progress)
            for width in widths
            for each in variants.values()
        )
        settings = {
            **told,
            "tokens": calibration.tokens,
            "sequence": calibration.sequence,
            "evaluation_tokens": evaluation.tokens,
            "seeds": [each.seed for each in requests],
            "text": corpus.name,
        }
        notes = bench.notes
    return Comparison(checkpoint.target, checkpoint.fingerprint, settings, entries, first, notes)


def _entry(
    bench: Bench,
    asked: Variant,
    *,
    bits: int,
    common: Mapping[str, Any],
    requests: Sequence[TextRequest],
    unit: str,
    progress: Progress | None,
) -> Entry:
    """Returns one policy at one width; a plan that reads no text is carried out once for all seeds."""
    runs: list[Run] = []
    for request in requests:
        plan = planned(
            bench.checkpoint,
            policy=asked.policy,
            text=bench.corpus if reads_text(asked.policy) else None,
            device=bench.device,
            progress=progress,
            **{**common, **request.settings, **asked.at(bits)},
        )
        same = bool(runs) and not plan.reads_text and plan.digest == runs[0].plan.digest
        runs.append(runs[0] if same else bench.run(plan, name=f"{asked.name}, {bits} bits", progress=progress))
    return Entry(
        policy=asked.name,
        bits=bits,
        plans=tuple(run.plan for run in runs),
        frames=tuple(run.scores.frame(unit) for run in runs),
        seconds=tuple(run.seconds for run in runs),
        scores=tuple(run.scores for run in runs),
    )


def _distinct(name: str, values: Iterable[T]) -> tuple[T, ...]:
    found = tuple(dict.fromkeys(sequence(name, values)))
    if not found:
        raise InputError(f"{name} is empty; at least one must be named")
    return found
