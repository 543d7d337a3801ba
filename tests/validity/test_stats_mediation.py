"""Coverage of the mediation intervals under the chain model, with independent units and with families."""

import numpy as np
import pytest

from fairbits_research.stats.mediation_models import mediate

pytestmark = pytest.mark.validity

TRIALS = 500


def chain(rng, T, noise_a, noise_r):
    A = 0.8 * T + 0.5 * noise_a
    R = 8 + 0.5 * A + 0.3 * noise_r
    return A, R, 3 / R + 0.02 * T + 0.03 * rng.normal(size=len(T))


def truth(seed=0):
    rng = np.random.default_rng(seed)
    T, a, r = rng.normal(size=(3, 400_000))
    _, R, _ = chain(rng, T, a, r)
    indirect = float((3 / (R + 0.4) - 3 / R).mean())
    return {"indirect": indirect, "chain": indirect, "direct": 0.02}


TRUTH = truth()


@pytest.mark.parametrize("n", [60, 14])
def test_effects_are_covered(n):
    rng = np.random.default_rng(n)
    hits = {name: [] for name in TRUTH}
    for _ in range(TRIALS):
        T, a, r = rng.normal(size=(3, n))
        A, R, D = chain(rng, T, a, r)
        result = mediate(T, A, R=R, D=D, resamples=1000, rng=rng)
        for name, value in TRUTH.items():
            estimate = getattr(result, name)
            hits[name].append(estimate.low <= value <= estimate.high)
    coverage = {name: float(np.mean(covered)) for name, covered in hits.items()}
    print(f"\nmediation coverage, n={n}: {coverage} ({TRIALS} trials)")
    assert min(coverage.values()) > 0.90
    assert max(coverage.values()) < 0.99


def test_families_are_covered_only_when_resampled_whole():
    rng = np.random.default_rng(9)
    family = np.repeat(np.arange(25), 4)
    hits = {"families": [], "units": []}
    for _ in range(300):
        T, a, r = 0.9 * rng.normal(size=(3, 25))[:, family] + np.sqrt(0.19) * rng.normal(size=(3, 100))
        A, R, D = chain(rng, T, a, r)
        for name, families in (("families", family), ("units", None)):
            estimate = mediate(T, A, R=R, D=D, families=families, resamples=1000, rng=rng).indirect
            hits[name].append(estimate.low <= TRUTH["indirect"] <= estimate.high)
    coverage = {name: float(np.mean(covered)) for name, covered in hits.items()}
    print(f"\nmediation coverage with 25 families: {coverage} (300 trials)")
    assert coverage["families"] > 0.87
    assert coverage["families"] >= coverage["units"] - 0.01
