"""What follows from the log-probabilities of a few tokens, given all logits of the reference model.

p is the distribution of the reference at a position and q that of the server. S are the tokens whose log q is known,
and ε_p and ε_q what both distributions leave to all others. By the log-sum inequality

    KL(p ‖ q) ≥ B = Σ_S p log(p / q) + ε_p log(ε_p / ε_q),

exact if q is proportional to p outside S. On text that the reference itself wrote at temperature 1, the token x at a
position is drawn from p, so log p(x) − log q(x) has the mean KL. Its noise is mostly removed by subtracting the same
difference of the distributions in which the tokens outside S are one token, whose mean is B:

    KL ≈ B + [x ∉ S] (log(p(x) / ε_p) − log(q(x) / ε_q)),

which is unbiased whatever S is, as long as S does not depend on x.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairbits.evaluation.divergence import is_sure
from fairbits.evaluation.servers.interfaces import ABSENT, UNKNOWN

FLOAT32_ERROR = 2.0**-22  # of a probability that was computed from a log-probability in float32
LEAST_REST = 1e-30  # of ε, so that its logarithm is finite


@dataclass(frozen=True, eq=False)
class PartialComparison:
    """What is known at every position, in nats."""

    nll_reference: Tensor
    nll_served: Tensor
    bound: Tensor  # B; the token of the text is one of S
    estimate: Tensor  # unbiased if the reference wrote the text; S are the most probable tokens of the server alone
    flips: Tensor  # 1 where the first choice differs, or may differ
    undecided: Tensor  # 1 where the server's names do not tell whether it differs
    sure: Tensor  # 1 where the reference is sure of its first choice
    covered: Tensor  # Σ p over the most probable tokens of the server


def partial_comparison(logits: Tensor, labels: Tensor, served: Tensor, ids: Tensor, top: Tensor) -> PartialComparison:
    """Returns what is known at every position.

    `logits` (positions, vocabulary) are those of the reference, `labels` the tokens of the text, `served` their
    log-probabilities in the server, and `ids` and `top` (positions, k) its most probable tokens, in falling order.
    """
    log_p = logits.float().log_softmax(1)
    at, present = labels[:, None], ids != ABSENT
    own_p, own_q = log_p.gather(1, at)[:, 0].double(), served.double()
    p_top = torch.where(present, log_p.gather(1, ids.clamp(min=0)).double(), -torch.inf)
    q_top = torch.where(present, top.double(), -torch.inf)
    shared, covered = _terms(p_top, q_top).sum(1), p_top.exp().sum(1).clamp(max=1)
    rest_p, rest_q = 1 - covered, _left(q_top.exp())
    estimate = shared + _lumped(rest_p, rest_q)
    outside = ~((ids == at) & present).any(1)  # where the token of the text is none of the most probable
    estimate = estimate + outside * ((own_p - own_q) - (_log(rest_p) - _log(rest_q)))
    other_p = (rest_p - outside * own_p.exp()).clamp(min=0)
    other_q = (rest_q - outside * own_q.exp()).clamp(min=FLOAT32_ERROR)
    bound = shared + outside * _terms(own_p, own_q) + _lumped(other_p, other_q)
    most, first = log_p.max(1)
    flips, undecided = _flips(first, labels, own_q, ids, top.double())
    return PartialComparison(
        -own_p, -own_q, bound.clamp(min=0), estimate, flips, undecided, is_sure(most).double(), covered
    )


def _flips(first: Tensor, labels: Tensor, own_q: Tensor, ids: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Returns 1 where the server may prefer another token to the reference's `first` choice, and 1 where it is unsure.

    Where several tokens are the most probable, as often in 16 bits, the one that the server names first is its choice.
    A server that names tokens by their text gives several tokens one name (`ABSENT`), and one log-probability of them
    (the others are `UNKNOWN`): any of these may be its first choice, with the probability that no shown token has.
    """
    kept = torch.where(ids == first[:, None], top, -torch.inf).amax(1)
    kept = torch.maximum(kept, torch.where(first == labels, own_q, -torch.inf))
    shown = torch.where(top == UNKNOWN, -torch.inf, top)
    hidden = torch.where((top == UNKNOWN).any(1), _log(_left(shown.exp())), -torch.inf)
    best = top[:, 0]
    equal = (kept >= best) & (kept >= hidden)
    other = equal & (ids[:, 0] != first) & (ids[:, 0] != ABSENT)
    unchanged = equal & ~other
    clear = torch.where(kept.isinf(), (ids[:, 0] != ABSENT) & (best >= hidden), kept < best)
    return (~unchanged).double(), (~unchanged & ~clear & ~other).double()


def _terms(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Returns p log(p / q), 0 where a token is absent."""
    difference = torch.where(torch.isinf(log_p) & torch.isinf(log_q), 0.0, log_p - log_q)
    return log_p.exp() * difference


def _lumped(rest_p: Tensor, rest_q: Tensor) -> Tensor:
    """Returns ε_p log(ε_p / ε_q)."""
    return rest_p * (_log(rest_p) - _log(rest_q))


def _left(probabilities: Tensor) -> Tensor:
    """Returns what probabilities leave to others: rather too much than too little, so that a bound stays one."""
    return (1 - probabilities.sum(1)).clamp(min=0) + FLOAT32_ERROR * (1 + probabilities.shape[1])


def _log(rest: Tensor) -> Tensor:
    return rest.clamp(min=LEAST_REST).log()
