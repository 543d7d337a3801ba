"""The pass itself: text in, Measurements out. One forward and one backward pass per batch serve everything."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.language.corpus import Corpus
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.scheme import Scheme
from fairbits.probe.batches import Batch, batches
from fairbits.probe.measurements import Measurements
from fairbits.probe.points import points_of, probed_linears
from fairbits.probe.prepare import task_of, text_for
from fairbits.probe.recompute import recomputed
from fairbits.probe.recorder import Recorder
from fairbits.probe.text import NO_LABEL, Task, Text, unigrams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[int, int], None]
"""Called with the positions done and the positions there are."""

ROOM = 96 * 2**20
"""Bytes that the activations of one batch may take, about."""
SAVED_PER_BLOCK = 34
"""Numbers per position and unit of width that one block keeps for its backward pass, about."""
LOGITS_KEPT = 4
"""Numbers per position and token of the vocabulary that loss and Fisher direction need at a time."""


def probe(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    schemes: tuple[Scheme, ...] = (),
    split: str = "calibration",
    tokens: int = 4096,
    sequence: int = 512,
    second_moments: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measurements:
    """Returns what the model does with the text of each language of a corpus.

    `tokens` is the budget per language, `sequence` the longest window. `second_moments` keeps the matrices E[x xᵀ] and
    E[g gᵀ] too. The Fisher gradient is that of logits · ξ with E[ξ ξᵀ] = diag p − p pᵀ, drawn from `seed` at every
    predicted position: its mean square is the Fisher information, and no label is looked at.
    """
    text = text_for(checkpoint, corpus, split=split, tokens=tokens, sequence=sequence, seed=seed)
    model = checkpoint.load(dtype)
    linears, left_out = probed_linears(checkpoint.architecture, model)
    if not linears:
        raise InputError(f"{checkpoint.target} has no linear map whose activations can be seen")
    for scheme in schemes:
        _check_groups(scheme, {name: weight.shape[1] for name, weight in linears.items()})
    recorder = Recorder(
        model,
        points_of(checkpoint.architecture, model),
        linears,
        documents=torch.from_numpy(text.language_of),
        schemes=schemes,
        second_moments=second_moments,
    )
    scores = Scores(len(text.lang))
    _run(model, text, recorder, scores=scores, seed=seed, progress=progress)
    return _measurements(text, recorder, scores=scores, task=task_of(checkpoint), left_out=left_out)


class Scores:
    """Per document: predicted tokens, their loss and the entropy of their predictions, in nats."""

    def __init__(self, documents: int) -> None:
        """All start at 0."""
        self.sums = torch.zeros(3, documents, dtype=torch.float64)

    @torch.no_grad()
    def add(self, batch: Batch, logits: Tensor) -> Tensor:
        """Adds a batch and returns p at the predicted positions, (positions, vocabulary)."""
        asked = batch.labels != NO_LABEL
        log_p = logits.detach()[asked].float().log_softmax(-1)
        p = log_p.exp()
        rows = batch.document[:, None].expand_as(asked)[asked]
        nll = -log_p.gather(1, batch.labels[asked][:, None])[:, 0].double()
        entropy = -torch.einsum("ij,ij->i", p, log_p).double()
        for row, values in zip(self.sums, (torch.ones_like(nll), nll, entropy), strict=True):
            row.index_add_(0, rows, values)
        return p


def _run(
    model: "PreTrainedModel",
    text: Text,
    recorder: Recorder,
    *,
    scores: Scores,
    seed: int,
    progress: Progress | None,
) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.enable_input_require_grads()  # type: ignore[no-untyped-call]  # gradients of activations only
    rng = torch.Generator().manual_seed(seed)
    total, done = sum(window.length for window in text.windows), 0
    handles = recorder.attach()
    blocks = [model.get_submodule(point.module) for point in recorder.points if point.kind == "block"]
    try:
        for batch in batches(text, positions=positions_at_once(model)):
            recorder.start(batch)
            with recomputed(blocks):
                logits = model(**batch.inputs, use_cache=False).logits
            if not torch.isfinite(logits.detach()).all():
                raise InputError(
                    "the model answers text with NaN or infinity; load it in float32, or check its weights"
                )
            logits.backward(_fisher_direction(scores.add(batch, logits), batch, logits, rng))
            recorder.finish()
            done += int(batch.main.real.sum() if batch.encoder is None else batch.encoder.real.sum())
            if progress is not None:
                progress(min(done, total), total)
    finally:
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()


def _fisher_direction(p: Tensor, batch: Batch, logits: Tensor, rng: torch.Generator) -> Tensor:
    """Returns ξ = √p ⊙ (ε − √p (√pᵀε)) at the predicted positions, ε standard normal: E[ξ ξᵀ] = diag p − p pᵀ.

    It uses up p: with a large vocabulary every copy counts.
    """
    root = p.sqrt_()
    noise = torch.randn(p.shape, generator=rng)
    along = torch.einsum("ij,ij->i", root, noise)[:, None]
    direction = torch.zeros_like(logits)
    direction[batch.labels != NO_LABEL] = noise.addcmul_(root, along, value=-1).mul_(root).to(logits.dtype)
    return direction


def _measurements(
    text: Text, recorder: Recorder, *, scores: Scores, task: Task, left_out: dict[str, str]
) -> Measurements:
    predicted, nll, entropy = scores.sums.numpy()
    languages = torch.from_numpy(text.language_of)
    shape = len(text.languages), len(recorder.points)
    seen = torch.zeros(shape, dtype=torch.float64).index_add_(0, languages, recorder.positions)
    index = {point.name: i for i, point in enumerate(recorder.points)}
    asked = torch.zeros(shape[0], dtype=torch.float64).index_add_(0, languages, scores.sums[0])
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
        gradients={name: _mean(sums, asked) for name, sums in recorder.gradients.items()},
        inputs={name: _mean(sums, seen[:, index[name]]) for name, sums in recorder.inputs.items()},
        linears=tuple(recorder.linears),
        seen_by={name: f"{weight.sees}.input" for name, weight in recorder.linears.items()},
        left_out=left_out,
        damage={
            scheme: {form: sums.numpy() for form, sums in forms.items()} for scheme, forms in recorder.damage.items()
        },
        unigrams=unigrams(text),
    )


def _mean(sums: Tensor, count: Tensor) -> Floats:
    """Returns the sums of every language divided by its count; the sums are used up."""
    mean: Floats = sums.div_(count.reshape(-1, *[1] * (sums.ndim - 1))).numpy()
    return mean


def positions_at_once(model: "PreTrainedModel") -> int:
    """Returns how many positions a batch may have, by a rough count of what its backward pass keeps."""
    config = model.config.get_text_config()
    depth, width = int(config.num_hidden_layers), int(config.hidden_size)
    bytes_each = 4 * (LOGITS_KEPT * int(config.vocab_size) + (SAVED_PER_BLOCK + depth) * width)
    return max(ROOM // bytes_each, 32)


def _check_groups(scheme: Scheme, inputs: dict[str, int]) -> None:
    for name, columns in inputs.items():
        if not scheme.fits(columns):
            raise InputError(
                f"{name} has {columns} inputs, which groups of {scheme.group} do not divide; "
                "choose a group that divides the inputs of every layer, or one step per channel"
            )
