"""Weight moments against SciPy, NumPy and brute force, on several laws and in every dtype."""

import numpy as np
import pytest
import torch
from scipy import stats

from fairbits.models.weight_moments import tensor_moments

LAWS = {
    "normal": stats.norm(0, 0.02),
    "laplace": stats.laplace(0, 0.02),
    "t3": stats.t(3, scale=0.02),
    "skewed": stats.lognorm(0.8, scale=0.02),
    "uniform": stats.uniform(-0.02, 0.04),
    "far from zero": stats.norm(20.0, 0.02),  # mean = 1000 σ
    "tiny": stats.norm(0, 1e-30),
    "subnormal": stats.norm(0, 1e-43),
    "huge": stats.norm(0, 1e30),
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def draw(law: str, dtype: torch.dtype, n: int = 30_011) -> torch.Tensor:
    seed = sorted(LAWS).index(law)
    W = torch.from_numpy(LAWS[law].rvs(n, random_state=seed)).to(dtype)
    if not torch.isfinite(W).all() or W.unique().numel() < 2:
        pytest.skip(f"{dtype} does not reach so far")
    return W


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS)
def test_moments_and_shares_are_those_of_scipy_and_brute_force(law, dtype) -> None:
    W = draw(law, dtype)
    x = W.double().numpy()
    scaled = x / np.abs(x).max()  # SciPy takes powers of the numbers as they are
    found = tensor_moments(W)
    assert found.mean == pytest.approx(x.mean(), rel=1e-12, abs=1e-14 * x.std())
    assert found.sigma == pytest.approx(scaled.std() * np.abs(x).max(), rel=1e-11)
    assert found.skewness == pytest.approx(stats.skew(scaled), rel=1e-9, abs=1e-9)
    assert found.kappa == pytest.approx(stats.kurtosis(scaled), rel=1e-10, abs=1e-9)
    assert found.largest == np.abs(x).max()
    distance = np.abs(x - found.mean)
    assert found.beyond_3 == np.mean(distance > 3 * found.sigma)
    assert found.beyond_6 == np.mean(distance > 6 * found.sigma)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", ["normal", "t3", "skewed"])
@pytest.mark.parametrize("k", [0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0])
def test_shares_at_any_distance_lie_within_their_bounds(law, dtype, k) -> None:
    found = tensor_moments(W := draw(law, dtype))
    share = np.mean(np.abs(W.double().numpy() - found.mean) > k * found.sigma)
    least, greatest = found.beyond_bounds(k)
    assert least <= share <= greatest
    assert least <= found.beyond(k) <= greatest
    if dtype.itemsize == 2:
        assert least == share == greatest
    else:
        assert greatest - least < 0.03
        assert found.beyond(k) == pytest.approx(share, abs=4e-4)


def test_merged_float32_shares_of_many_scales_match_brute_force() -> None:
    rng = np.random.default_rng(3)
    parts = [(rng.standard_t(5, 40_000) * scale).astype(np.float32) for scale in (0.3, 1.0, 1.7, 4.0)]
    merged = tensor_moments(torch.from_numpy(parts[0]))
    for part in parts[1:]:
        merged = merged + tensor_moments(torch.from_numpy(part))
    x = np.concatenate(parts).astype(np.float64)
    for k, share in ((3, merged.beyond_3), (6, merged.beyond_6)):
        assert share == pytest.approx(np.mean(np.abs(x - x.mean()) > k * x.std()), rel=0.01)
