"""The Fisher gradient at the features of a model, from logits that exist for a few positions at a time.

Damage is predicted by the Fisher information F of the logits: KL(p ‖ p′) ≈ ½ (Δlogits)ᵀ F (Δlogits), with F = diag p −
p pᵀ at every predicted position. F is never formed. A random direction ξ with E[ξ ξᵀ] = F is drawn at each
position, and one backward pass of logits · ξ gives the gradient g at the output of every linear layer. To first order a
change Δy of that output changes logits · ξ by g · Δy, so E[(g · Δy)²] is the quadratic form above. ξ depends on the
model's own probabilities only: no label is used, so this is the Fisher information and not its empirical variant.
"""

import warnings

import numpy as np
import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import CACHED_LOGITS, GPU_GRADIENT_POSITIONS, GRADIENT_POSITIONS
from fairbits.forward.batches import Batch
from fairbits.forward.body_and_head import Split
from fairbits.forward.windows import NO_LABEL
from fairbits.models.device import is_gpu


class LossSums:
    """Per document: predicted tokens, their loss and entropy in nats; a GPU need not wait until the sums are read."""

    def __init__(self, documents: int) -> None:
        self._sums = torch.zeros(3, documents, dtype=torch.float64)
        self._added: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def add(self, logits: Tensor, labels: Tensor, documents: Tensor) -> Tensor:
        """Adds the loss of some positions and returns their probabilities p, (positions, vocabulary)."""
        log_p = logits.float().log_softmax(-1)
        p = log_p.exp()
        nll = -log_p.gather(1, labels.to(log_p.device)[:, None])[:, 0].double()
        entropy = -log_p.mul_(p).sum(1).double()  # in place: with a large vocabulary every copy is costly
        # NaN if a logit is NaN or infinite: 0 · log 0 and ∞ − ∞ are
        self._added.append((documents, torch.stack((torch.where(entropy.isfinite(), 1.0, torch.nan), nll, entropy))))
        return p

    @property
    def sums(self) -> Tensor:
        self.settle()
        return self._sums

    def settle(self) -> None:
        """Fetches what was added since the last time; raises if logits were NaN or infinite."""
        for documents, values in self._added:
            added = values.cpu()
            if not torch.isfinite(added[0]).all():
                raise InputError("the model's logits contain NaN or infinity; load it in float32, or check its weights")
            self._sums.index_add_(1, documents, added)
        self._added.clear()


class SignDraws:
    """Random signs for one position after the other, the same on every device and however many are drawn at a time.

    A quadratic form that is estimated with signs has a smaller variance than one with normal numbers, as the squares
    of signs are always 1; and a sign is one bit.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.SFC64(seed)

    def draw(self, positions: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Returns the signs of the next positions, −1 or 1, (positions, count), float32."""
        words = -(-count // 64)
        drawn = self._bits.random_raw(positions * words).astype("<u8", copy=False)
        packed = drawn.view(np.uint8).reshape(positions, -1)
        if not is_gpu(device):
            bits = torch.from_numpy(np.unpackbits(packed, axis=1, count=count, bitorder="little"))
        else:
            shifts = torch.arange(8, dtype=torch.uint8, device=device)
            bits = (torch.from_numpy(packed).to(device)[..., None] >> shifts & 1).flatten(1)[:, :count]
        return bits.float().mul_(2).sub_(1)


def fisher_gradient(features: Tensor, batch: Batch, split: Split, *, scores: LossSums, draws: SignDraws) -> Tensor:
    """Returns the gradient of logits · ξ by the features, ξ a Fisher direction at each prediction; adds the loss."""
    gradient = torch.zeros_like(features)
    at_once = GPU_GRADIENT_POSITIONS if is_gpu(features.device) else GRADIENT_POSITIONS
    for at in torch.split((batch.labels != NO_LABEL).nonzero(), at_once):
        rows, columns = at.T
        where = at.to(features.device).T.unbind()
        part = features.detach()[where].requires_grad_()
        with torch.enable_grad():
            logits = split.head(part)
        labels, documents = batch.labels[rows, columns], batch.document[rows]
        direction = _directions(logits.detach(), labels, documents, scores=scores, draws=draws)
        with warnings.catch_warnings():
            # the first backward pass on a GPU sets the context of its thread, and torch warns that it did
            warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
            gradient[where] = torch.autograd.grad(logits, part, direction)[0]
    scores.settle()
    return gradient


@torch.no_grad()
def _directions(logits: Tensor, labels: Tensor, documents: Tensor, *, scores: LossSums, draws: SignDraws) -> Tensor:
    """Returns a Fisher direction at each position, and adds the loss; a few rows at a time stay in a CPU's caches."""
    directions = torch.empty_like(logits)
    rows = len(logits) if is_gpu(logits.device) else max(CACHED_LOGITS // logits.shape[1], 1)
    for start in range(0, len(logits), rows):
        some = slice(start, start + rows)
        p = scores.add(logits[some], labels[some], documents[some])
        directions[some] = fisher_direction(p, draws.draw(len(p), p.shape[1], logits.device))
    return directions


def fisher_direction(p: Tensor, signs: Tensor) -> Tensor:
    """Returns ξ = √p ⊙ ε − p (√pᵀε) for every row of p, ε random `signs`: E[ξ ξᵀ] = diag p − p pᵀ. Overwrites both."""
    signs.mul_(p.sqrt())
    return signs.sub_(p.mul_(signs.sum(1, keepdim=True)))
