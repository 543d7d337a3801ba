"""What single commands take: audit, quantize and evaluate, with the arguments of the commands themselves.

`estimate_…` measures this machine. `…_workload` is for `within_memory`: it counts without reading text, in no time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fairbits.api.dry_run.estimate import Estimate, estimate_workload
from fairbits.api.dry_run.fit import Workload, smaller_requests
from fairbits.api.dry_run.jobs import Stages, audit_stages, evaluate_stages, quantize_stages
from fairbits.api.dry_run.planning import Planned, stand_in_plan
from fairbits.api.dry_run.sizes import TextSize
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.meta_model import SOUND
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.plan import Learning, Plan
from fairbits.quantization.policies import DEFAULT, find_policy
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

SizeOf = Callable[[TextRequest], TextSize]


def estimate_quantize(
    model: Checkpoint,
    *,
    out: str | Path | None,
    device: str,
    plan: Plan | None = None,
    text: str | Path | Corpus | None = None,
    policy: str = DEFAULT,
    languages: Iterable[str] | None = None,
    tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    audit: object = None,
    **options: Any,
) -> Estimate:
    """Returns what a quantization takes: that of a plan, or of a policy whose plan is still to be made.

    Widths that a policy would find are not searched for: all blocks count as alike.
    """
    corpus: Corpus | None
    if plan is not None:
        planned = Planned(plan, {})
        corpus = None if plan.calibration is None else open_corpus_for(model, text, plan.calibration.hashes)
    else:
        chosen = find_policy(policy)
        reads = chosen.reads_text or languages is not None or text is not None
        corpus = open_corpus_for(model, text, languages) if reads else None
        request = TextRequest("calibration", chosen.tokens if tokens is None else tokens, sequence, seed)
        unread = model.without_fingerprint()
        planned = stand_in_plan(unread, corpus, policy=policy, options=options, request=request, device=device)
        if audit is not None:  # κ is taken from it
            planned = replace(planned, requests={k: v for k, v in planned.requests.items() if k != "kappa"})

    def stages(changed: Planned) -> Stages:
        return quantize_stages(model, changed, _text(model, corpus, changed.plan), device=device)

    return estimate_workload(model, Workload(planned, stages, _smaller_plans), device=device, out=out)


def quantize_workload(model: Checkpoint, plan: Plan, words: TokenizedText | None, *, device: str) -> Workload[Planned]:
    """Returns the carrying out of a plan; `words` is its text."""

    def stages(changed: Planned) -> Stages:
        return quantize_stages(model, changed, _shortened(words, plan, changed.plan), device=device)

    return Workload(Planned(plan, {}), stages, _smaller_plans)


def estimate_audit(
    model: Checkpoint,
    *,
    out: str | Path | None,
    device: str,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    request: TextRequest,
) -> Estimate:
    """Returns what an audit takes."""
    corpus = open_corpus_for(model, text, languages)

    workload = audit_workload(model, partial(_size, model, corpus), request, device=device)
    return estimate_workload(model, workload, device=device, out=out)


def audit_workload(model: Checkpoint, size: SizeOf, request: TextRequest, *, device: str) -> Workload[TextRequest]:
    """Returns an audit; `size` gives the size of requested text."""

    def stages(changed: TextRequest) -> Stages:
        return audit_stages(model, size(changed), device=device)

    return Workload(request, stages, smaller_requests)


def estimate_evaluate(
    quantized: Checkpoint,
    *,
    reference: Checkpoint,
    device: str,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    request: TextRequest,
) -> Estimate:
    """Returns what an evaluation takes."""
    corpus = open_corpus_for(reference, text, languages)

    workload = evaluate_workload(quantized, reference, partial(_size, reference, corpus), request, device=device)
    return estimate_workload(reference, workload, device=device, out=None)


def evaluate_workload(
    quantized: Checkpoint, reference: Checkpoint, size: SizeOf, request: TextRequest, *, device: str
) -> Workload[TextRequest]:
    """Returns an evaluation of two models; `size` gives the size of requested text."""

    def stages(changed: TextRequest) -> Stages:
        return evaluate_stages(reference, quantized, size(changed), device=device)

    return Workload(request, stages, smaller_requests)


def _smaller_plans(planned: Planned) -> Iterator[list[tuple[str, Planned]]]:
    """Yields a plan that learns in blocks only, and plans with less text."""
    plan, change = planned.plan, partial(_changed, planned)
    if plan.learning is not None and plan.learning.model_steps:
        steps = plan.learning.block_steps or Learning.block_steps
        yield [("--model-steps 0", change(learning=replace(plan.learning, model_steps=0, block_steps=steps)))]
    if plan.calibration is not None:
        for kind in smaller_requests(plan.calibration.request):
            yield [(name, change(calibration=replace(plan.calibration, **each.settings))) for name, each in kind]


def _changed(planned: Planned, **changes: Any) -> Planned:
    return replace(planned, plan=replace(planned.plan, **changes))


def _shortened(words: TokenizedText | None, plan: Plan, changed: Plan) -> TokenizedText | None:
    """Returns about the text that a changed plan would read; windows that would be shorter are not cut."""
    if words is None or plan.calibration is None or changed.calibration is None:
        return words
    share = changed.calibration.tokens / plan.calibration.tokens
    return words if share == 1 else replace(words, windows=words.windows[: max(round(share * len(words.windows)), 1)])


def requested_size(model: Checkpoint, corpus: Corpus, *, split: str) -> SizeOf:
    """Returns the function that gives the size of requested text, without reading it."""
    clip = int(model.config.max_source_positions) if corpus.clips and model.architecture.reads == SOUND else None
    return partial(TextSize.requested, languages=len(corpus.split(split)), clip=clip)


def _size(model: Checkpoint, corpus: Corpus, request: TextRequest) -> TextSize:
    return TextSize.of(tokenize_corpus(model, corpus, request=request, least=1))


def _text(model: Checkpoint, corpus: Corpus | None, plan: Plan) -> TokenizedText | None:
    if corpus is None or plan.calibration is None:
        return None
    return tokenize_corpus(model, corpus.restrict(plan.languages), request=plan.calibration.request, least=1)
