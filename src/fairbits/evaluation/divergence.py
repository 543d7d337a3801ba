"""How the predictions of a quantized model differ from the reference model's: KL divergence, loss and flips."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.core.array_checks import Floats

COMPARED_PARTS = 4
"""Parts in which logits are compared: memory that is written to is half of the logits of one model, and not twice."""


@dataclass(frozen=True, eq=False)
class DocumentSums:
    """Sums over the predicted tokens of every document, for both models on the same text."""

    predicted: Floats  # number of predicted tokens
    nll_reference: Floats  # and `nll_quantized`: −Σ log p(token), in nats
    nll_quantized: Floats
    kl: Floats  # Σ KL(p_reference ‖ p_quantized) over the whole vocabulary, in nats
    flips: Floats  # how often the quantized model prefers another token to the reference's first choice
    sure: Floats  # how often the reference gives its first choice more than half of the probability
    sure_flips: Floats  # flips where it does
    token_kl: NDArray[np.float32]  # the divergence of each token, and `token_document` its document
    token_margin: NDArray[np.float32]  # how much the margin of the first choice over the next best grows, nats
    token_document: NDArray[np.intp]
    notes: tuple[str, ...] = ()  # what a reader of any result must know about the quantized model


def compare_logits(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    """Returns for every position both losses, the divergence, 1 where the first choice flips, 1 where the reference is
    sure of it (`is_sure`), and how much its margin grows, as (6, positions).

    `a` are the logits of the reference, `b` of the quantized model. With m the largest logit and Z = Σ exp(logit − m),
    KL = Σ p (a − b) − (m_a − m_b) − (log Z_a − log Z_b): differences of close numbers are taken first, so the rounding
    error stays near 10⁻⁷. The margin is the logit of the reference's first choice less the largest other logit.
    """
    rows = max(-(-len(a) // COMPARED_PARTS), 1)
    parts = zip(*(torch.split(x, rows) for x in (a, b, labels)), strict=True)
    return torch.cat([_compare(*part) for part in parts], 1)


def _compare(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    top_a, choice = a.max(1)
    at = choice[:, None]
    kept = b.gather(1, at)[:, 0]
    work = torch.empty_like(a)  # the only memory that is written to
    rival_a, rival_b = (work.copy_(logits).scatter_(1, at, -torch.inf).amax(1) for logits in (a, b))
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
    return torch.stack([*losses, kl.clamp_min_(0), flips.float(), is_sure(-z_a.log()).float(), margin]).double()


def is_sure(log_p: Tensor) -> Tensor:
    """Returns where the first choice of the reference, whose log-probability is given, has more than half of all."""
    return log_p > math.log(0.5)


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
    """Returns KL(p ‖ q) of every row in nats for the logits a and b; gradients reach b, and only they are kept."""
    kl: Tensor = _DifferentiableKL.apply(a, b)  # type: ignore[no-untyped-call]
    return kl
