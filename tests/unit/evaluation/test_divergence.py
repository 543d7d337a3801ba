"""The divergence of logits against plain formulas in double precision."""

import pytest
import torch

from fairbits.evaluation.divergence import compare_logits


def test_logits_that_are_compared_stay_as_they_are() -> None:
    a, b = torch.randn(2, 40, 30, generator=torch.Generator().manual_seed(2))
    before = a.clone(), b.clone()
    compare_logits(a, b, torch.zeros(40, dtype=torch.long))
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_small_divergence_of_large_logits_is_exact() -> None:
    rng = torch.Generator().manual_seed(0)
    a = 30 + 5 * torch.randn(40, 5000, generator=rng)
    b = a + 7 + 1e-2 * torch.randn(40, 5000, generator=rng)
    p, q = a.double().log_softmax(-1), b.double().log_softmax(-1)
    true = (p.exp() * (p - q)).sum(1)
    comparison = compare_logits(a, b, torch.zeros(40, dtype=torch.long))
    assert true.max() < 1e-4
    assert comparison[2] == pytest.approx(true, abs=2e-6)
    assert comparison[0] == pytest.approx(-p[:, 0], abs=1e-5)


def test_margins_are_those_of_a_plain_loop() -> None:
    rng = torch.Generator().manual_seed(1)
    a = torch.randn(200, 30, generator=rng)
    b = a + 0.5 * torch.randn(200, 30, generator=rng)
    b[0], a[1, :2], b[2, :3] = a[0], 9.0, 9.0  # no change; a tie in the reference; a tie after quantization
    expected = []
    for before, after in zip(a.tolist(), b.tolist(), strict=True):
        first = max(range(30), key=before.__getitem__)
        other_before, other_after = (max(row[i] for i in range(30) if i != first) for row in (before, after))
        expected.append((after[first] - other_after) - (before[first] - other_before))
    first, second = a.topk(2).values.T
    after = b.gather(1, a.argmax(1)[:, None])[:, 0]
    flips = after < b.amax(1)
    comparison = compare_logits(a, b, torch.zeros(200, dtype=torch.long))
    assert comparison.shape == (6, 200)
    assert comparison[5] == pytest.approx(torch.tensor(expected), abs=1e-5)
    assert comparison[5][0] == 0
    assert 20 < flips.sum() < 180
    assert torch.equal(comparison[3].bool(), flips)
    assert torch.equal(first - second + comparison[5] < -1e-6, flips)


def test_the_reference_is_sure_where_one_token_has_more_than_half() -> None:
    a = torch.randn(300, 4, generator=torch.Generator().manual_seed(3)) * 2
    a[0], a[1] = torch.tensor([1.0, 1.0, -99.0, -99.0]), torch.tensor([1.001, 1.0, -99.0, -99.0])  # half, and more
    sure = [max(row) / sum(row) > 0.5 for row in a.double().exp().tolist()]
    assert not sure[0]
    assert 50 < sum(sure) < 250
    assert compare_logits(a, -a, torch.zeros(300, dtype=torch.long))[4].bool().tolist() == sure
