"""What a few tokens say of a KL divergence, against sums over the whole vocabulary."""

import numpy as np
import pytest
import torch

from fairbits.evaluation.servers.interfaces import ABSENT, UNKNOWN
from fairbits.evaluation.servers.partial_kl import PartialComparison, partial_comparison

VOCABULARY = 40


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probabilities of a reference and of a server at one position."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(VOCABULARY, generator=generator)
    return logits.log_softmax(0), (logits + torch.randn(VOCABULARY, generator=generator)).log_softmax(0)


def compared(log_p: torch.Tensor, log_q: torch.Tensor, top: int) -> PartialComparison:
    """Returns what is known for every token of the vocabulary as the one of the text."""
    values, ids = log_q.topk(top)
    labels = torch.arange(VOCABULARY)
    rows = (log_p.expand(VOCABULARY, -1), labels, log_q[labels])
    return partial_comparison(*rows, ids.expand(VOCABULARY, -1), values.expand(VOCABULARY, -1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top", [1, 5, 20, VOCABULARY])
def test_bound_and_estimate_against_the_whole_vocabulary(seed: int, top: int) -> None:
    log_p, log_q = drawn(seed)
    exact = float((log_p.exp() * (log_p - log_q)).sum())
    shown = compared(log_p, log_q, top)
    assert (shown.bound <= exact + 1e-5).all()
    assert float(log_p.exp().double() @ shown.estimate) == pytest.approx(exact, abs=1e-4)  # its mean over the text
    if top == VOCABULARY:
        assert shown.bound.numpy() == pytest.approx(exact, abs=1e-5)
        assert shown.estimate.numpy() == pytest.approx(exact, abs=1e-5)
    assert (shown.flips == float(log_p.argmax() != log_q.argmax())).all()
    assert not shown.undecided.any()
    assert float(shown.covered[0]) == pytest.approx(float(log_p[log_q.topk(top).indices].exp().sum()), abs=1e-6)


def test_the_bound_is_exact_where_the_others_keep_their_proportions() -> None:
    log_p, _ = drawn(0)
    log_q = log_p.clone()
    top = log_p.topk(4).indices
    log_q[top] += torch.tensor([0.3, -0.2, 0.1, -0.1])
    rest = torch.ones(VOCABULARY, dtype=torch.bool).index_fill(0, top, value=False)
    log_q[rest] += ((1 - log_q[top].exp().sum()) / log_q[rest].exp().sum()).log()
    exact = float((log_p.exp() * (log_p - log_q)).sum())
    assert compared(log_p, log_q, 4).bound.numpy() == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_first_of_several_most_probable_tokens_is_the_choice(first: int, top: int) -> None:
    log_q = torch.tensor([[2.0, 2.0, 1.0, 0.0]]).log_softmax(1)
    log_p = torch.nn.functional.one_hot(torch.tensor([first]), 4).float().log_softmax(1)
    ids = torch.tensor([[1, 0, 2][:top]])
    for label in range(4):
        shown = partial_comparison(log_p, torch.tensor([label]), log_q[:, label], ids, log_q.gather(1, ids))
        assert (float(shown.flips), float(shown.undecided)) == (float(first != 1), 0.0)


@pytest.mark.parametrize("seed", range(30))
def test_names_of_several_tokens_leave_the_first_choice_uncertain_but_not_wrong(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_p, log_q = drawn(seed)
    shared = set(rng.choice(VOCABULARY, 12, replace=False).tolist())  # tokens of one name
    values, ids = log_q.topk(8)
    pairs = list(zip(ids.tolist(), values.tolist(), strict=True))
    merged = [(token, value) for token, value in pairs if token not in shared]
    ambiguous = [value for token, value in pairs if token in shared]
    if ambiguous:  # servers keep the log-probability of any of them
        merged.append((ABSENT, float(rng.choice(ambiguous))))
    merged.sort(key=lambda pair: -pair[1])
    merged += [(ABSENT, UNKNOWN)] * (8 - len(merged))
    names, shown = (torch.tensor(column)[None] for column in zip(*merged, strict=True))
    label = torch.tensor([int(rng.integers(VOCABULARY))])
    known = partial_comparison(log_p[None], label, log_q[label], names, shown)
    true = float(log_p.argmax() != log_q.argmax())
    assert float(known.flips) >= true
    assert float(known.flips - known.undecided) <= true
    assert float(known.bound) <= float((log_p.exp() * (log_p - log_q)).sum()) + 1e-5
    if not ambiguous:
        assert not known.undecided.any()
