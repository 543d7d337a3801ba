"""The pass itself: from text to Measurements. One forward and one backward pass per batch yield everything.

Damage is predicted by the Fisher information F of the logits: KL(p ‖ p′) ≈ ½ (Δlogits)ᵀ F (Δlogits), with F = diag p −
p pᵀ at every predicted position. F is never formed. A random direction ξ with E[ξ ξᵀ] = F is drawn at each
position, and one backward pass of logits · ξ gives the gradient g at the output of every linear map. To first order a
change Δy of that output changes logits · ξ by g · Δy, so E[(g · Δy)²] is the quadratic form above. ξ depends on the
model's own probabilities only: no label is used, so this is the Fisher information and not its empirical variant.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.language.corpus import Corpus
from fairbits.language.text_request import DEFAULT_REQUEST, TextRequest
from fairbits.measure.passes.batches import Batch, batches
from fairbits.measure.passes.forward import Split, recompute_in_backward, split_head
from fairbits.measure.passes.measurements import Measurements
from fairbits.measure.passes.prepare import task_of, text_for
from fairbits.measure.passes.recorder import Recorder, points_of, probed_linears
from fairbits.measure.passes.text import NO_LABEL, Task, Text, unigrams
from fairbits.memory import GRADIENT_POSITIONS, PASS_ACTIVATIONS_BYTES
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.device import move
from fairbits.model.scheme import Scheme
from fairbits.progress import Progress
from fairbits.stats.resample import LEAST_DOCUMENTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAVED_PER_BLOCK = 34
"""Approximate count of numbers that a block keeps for its backward pass, per position and unit of width."""
LOGITS_KEPT = 3
"""Numbers per position and vocabulary entry if the head cannot be separated from the model."""


def probe(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    request: TextRequest = DEFAULT_REQUEST,
    schemes: tuple[Scheme, ...] = (),
    second_moments: bool = False,
    dtype: torch.dtype = torch.float32,
    least: int = LEAST_DOCUMENTS,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Measurements:
    """Returns the measurements of a model on the requested text of each language of a corpus.

    A language with fewer than `least` documents is refused. `second_moments` also keeps E[x xᵀ] of every input. The
    random directions of the Fisher gradient are drawn from the seed of the request, on a GPU by its own generator.
    """
    for scheme in schemes:
        _check_scheme(scheme, checkpoint)  # before anything slow
    text = text_for(checkpoint, corpus, request=request, least=least)
    model = move(checkpoint.load(dtype), device)
    linears, left_out = probed_linears(checkpoint.architecture, model)
    if not linears:
        raise InputError(f"{checkpoint.target} has no linear map whose activations can be observed")
    recorder = Recorder(
        model,
        points_of(checkpoint.architecture, model),
        linears,
        documents=torch.from_numpy(text.language_of),
        schemes=schemes,
        second_moments=second_moments,
    )
    scores = LossSums(len(text.lang))
    _run(model, text, recorder, scores=scores, seed=request.seed, progress=progress)
    return _measurements(text, recorder, scores=scores, task=task_of(checkpoint), left_out=left_out)


class LossSums:
    """Per document: predicted tokens, their loss and the entropy of their predictions, in nats."""

    def __init__(self, documents: int) -> None:
        """All sums start at 0."""
        self.sums = torch.zeros(3, documents, dtype=torch.float64)

    @torch.no_grad()
    def add(self, logits: Tensor, labels: Tensor, documents: Tensor) -> Tensor:
        """Adds the loss of some positions and returns their probabilities p, (positions, vocabulary)."""
        if not torch.isfinite(logits).all():
            raise InputError("the model's logits contain NaN or infinity; load it in float32, or check its weights")
        log_p = logits.float().log_softmax(-1)
        p = log_p.exp()
        nll = -log_p.gather(1, labels.to(log_p.device)[:, None])[:, 0].double().cpu()
        entropy = -log_p.mul_(p).sum(1).double().cpu()  # in place: with a large vocabulary every copy is costly
        for row, values in zip(self.sums, (torch.ones_like(nll), nll, entropy), strict=True):
            row.index_add_(0, documents, values)
        return p


def _run(
    model: "PreTrainedModel",
    text: Text,
    recorder: Recorder,
    *,
    scores: LossSums,
    seed: int,
    progress: Progress | None,
) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.enable_input_require_grads()  # type: ignore[no-untyped-call]  # gradients of activations only
    device = model.device
    rng = torch.Generator(device).manual_seed(seed)
    total, done = sum(window.length for window in text.windows), 0
    blocks = [model.get_submodule(point.module) for point in recorder.points if point.kind == "block"]
    split = split_head(model, next(batches(text, positions=1)).on(device))  # the shortest window is enough to decide
    handles = recorder.attach()
    try:
        for batch in batches(text, positions=positions_at_once(model, split)):
            recorder.start(batch)
            with recompute_in_backward(blocks):
                features = split.body(batch.on(device))
            torch.autograd.backward(features, fisher_gradient(features, batch, split, scores=scores, rng=rng))
            recorder.finish()
            done += int(batch.main.real.sum() if batch.encoder is None else batch.encoder.real.sum())
            if progress is not None:
                progress("reading text", min(done, total), total)
    finally:
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()


def fisher_gradient(features: Tensor, batch: Batch, split: Split, *, scores: LossSums, rng: torch.Generator) -> Tensor:
    """Returns the gradient of logits · ξ by the features, with a Fisher direction ξ at each predicted position.

    The loss of these positions is added to `scores`.
    """
    gradient = torch.zeros_like(features)
    for at in torch.split((batch.labels != NO_LABEL).nonzero(), GRADIENT_POSITIONS):
        rows, columns = at.T
        part = features.detach()[rows, columns].requires_grad_()
        logits = split.head(part)
        p = scores.add(logits.detach(), batch.labels[rows, columns], batch.document[rows])
        gradient[rows, columns] = torch.autograd.grad(logits, part, fisher_direction(p, rng).to(logits.dtype))[0]
    return gradient


def fisher_direction(p: Tensor, rng: torch.Generator) -> Tensor:
    """Returns ξ = √p ⊙ ε − p (√pᵀε) for every row of p, ε standard normal: E[ξ ξᵀ] = diag p − p pᵀ. Overwrites p."""
    noise = torch.randn(p.shape, generator=rng, device=p.device).mul_(p.sqrt())
    return noise.sub_(p.mul_(noise.sum(1, keepdim=True)))


def _measurements(
    text: Text, recorder: Recorder, *, scores: LossSums, task: Task, left_out: dict[str, str]
) -> Measurements:
    predicted, nll, entropy = scores.sums.numpy()
    languages = torch.from_numpy(text.language_of)
    shape = len(text.languages), len(recorder.points)
    seen = torch.zeros(shape, dtype=torch.float64).index_add_(0, languages, recorder.positions)
    index = {point.name: i for i, point in enumerate(recorder.points)}
    predicted_tokens = torch.zeros(shape[0], dtype=torch.float64).index_add_(0, languages, scores.sums[0])
    return Measurements(
        task=task,
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
        left_out=left_out,
        damage={
            scheme: {form: sums.numpy() for form, sums in forms.items()} for scheme, forms in recorder.damage.items()
        },
        unigrams=unigrams(text),
        estimated=text.estimated,
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
    return max(PASS_ACTIVATIONS_BYTES // (4 * numbers), 32)


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
        if weight.stacked is None and weight.role != "router"
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
        for at in torch.split((batch.labels != NO_LABEL).nonzero(), GRADIENT_POSITIONS):
            rows, columns = at.T
            scores.add(split.head(features[rows, columns]), batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress("evaluating", done, total)
    predicted, nll, _ = scores.sums.numpy()
    return nll, predicted
