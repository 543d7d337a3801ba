"""The stages of jobs, in the order in which they run: an audit, a quantization, an evaluation, a whole run."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fairbits.api.dry_run.counts import REPORTING, Counter
from fairbits.api.dry_run.footprint import NUMBER
from fairbits.api.dry_run.planning import Planned, planning_stage, stand_in_plan
from fairbits.api.dry_run.sizes import ModelSize, TextSize
from fairbits.api.dry_run.work import Held, Stage
from fairbits.core.memory import LEARNING_SHARE
from fairbits.forward.statistics import measuring_dtype
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.capacity import fits_whole
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.plan import Learning, Plan
from fairbits.quantization.policies import find_policy
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

if TYPE_CHECKING:
    from fairbits.api.run.run_settings import Job

Stages = tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of a corpus as a model reads them; each is read once."""

    checkpoint: Checkpoint
    corpus: Corpus
    _read: dict[tuple[tuple[str, ...], TextRequest], TokenizedText] = field(default_factory=dict)

    def of(self, request: TextRequest, languages: tuple[str, ...] | None = None) -> TokenizedText:
        """Returns the requested text of all languages, or of some."""
        corpus = self.corpus if languages is None else self.corpus.restrict(languages)
        key = tuple(corpus.split(request.split)), request
        if key not in self._read:
            self._read[key] = tokenize_corpus(self.checkpoint, corpus, request=request, least=1)
        return self._read[key]

    def of_plan(self, plan: Plan) -> TokenizedText | None:
        """Returns the text that a plan is executed with."""
        return None if plan.calibration is None else self.of(plan.calibration.request, tuple(plan.languages))


def counter_for(checkpoint: Checkpoint, device: str) -> Counter:
    """Returns the counter of a model on a device."""
    size = ModelSize.of(checkpoint)
    return Counter(
        size,
        device,
        narrow=measuring_dtype(checkpoint, device).itemsize == 2,
        whole=fits_whole(NUMBER * size.weights, device),
        fits_learning=partial(fits_whole, device=device, share=LEARNING_SHARE),
    )


def audit_stages(checkpoint: Checkpoint, text: TextSize, *, device: str) -> Stages:
    """Returns the stages of an audit."""
    counter = counter_for(checkpoint, device)
    return counter.audit(text), counter.check()


def quantize_stages(checkpoint: Checkpoint, planned: Planned, text: TokenizedText | None, *, device: str) -> Stages:
    """Returns the stages of a quantization; those of the plan too, if its policy requests evidence."""
    counter = counter_for(checkpoint, device)
    return counter.check(), *_quantize(counter, planned, text, name="quantize", written=True)


def evaluate_stages(reference: Checkpoint, quantized: Checkpoint, size: TextSize, *, device: str) -> Stages:
    """Returns the stages of an evaluation of two models."""
    counter = counter_for(reference, device)
    stored = sum(info.nbytes for info in quantized.tensors.values())
    return (
        counter.check(),
        counter.evaluate_reference(size),
        counter.evaluate_quantized(size, name="evaluate the quantized model", stored=stored),
    )


def run_stages(job: "Job") -> Stages:
    """Returns the stages of a run."""
    counter, texts = counter_for(job.checkpoint, job.device), Texts(job.checkpoint, job.corpus)
    return tuple(_run(job, counter, texts))


def _run(job: "Job", counter: Counter, texts: Texts) -> Iterator[Stage]:
    evaluated = TextSize.of(texts.of(job.evaluation))
    yield counter.check()
    yield counter.audit(TextSize.of(texts.of(job.calibration)))
    own = _planned(job, job.policy, bits=job.bits, with_text=True)
    yield from _quantize(counter, own, texts.of_plan(own.plan), name=f"quantize: {job.policy.name}", written=True)
    yield counter.evaluate_reference(evaluated)
    stored = own.plan.size_bytes
    yield counter.evaluate_quantized(evaluated, name="evaluate the quantized model", stored=stored)
    others = [(each, job.bits) for each in job.baselines] + [(job.policy, width) for width in job.widths]
    for each, bits in others:
        planned = _planned(job, each, bits=bits, with_text=each.reads_text)
        name = f"{each.name}, {bits} bits"
        for stage in _quantize(counter, planned, texts.of_plan(planned.plan), name=name, written=False):
            yield replace(stage, held=stage.held + counter.on(4.0 * counter.model.weights))  # the model stays in memory
        yield counter.evaluate_quantized(evaluated, name=f"evaluate {name}", stored=None)
    yield Stage("report", REPORTING, Held())


def _planned(job: "Job", variant: Variant, *, bits: int, with_text: bool) -> Planned:
    options: dict[str, Any] = {"group": job.group, "embeddings": job.embeddings, **variant.at(bits)}
    corpus = job.corpus if with_text else None
    return stand_in_plan(
        job.checkpoint, corpus, policy=variant.policy, options=options, request=job.calibration, device=job.device
    )


def _quantize(
    counter: Counter, planned: Planned, text: TokenizedText | None, *, name: str, written: bool
) -> Iterator[Stage]:
    plan, size = planned.plan, None if text is None else TextSize.of(text)
    planning = planning_stage(counter, planned, size, name=f"plan of {name}")
    if planning is not None:
        yield planning
    if plan.learning is None or text is None or size is None:
        yield counter.round(plan, size, name=name, written=written)
        return
    yield from _learn(counter, plan, plan.learning, text, name=name, written=written)


def _learn(
    counter: Counter, plan: Plan, learning: Learning, text: TokenizedText, *, name: str, written: bool
) -> Iterator[Stage]:
    """Yields rounding, learning block by block, and learning end to end."""
    split = HoldoutSplit.of(text, seed=0 if plan.calibration is None else plan.calibration.seed)
    short = split.shorten(learning.block_tokens) if learning.model_steps else text
    held_out = TextSize.of(text, [text.windows[i] for i in split.held_out])
    yield counter.round(plan, TextSize.of(short), name=name, written=written)
    if learning.block_steps:
        yield counter.learn_blocks(learning, TextSize.of(short), held_out, name=f"{name}, learning blocks")
    if learning.model_steps:
        yield counter.learn_model(learning, TextSize.of(text), held_out, name=f"{name}, learning end to end")


def without_end_to_end(policy: Variant) -> tuple[Variant, ...]:
    """Returns the policy with learning in blocks alone, if it learns and may learn end to end."""
    if "model_steps" not in find_policy(policy.policy).options or policy.options.get("model_steps") == 0:
        return ()
    kept = [part for part in policy.name.split(":") if not part.startswith("model_steps=")]
    return (variant(":".join([*kept, "model_steps=0"])),)
