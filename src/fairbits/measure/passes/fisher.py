"""The Fisher gradient at the features of a model, from logits that exist for a few positions at a time.

Damage is predicted by the Fisher information F of the logits: KL(p ‖ p′) ≈ ½ (Δlogits)ᵀ F (Δlogits), with F = diag p −
p pᵀ at every predicted position. F is never formed. A random direction ξ with E[ξ ξᵀ] = F is drawn at each
position, and one backward pass of logits · ξ gives the gradient g at the output of every linear map. To first order a
change Δy of that output changes logits · ξ by g · Δy, so E[(g · Δy)²] is the quadratic form above. ξ depends on the
model's own probabilities only: no label is used, so this is the Fisher information and not its empirical variant.
"""

import warnings

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch
from fairbits.measure.passes.forward import Split
from fairbits.measure.passes.text import NO_LABEL
from fairbits.memory import CACHED_LOGITS, GPU_GRADIENT_POSITIONS, GRADIENT_POSITIONS
from fairbits.model.device import is_gpu


class LossSums:
    """Per document: predicted tokens, their loss and the entropy of their predictions, in nats.

    What is added stays on its device until the sums are read, so that a GPU need not wait.
    """

    def __init__(self, documents: int) -> None:
        """All sums start at 0."""
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
        """The sums so far, (3, documents)."""
        self.settle()
        return self._sums

    def settle(self) -> None:
        """Fetches what was added since the last time; raises if logits were NaN or infinite."""
        for documents, values in self._added:
            found = values.cpu()
            if not torch.isfinite(found[0]).all():
                raise InputError("the model's logits contain NaN or infinity; load it in float32, or check its weights")
            self._sums.index_add_(1, documents, found)
        self._added.clear()


class NormalDraws:
    """Standard normal numbers for one position after the other, the same however many are drawn at a time.

    On the CPU they are the stream of one generator (which depends on the number drawn at a time if the vocabulary is
    not a multiple of 16). On a GPU, whose streams are different, every run of DRAWN_TOGETHER positions has a seed of
    its own. So the draws of a CPU and a GPU are different, and with them the random part of predictions.
    """

    DRAWN_TOGETHER = 64

    def __init__(self, seed: int, device: str | torch.device = "cpu") -> None:
        """The draws follow from the seed and the kind of the device."""
        self._rng, self._seed, self._position = torch.Generator(device).manual_seed(seed), seed, 0

    def draw(self, positions: int, width: int) -> Tensor:
        """Returns the numbers of the next positions, (positions, width), on the device of these draws."""
        device = self._rng.device
        if device.type == "cpu":
            return torch.randn((positions, width), generator=self._rng)
        parts, end = [], self._position + positions
        while self._position < end:
            number, begin = divmod(self._position, self.DRAWN_TOGETHER)
            self._rng.manual_seed(((self._seed << 32) + number) % 2**63)
            drawn = torch.randn((self.DRAWN_TOGETHER, width), generator=self._rng, device=device)
            parts.append(drawn[begin : begin + end - self._position])
            self._position += len(parts[-1])
        return torch.cat(parts)


def fisher_gradient(features: Tensor, batch: Batch, split: Split, *, scores: LossSums, draws: NormalDraws) -> Tensor:
    """Returns the gradient of logits · ξ by the features, with a Fisher direction ξ at each predicted position.

    The loss of these positions is added to `scores`.
    """
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
            gradient[where] = torch.autograd.grad(logits, part, direction.to(logits.dtype))[0]
    scores.settle()
    return gradient


@torch.no_grad()
def _directions(logits: Tensor, labels: Tensor, documents: Tensor, *, scores: LossSums, draws: NormalDraws) -> Tensor:
    """Returns a Fisher direction at each position, and adds the loss there.

    On the CPU a few rows at a time pass all operations, so that they stay in its caches.
    """
    noise = draws.draw(*logits.shape).to(logits.device)
    rows = len(logits) if is_gpu(logits.device) else max(CACHED_LOGITS // logits.shape[1], 1)
    for start in range(0, len(logits), rows):
        some = slice(start, start + rows)
        fisher_direction(scores.add(logits[some], labels[some], documents[some]), noise[some])
    return noise


def fisher_direction(p: Tensor, noise: Tensor) -> Tensor:
    """Returns ξ = √p ⊙ ε − p (√pᵀε) for every row of p, ε standard normal `noise`: E[ξ ξᵀ] = diag p − p pᵀ.

    Overwrites both; ξ is where ε was.
    """
    noise.mul_(p.sqrt())
    return noise.sub_(p.mul_(noise.sum(1, keepdim=True)))
