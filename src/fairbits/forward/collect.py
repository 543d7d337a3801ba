"""The pass itself: from text to ActivationStatistics. One forward and one backward pass per batch yield everything.

What the backward pass starts from is explained in `fisher`. A small model is in memory as a whole (`_whole_pass`); of a
large one, only one block is (`streaming`).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, is_out_of_memory
from fairbits.core.memory import GPU_PASS_ACTIVATIONS_BYTES, LOGIT_POSITIONS, PASS_ACTIVATIONS_BYTES, WHOLE_MODEL_BYTES
from fairbits.core.progress import Progress
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.forward.batches import batches
from fairbits.forward.body_and_head import Split, input_gradients, recompute_in_backward, split_head
from fairbits.forward.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.forward.pass_settings import SAVED_PER_BLOCK, Job
from fairbits.forward.recorder import Recorder
from fairbits.forward.statistics import ActivationStatistics
from fairbits.forward.streaming import NotStreamableError, streaming_pass
from fairbits.forward.tokenize import task_of, tokenize_corpus
from fairbits.forward.windows import NO_LABEL, Text, unigrams
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.scales.scheme import Scheme
from fairbits.models.streaming_model import walk_dtype
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import DEFAULT_REQUEST, TextRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGITS_KEPT = 3
"""Numbers per position and vocabulary entry if the head cannot be separated from the model."""


def collect_statistics(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    request: TextRequest = DEFAULT_REQUEST,
    schemes: tuple[Scheme, ...] = (),
    second_moments: bool = False,
    dtype: torch.dtype | None = None,
    least: int = LEAST_DOCUMENTS,
    device: str = "cpu",
    progress: Progress | None = None,
) -> ActivationStatistics:
    """Returns the measurements of a model on the requested text of each language of a corpus.

    A language with fewer than `least` documents is refused. `second_moments` also keeps E[x xᵀ] of every input. The
    random directions of the Fisher gradient are drawn from the seed of the request.
    `dtype` is the type to compute in, by default that of `measuring_dtype`.
    """
    for scheme in schemes:
        _check_scheme(scheme, checkpoint)  # before anything slow
    text = tokenize_corpus(checkpoint, corpus, request=request, least=least)
    job = Job(
        checkpoint,
        text,
        schemes=schemes,
        second_moments=second_moments,
        dtype=measuring_dtype(checkpoint, device) if dtype is None else dtype,
        device=device,
        seed=request.seed,
        progress=progress,
    )
    return _measurements(job, *observe(job))


def observe(job: Job) -> tuple[Recorder, LossSums, tuple[str, ...]]:
    """Returns the sums of a pass over the text, and notes on it; a large model has one block in memory at a time."""
    notes: tuple[str, ...] = ()
    if is_streamed(job):
        try:
            return *streaming_pass(job), notes
        except NotStreamableError as problem:
            notes = (f"the whole model was in memory at once, although it is large: {problem}",)
    return *_whole_pass(job), notes


def measuring_dtype(checkpoint: Checkpoint, device: str) -> torch.dtype:
    """Returns the type that a model is measured in: on a GPU bfloat16 if its linear layers are stored so, else float32.

    On the CPU, bfloat16 is slow. The range of float16 is too small for gradients.
    """
    if walk_dtype(checkpoint, device) != torch.bfloat16:
        return torch.float32
    linears = [name for block in checkpoint.architecture.blocks for name in block.linears]
    stored = {checkpoint.tensors[name].dtype for name in linears if name in checkpoint.tensors}
    return torch.bfloat16 if stored == {torch.bfloat16} else torch.float32


def is_streamed(job: Job) -> bool:
    """Returns whether the model is so large that only one of its blocks may be in memory at a time."""
    weights = sum(math.prod(info.shape) for info in job.checkpoint.tensors.values())
    return weights * job.dtype.itemsize > WHOLE_MODEL_BYTES


def _whole_pass(job: Job) -> tuple[Recorder, LossSums]:
    """Returns the sums of a pass with the whole model in memory, batch by batch."""
    text = job.text
    model = job.checkpoint.load(job.dtype, device=job.device, read_only=True)
    recorder, scores = job.recorder(model), LossSums(len(text.lang))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    device, draws = model.device, SignDraws(job.seed)
    total, done = sum(window.length for window in text.windows), 0
    blocks = [model.get_submodule(point.module) for point in recorder.points if point.kind == "block"]
    split = split_head(model, next(batches(text, positions=1)).on(device))  # the shortest window is enough to decide
    with recorder.attached(), input_gradients(model), _refused_if_unusual(model, lambda: done > 0):
        for batch in batches(text, positions=positions_at_once(model, split)):
            recorder.start(batch)
            with recompute_in_backward(blocks):
                features = split.body(batch.on(device))
            gradient = fisher_gradient(features, batch, split, scores=scores, draws=draws)
            torch.autograd.backward(features, gradient)
            recorder.finish()
            done += int(batch.main.real.sum() if batch.encoder is None else batch.encoder.real.sum())
            if job.progress is not None:
                job.progress("reading text", min(done, total), total)
    return recorder, scores


@contextmanager
def _refused_if_unusual(model: "PreTrainedModel", begun: Callable[[], bool]) -> Iterator[None]:
    """Turns what the code of a class raises on its first text into an error that says so."""
    try:
        yield
    except RuntimeError as problem:
        if begun() or is_out_of_memory(problem):
            raise
        raise InputError(
            f"{type(model).__name__} cannot be measured: its code does not take a batch of texts, or gradients, as "
            f"other language models do ({str(problem).partition(chr(10))[0]}); --policy rtn needs no text"
        ) from problem


def _measurements(job: Job, recorder: Recorder, scores: LossSums, notes: tuple[str, ...]) -> ActivationStatistics:
    text = job.text
    recorder.collect()
    predicted, nll, entropy = scores.sums.numpy()
    languages = torch.from_numpy(text.language_of)
    shape = len(text.languages), len(recorder.points)
    seen = torch.zeros(shape, dtype=torch.float64).index_add_(0, languages, recorder.positions)
    index = {point.name: i for i, point in enumerate(recorder.points)}
    predicted_tokens = torch.zeros(shape[0], dtype=torch.float64).index_add_(0, languages, scores.sums[0])
    return ActivationStatistics(
        task=task_of(job.checkpoint),
        languages=text.languages,
        lang=text.lang,
        document=text.document,
        size_bytes=text.size_bytes,
        predicted=predicted,
        nll=nll,
        entropy=entropy,
        points=recorder.points,
        positions=recorder.positions.numpy(),
        norm=recorder.norm.numpy(),
        square=recorder.square.numpy(),
        channels={name: _mean(sums, seen[:, index[name]]) for name, sums in recorder.channels.items()},
        gradients={name: _mean(sums, predicted_tokens) for name, sums in recorder.gradients.items()},
        inputs={name: _mean(sums, seen[:, index[name]]) for name, sums in recorder.inputs.items()},
        linears=tuple(recorder.linears),
        seen_by={name: f"{weight.sees}.input" for name, weight in recorder.linears.items()},
        left_out=recorder.left_out,
        damage={
            scheme: {form: sums.numpy() for form, sums in forms.items()} for scheme, forms in recorder.damage.items()
        },
        unigrams=unigrams(text),
        estimated=text.estimated,
        dtype=str(job.dtype).removeprefix("torch."),
        notes=(*text.notes, *notes, *(() if recorder.experts is None else recorder.experts.notes)),
        experts=() if recorder.experts is None else recorder.experts.tables(),
    )


def _mean(sums: Tensor, count: Tensor) -> Floats:
    """Returns the sums of every language divided by its count. Overwrites the sums."""
    mean: Floats = sums.cpu().div_(count.reshape(-1, *[1] * (sums.ndim - 1))).numpy()
    return mean


def positions_at_once(model: "PreTrainedModel", split: Split) -> int:
    """Returns how many positions a batch may have, from a rough estimate of the memory of its backward pass."""
    config = model.config.get_text_config()
    numbers = (SAVED_PER_BLOCK + int(config.num_hidden_layers)) * int(config.hidden_size)
    if not split.apart:
        numbers += LOGITS_KEPT * int(config.vocab_size)
    room = GPU_PASS_ACTIVATIONS_BYTES if is_gpu(model.device) else PASS_ACTIVATIONS_BYTES
    return max(room // (4 * numbers), 32)


def _check_scheme(scheme: Scheme, checkpoint: Checkpoint) -> None:
    if scheme.reads_text:
        raise InputError(
            f"the scheme ({scheme.name}) reads text; damage is predicted for rounding to nearest without an objective: "
            "omit objective and rounding"
        )
    blocks = checkpoint.architecture.blocks
    columns = {
        name: weight.shape[1]
        for block in blocks
        for name, weight in block.linears.items()
        if weight.stacked is None and not weight.is_control
    }
    for name, width in columns.items():
        if not scheme.fits(width):
            raise InputError(
                f"{name} has {width} inputs, which groups of {scheme.group} do not divide; the group must divide the "
                f"inputs of every layer, as {math.gcd(*columns.values())} and its divisors do, or be one per channel"
            )


@torch.no_grad()
def document_losses(model: "PreTrainedModel", text: Text, *, progress: Progress | None = None) -> tuple[Floats, Floats]:
    """Returns the loss of every document in nats and its number of predicted tokens; runs on the model's device."""
    device = model.device
    scores = LossSums(len(text.lang))
    total, done = len(text.windows), 0
    split = split_head(model, next(batches(text, positions=1)).on(device))
    for batch in batches(text, positions=positions_at_once(model, split)):
        features = split.body(batch.on(device))
        for at in torch.split((batch.labels != NO_LABEL).nonzero(), LOGIT_POSITIONS):
            rows, columns = at.T
            scores.add(split.head(features[rows, columns]), batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress("evaluating", done, total)
    predicted, nll, _ = scores.sums.numpy()
    return nll, predicted
