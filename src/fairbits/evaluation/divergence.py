"""How the predictions of a quantized model differ from those of its reference: loss, divergence and flips."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.evaluation.hidden_states import EvaluatedModel, HiddenStates, evaluated_model, predicted_positions
from fairbits.evaluation.reference import Reference
from fairbits.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel


COMPARED_PARTS = 4
"""Parts in which logits are compared: memory that is written to is half of the logits of one model, and not twice."""


@dataclass(frozen=True, eq=False)
class DocumentSums:
    """Sums over the predicted tokens of every document, for both models on the same text.

    `predicted`      number of predicted tokens
    `nll_reference`  and `nll_quantized`: −Σ log p(token), in nats
    `kl`             Σ KL(p_reference ‖ p_quantized) over the whole vocabulary, in nats
    `flips`          how often the quantized model prefers another token to the reference's first choice
    `token_kl`       the divergence of each token, and `token_document` its document
    `token_margin`   by how much the margin of the reference's first choice over the next best token grows, in nats
    `notes`          what a reader of any result must know about the quantized model
    """

    predicted: Floats
    nll_reference: Floats
    nll_quantized: Floats
    kl: Floats
    flips: Floats
    token_kl: NDArray[np.float32]
    token_margin: NDArray[np.float32]
    token_document: NDArray[np.intp]
    notes: tuple[str, ...] = ()


@torch.no_grad()
def compare_models(
    model: "PreTrainedModel | Checkpoint",
    reference: Reference,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> DocumentSums:
    """Returns the answers of a quantized model on the text of its reference, after one pass."""
    text = reference.text
    evaluated = evaluated_model(model, text, device=device)
    sums = torch.zeros(5, len(text.lang), dtype=torch.float64)
    token_kl, token_margin = torch.empty(2, predicted_positions(text))
    token_document = torch.empty(len(token_kl), dtype=torch.long)
    done = 0
    for found in evaluated.features("evaluating the quantized model", progress):
        for part in _parts(found, evaluated.logit_positions):
            own = slice(done, done + len(part.labels))
            a, b = reference.logits(own, device=device), evaluated.head(part.features)
            _check_vocabulary(a, b, reference, evaluated)
            values = compare_logits(a.float(), b.float(), part.labels.to(device)).cpu()
            if not torch.isfinite(values).all():
                raise _not_finite(reference, own, device=device, model=evaluated)
            sums[0].index_add_(0, part.documents, torch.ones(len(part.labels), dtype=torch.float64))
            sums[1:].index_add_(1, part.documents, values[:4])
            token_kl[own], token_margin[own] = values[2].float(), values[4].float()
            token_document[own] = part.documents
            done = own.stop
    predicted, nll_reference, nll_quantized, kl, flips = sums.numpy()
    tokens = token_kl.numpy(), token_margin.numpy(), token_document.numpy()
    return DocumentSums(predicted, nll_reference, nll_quantized, kl, flips, *tokens, evaluated.notes)


def compare_logits(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    """Returns for every position both losses, the divergence, 1 where the first choice flips, and how much its margin
    grows, as (5, positions).

    `a` are the logits of the reference, `b` those of the quantized model; neither is changed. With m the largest logit
    and Z = Σ exp(logit − m), KL = Σ p (a − b) − (m_a − m_b) − (log Z_a − log Z_b). Differences of close numbers
    are taken first, so the rounding error stays near 10⁻⁷ however large the logits are. The margin is the logit of the
    reference's first choice less the largest other logit; where the quantized model's is negative, the choice flips.

    >>> a, b = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    >>> [round(each, 4) for each in compare_logits(a, b, torch.tensor([1])).flatten().tolist()]
    [0.3133, 1.3133, 0.4621, 1.0, -2.0]
    """
    rows = max(-(-len(a) // COMPARED_PARTS), 1)
    parts = zip(*(torch.split(each, rows) for each in (a, b, labels)), strict=True)
    return torch.cat([_compare(*part) for part in parts], 1)


def _compare(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    top_a, choice = a.max(1)
    at = choice[:, None]
    kept = b.gather(1, at)[:, 0]
    work = torch.empty_like(a)  # all that is written to
    rival_a, rival_b = (work.copy_(each).scatter_(1, at, -torch.inf).amax(1) for each in (a, b))
    flips, top_b = kept < rival_b, torch.maximum(kept, rival_b)
    margin = (kept - rival_b) - (top_a - rival_a)
    below_a = top_a - a.gather(1, labels[:, None])[:, 0]
    below_b = top_b - b.gather(1, labels[:, None])[:, 0]
    z_b = torch.sub(b, top_b[:, None], out=work).exp_().sum(1)
    weight = torch.sub(a, top_a[:, None], out=work).exp_()
    z_a = weight.sum(1)
    mean = weight.mul_(a - b).sum(1) / z_a
    kl = mean - (top_a - top_b) - (z_a.log() - z_b.log())
    losses = below_a + z_a.log(), below_b + z_b.log()
    return torch.stack([*losses, kl.clamp_min_(0), flips.float(), margin]).double()


class _DifferentiableKL(torch.autograd.Function):
    """KL(p ‖ q) of every row, given the logits of both; ∂/∂b = q − p."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        log_p, log_q = a.float().log_softmax(1), b.float().log_softmax(1)
        p = log_p.exp()
        kl = log_p.sub_(log_q).mul_(p).sum(1)
        ctx.save_for_backward(log_q.exp_().sub_(p).to(b.dtype))
        return kl

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (difference,) = ctx.saved_tensors
        return None, difference * grad[:, None].to(difference.dtype)


def differentiable_kl(a: Tensor, b: Tensor) -> Tensor:
    """Returns KL(p ‖ q) of every row in nats, where p and q have the logits a and b; gradients reach b only.

    For learning: it keeps q − p, which is its gradient, and nothing else. `compare_logits` measures the same to more
    digits, with the losses and the flips, and keeps nothing.

    >>> round(float(differentiable_kl(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))), 4)
    0.4621
    """
    kl: Tensor = _DifferentiableKL.apply(a, b)  # type: ignore[no-untyped-call]
    return kl


def _parts(whole: HiddenStates, size: int) -> Iterator[HiddenStates]:
    fields = (torch.split(each, size) for each in (whole.features, whole.labels, whole.documents))
    return (HiddenStates(*part) for part in zip(*fields, strict=True))


def _check_vocabulary(a: Tensor, b: Tensor, reference: Reference, model: EvaluatedModel) -> None:
    if a.shape != b.shape:
        raise InputError(
            f"{model.name} has {b.shape[1]:,} tokens in its vocabulary and {reference.target} {a.shape[1]:,}; "
            "both must have the same vocabulary: evaluate a model against the one it was made from"
        )


def _not_finite(reference: Reference, own: slice, *, device: str, model: EvaluatedModel) -> InputError:
    sound = torch.isfinite(reference.logits(own, device=device)).all()
    who = model.name if sound else reference.target
    return InputError(f"the logits of {who} contain NaN or infinity; load it in float32, or check its weights")
