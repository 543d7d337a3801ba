"""ActivationStatistics: sums of one pass over text, per document and language, and rounding errors of the weights.

`collect_statistics` goes from text to these statistics; one forward and one backward pass per batch yield everything.
What the backward pass starts from is explained in `fisher`. A small model is in memory as a whole (`_whole_pass`); of a
large one, only one block is (`streaming`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, is_out_of_memory
from fairbits.core.memory import ERROR_ROWS, LOGIT_POSITIONS, WHOLE_MODEL_BYTES
from fairbits.core.progress import READING, Progress, begin
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.forward.batches import batches
from fairbits.forward.body_and_head import input_gradients, positions_per_batch, recompute_in_backward, split_head
from fairbits.forward.experts import BlockExperts
from fairbits.forward.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.forward.points import Measure, Point, PointKind
from fairbits.forward.recorder import PassSettings, Recorder
from fairbits.forward.streaming import NotStreamableError, streaming_pass
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL, TokenizedText, unigrams
from fairbits.models.architecture.architecture import Task
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import rounding_error
from fairbits.models.scales.scheme import Group, Scheme
from fairbits.models.streaming_model import ReadAhead, walk_dtype
from fairbits.text.corpus import DEFAULT_REQUEST, Corpus, TextRequest

Codes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class ActivationStatistics:
    """What was measured on the text of each language. Sums are float64, over positions that hold text."""

    task: Task
    languages: tuple[str, ...]
    lang: NDArray[np.str_]
    document: Codes
    size_bytes: Floats
    predicted: Floats  # the number of predicted tokens of each document
    nll: Floats  # nats, summed over those tokens
    entropy: Floats
    points: tuple[Point, ...]
    positions: Floats  # (documents, points): how many hold text
    norm: Floats  # (documents, points): Σ‖x‖
    square: Floats  # (documents, points): Σ‖x‖²
    channels: Mapping[str, Floats]  # by point, (languages, inputs): E[x_j²]
    gradients: Mapping[str, Floats]  # by layer, (languages, out): Σ g_i² per predicted token, g the Fisher gradient
    inputs: Mapping[str, Floats]  # if requested, by input point, (languages, inputs, inputs): E[x xᵀ] in float32
    linears: tuple[str, ...]
    seen_by: Mapping[str, str]  # the point that is the input of each linear layer
    left_out: Mapping[str, str]  # which layers were not measured, and why
    damage: Mapping[Scheme, Mapping[str, Floats]]  # by form, (documents, linears): nats summed over the document
    unigrams: NDArray[np.int64]
    estimated: int = 0  # how many documents have an estimated size, as in `TokenizedText`
    dtype: str = "float32"
    notes: tuple[str, ...] = ()
    experts: tuple[BlockExperts, ...] = ()

    def blocks(self, kind: PointKind) -> list[int]:
        return [point.block for point in self.points if point.kind == kind and point.block is not None]

    def sums(self, kind: PointKind, measure: Measure) -> Floats:
        """Returns a measure of every document at the points of a kind, (documents, blocks)."""
        chosen = [i for i, point in enumerate(self.points) if point.kind == kind]
        table: Floats = getattr(self, measure)[:, chosen]
        return table


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
    """Returns the statistics of a model on the requested text of each language of a corpus.

    A language with fewer than `least` documents is refused. `second_moments` also keeps E[x xᵀ] of every input.
    `dtype` is the type to compute in, by default `measuring_dtype`.
    """
    for scheme in schemes:
        _check_scheme(scheme, checkpoint)  # before anything slow
    text = tokenize_corpus(checkpoint, corpus, request=request, least=least)
    settings = PassSettings(
        checkpoint,
        text,
        schemes=schemes,
        second_moments=second_moments,
        dtype=measuring_dtype(checkpoint, device) if dtype is None else dtype,
        device=device,
        seed=request.seed,
        progress=progress,
    )
    return _statistics(settings, *run_pass(settings))


def run_pass(settings: PassSettings) -> tuple[Recorder, LossSums, tuple[str, ...]]:
    """Returns the sums of a pass over the text, and notes on it; a large model has one block in memory at a time."""
    notes: tuple[str, ...] = ()
    if is_streamed(settings):
        try:
            return *streaming_pass(settings), notes
        except NotStreamableError as problem:
            notes = (f"the whole model was in memory at once, although it is large: {problem}",)
    return *_whole_pass(settings), notes


def measuring_dtype(checkpoint: Checkpoint, device: str) -> torch.dtype:
    """Returns the type to measure in: bfloat16 on a GPU if the layers are stored so; float16 cannot hold gradients."""
    if walk_dtype(checkpoint, device) != torch.bfloat16:
        return torch.float32
    linears = [name for block in checkpoint.architecture.blocks for name in block.linears]
    stored = {checkpoint.tensors[name].dtype for name in linears if name in checkpoint.tensors}
    return torch.bfloat16 if stored == {torch.bfloat16} else torch.float32


def is_streamed(settings: PassSettings) -> bool:
    """Returns whether the model is so large that only one of its blocks may be in memory at a time."""
    weights = sum(math.prod(info.shape) for info in settings.checkpoint.tensors.values())
    return weights * settings.dtype.itemsize > WHOLE_MODEL_BYTES


def _whole_pass(settings: PassSettings) -> tuple[Recorder, LossSums]:
    text = settings.text
    begin(settings.progress, READING)
    model = settings.checkpoint.load(settings.dtype, device=settings.device, read_only=True)
    recorder, scores = settings.recorder(model), LossSums(len(text.lang))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    device, draws = model.device, SignDraws(settings.seed)
    total, done = sum(window.length for window in text.windows), 0
    blocks = [model.get_submodule(point.module) for point in recorder.points if point.kind == "block"]
    split = split_head(model, next(batches(text, positions=1)).on(device))  # the shortest window is enough to decide
    with recorder.attached(), input_gradients(model), _explain_failure(model, lambda: done > 0):
        for batch in batches(text, positions=positions_per_batch(model, split)):
            recorder.start(batch)
            with recompute_in_backward(blocks):
                features = split.body(batch.on(device))
            gradient = fisher_gradient(features, batch, split, scores=scores, draws=draws)
            torch.autograd.backward(features, gradient)
            recorder.finish()
            done += int(batch.main.real.sum() if batch.encoder is None else batch.encoder.real.sum())
            if settings.progress is not None:
                settings.progress(READING, min(done, total), total)
    return recorder, scores


@contextmanager
def _explain_failure(model: PreTrainedModel, started: Callable[[], bool]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        if started() or is_out_of_memory(problem):
            raise
        raise InputError(
            f"{type(model).__name__} cannot be measured: its code does not take a batch of texts, or gradients, as "
            f"other language models do ({str(problem).partition(chr(10))[0]}); --policy rtn needs no text"
        ) from problem


def _statistics(
    settings: PassSettings, recorder: Recorder, scores: LossSums, notes: tuple[str, ...]
) -> ActivationStatistics:
    text = settings.text
    recorder.collect()
    predicted, nll, entropy = scores.sums.numpy()
    languages = torch.from_numpy(text.language_of)
    shape = len(text.languages), len(recorder.points)
    seen = torch.zeros(shape, dtype=torch.float64).index_add_(0, languages, recorder.positions)
    index = {point.name: i for i, point in enumerate(recorder.points)}
    predicted_tokens = torch.zeros(shape[0], dtype=torch.float64).index_add_(0, languages, scores.sums[0])
    return ActivationStatistics(
        task=settings.checkpoint.task,
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
        dtype=str(settings.dtype).removeprefix("torch."),
        notes=(*text.notes, *notes, *(() if recorder.experts is None else recorder.experts.notes)),
        experts=() if recorder.experts is None else recorder.experts.tables(),
    )


def _mean(sums: Tensor, count: Tensor) -> Floats:
    mean: Floats = sums.cpu().div_(count.reshape(-1, *[1] * (sums.ndim - 1))).numpy()
    return mean


def _check_scheme(scheme: Scheme, checkpoint: Checkpoint) -> None:
    if scheme.reads_text:
        raise InputError(
            f"the scheme ({scheme.name}) reads text; damage is predicted for rounding to nearest without an objective: "
            "omit objective and rounding"
        )
    columns = _inputs(checkpoint)
    for name, inputs in columns.items():
        if not scheme.fits(inputs):
            raise InputError(
                f"{name} has {inputs} inputs, which groups of {scheme.group} do not divide; the group must divide the "
                f"inputs of every layer, as {math.gcd(*columns.values())} and its divisors do, or be one per channel: "
                f"give --group {largest_group(checkpoint)}"
            )


def largest_group(checkpoint: Checkpoint) -> Group:
    """Returns the largest of 128, 64 and 32 that divides the inputs of every layer, else one scale per channel."""
    columns = _inputs(checkpoint).values()
    return next((size for size in (128, 64, 32) if all(inputs % size == 0 for inputs in columns)), "channel")


def _inputs(checkpoint: Checkpoint) -> dict[str, int]:
    return {
        name: weight.shape[1]
        for block in checkpoint.architecture.blocks
        for name, weight in block.linears.items()
        if weight.stacked is None and not weight.is_control
    }


@torch.no_grad()
def document_losses(
    model: PreTrainedModel, text: TokenizedText, *, progress: Progress | None = None
) -> tuple[Floats, Floats]:
    """Returns the loss of every document in nats and its number of predicted tokens; runs on the model's device."""
    device = model.device
    scores = LossSums(len(text.lang))
    total, done = len(text.windows), 0
    split = split_head(model, next(batches(text, positions=1)).on(device))
    for batch in batches(text, positions=positions_per_batch(model, split)):
        features = split.body(batch.on(device))
        for at in torch.split((batch.labels != NO_LABEL).nonzero(), LOGIT_POSITIONS):
            rows, columns = at.T
            scores.add(split.head(features[rows, columns]), batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress("evaluating", done, total)
    predicted, nll, _ = scores.sums.numpy()
    return nll, predicted


def weight_errors(
    checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme, device: str = "cpu"
) -> Iterator[tuple[str, Tensor]]:
    """Yields ΔW (out, in) of every linear layer, one at a time, on the device."""
    with ReadAhead(checkpoint, device, [[name] for name in linears]) as reader:
        for name in linears:
            W = reader.read(name).float()
            yield name, rounding_error(W.T if checkpoint.architecture.weights[name].transposed else W, scheme)


def column_errors(
    checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme, device: str = "cpu"
) -> dict[str, Floats]:
    """Returns m_j = Σ_i ΔW_ij² of every input channel j of every linear layer."""
    # allocated first: results placed between large arrays would keep the system from reclaiming their memory
    columns: dict[str, Floats] = {name: np.zeros(checkpoint.architecture.weights[name].shape[1]) for name in linears}
    for name, error in weight_errors(checkpoint, linears, scheme=scheme, device=device):
        sums = torch.zeros(error.shape[1], dtype=torch.float64, device=error.device)
        for rows in torch.split(error, ERROR_ROWS):
            sums += rows.double().square_().sum(0)
        columns[name][:] = sums.cpu().numpy()
    return columns
