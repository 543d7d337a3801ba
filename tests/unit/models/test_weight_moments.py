import numba
import numpy as np
import pytest
import torch
from fairbits.models.moment_passes import count_patterns_in_torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairbits.core.errors import InputError
from fairbits.models.weight_moments import WeightMoments, tensor_moments

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
NUMBERS = ("mean", "sigma", "skewness", "kappa", "largest", "beyond_3", "beyond_6")


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def assert_same(one: WeightMoments, other: WeightMoments, *, shares: float = 0.0) -> None:
    assert one.n == other.n
    for name in NUMBERS:
        tolerance = shares if name.startswith("beyond") else 1e-12
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-10, abs=tolerance), name


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [3, 300, 4999])  # in the first block, in a later one, in what is left over
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_named(dtype, at, value) -> None:
    W = gaussian(50, 100, dtype=dtype)
    W.view(-1)[at] = W.view(-1)[-1] = value
    count = 1 if at == 4999 else 2
    expected = rf"h\.0\.weight holds {count} NaN or infinite .* \({value}\) at \({at // 100}, {at % 100}\)"
    with pytest.raises(InputError, match=expected):
        tensor_moments(W, name="h.0.weight")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.arange(4), "holds torch.int64; weights must be bfloat16, float16, float32, float64"),
        (torch.tensor([True]), "holds torch.bool"),
        (torch.empty(0), r"shape \(0,\) and no elements"),
        (torch.empty(3, 0), "no elements"),
        (torch.empty(3, device="meta"), "device meta"),
        ([1.0, 2.0], "must be a Tensor"),
    ],
)
def test_what_has_no_moments_is_refused(tensor, message) -> None:
    with pytest.raises(InputError, match=message):
        tensor_moments(tensor)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 255, 256, 5000, 70_000])
def test_equal_weights_have_no_spread(dtype, n) -> None:
    value = float(torch.tensor(0.1, dtype=dtype))
    moments = tensor_moments(torch.full((n,), 0.1, dtype=dtype))
    assert moments.as_data() == {
        "n": n,
        "mean": value,
        "sigma": 0.0,
        "skewness": 0.0,
        "kappa": 0.0,
        "largest": value,
        "beyond_3": 0.0,
        "beyond_6": 0.0,
        "exact": True,
    }


@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_weights_stay_equal_when_merged(dtype) -> None:
    parts = [tensor_moments(torch.full((n,), 0.1, dtype=dtype)) for n in (33, 1000)]
    whole = tensor_moments(torch.full((1033,), 0.1, dtype=dtype))
    assert parts[0] + parts[1] == whole
    assert (parts[0] + parts[1]).beyond_bounds(3) == (0.0, 0.0)


def test_a_first_block_far_from_the_rest_costs_no_accuracy() -> None:
    W = gaussian(16, 256, dtype=torch.float64)
    W[0] += 1e6  # the centre of the chunk lies 1e6 from nearly all of its weights
    d = W.numpy() - W.numpy().mean()
    assert tensor_moments(W).kappa == pytest.approx(np.mean(d**4) / np.mean(d**2) ** 2 - 3, rel=1e-11)


@pytest.mark.parametrize("scale", [1e-200, 1e-140, 1e150, 1e200])
def test_float64_of_any_size_is_exact_or_refused(scale) -> None:
    W = gaussian(1000, dtype=torch.float64)
    if 1e-150 < scale < 1e152:
        assert tensor_moments(W * scale).kappa == pytest.approx(tensor_moments(W).kappa, rel=1e-11)
    else:
        with pytest.raises(InputError, match=r"the variance is b.* the range of float64"):
            tensor_moments(W * scale)


@pytest.mark.parametrize("dtype", FLOATS)
def test_views_gradients_and_scalars_are_read_as_they_are(dtype) -> None:
    W = gaussian(60, 100, dtype=dtype)
    assert_same(tensor_moments(W.T), tensor_moments(W))
    assert_same(tensor_moments(W[:, ::2]), tensor_moments(W[:, ::2].clone()))
    assert_same(tensor_moments(W.reshape(-1)[1:]), tensor_moments(W.reshape(-1)[1:].clone()))
    assert tensor_moments(torch.nn.Parameter(W)) == tensor_moments(W)
    assert tensor_moments(W[0, 0]).mean == float(W[0, 0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype) -> None:
    W = gaussian(300_000, dtype=dtype)
    every = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = tensor_moments(W)
    finally:
        numba.set_num_threads(every)
    assert tensor_moments(W) == alone


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(np.float32, st.integers(2, 1500), elements=st.floats(-1e4, 1e4, width=16)),
    cut=st.floats(0.01, 0.99),
    dtype=st.sampled_from(FLOATS),
)
def test_merging_is_one_pass_over_both(values, cut, dtype) -> None:
    W = torch.from_numpy(values).to(dtype)
    at = min(max(1, int(cut * len(W))), len(W) - 1)
    both, whole = tensor_moments(W[:at]) + tensor_moments(W[at:]), tensor_moments(W)
    spread = max(whole.sigma, 1e-7 * whole.largest)
    assert (both.n, both.largest) == (whole.n, whole.largest)
    assert both.mean == pytest.approx(whole.mean, abs=1e-9 * spread, rel=1e-12)
    assert both.sigma == pytest.approx(whole.sigma, rel=1e-9, abs=1e-9 * spread)
    for k, share in ((3, whole.beyond_3), (6, whole.beyond_6)):
        least, greatest = both.beyond_bounds(k)
        if whole.sigma > 1e-6 * whole.largest:  # else a threshold is nothing but rounding
            assert least <= share <= greatest
            assert dtype.itemsize > 2 or share == pytest.approx([both.beyond_3, both.beyond_6][k // 6], abs=0)
            assert both.skewness == pytest.approx(whole.skewness, rel=1e-6, abs=1e-6)
            assert both.kappa == pytest.approx(whole.kappa, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_merged_shares_are_exact_for_16_bits_and_close_for_more(dtype) -> None:
    narrow, broad = gaussian(200_000, dtype=dtype), gaussian(100_000, seed=1, dtype=dtype) * 4
    both = tensor_moments(narrow) + tensor_moments(broad)
    whole = tensor_moments(torch.cat([narrow, broad]))
    assert whole.exact
    assert both.exact == (dtype.itemsize == 2)
    assert_same(both, whole, shares=0.0 if both.exact else 1e-5)
    least, greatest = both.beyond_bounds(3)
    assert least <= whole.beyond_3 <= greatest <= least * 1.1


def test_dtypes_merge_with_each_other() -> None:
    parts = [gaussian(5000, seed=i, dtype=dtype) for i, dtype in enumerate(FLOATS)]
    merged = sum((tensor_moments(part) for part in parts[1:]), start=tensor_moments(parts[0]))
    whole = tensor_moments(torch.cat([part.double() for part in parts]))
    assert_same(merged, whole, shares=1e-4)
    assert len(merged.histograms) == 4


def test_only_moments_merge_with_moments() -> None:
    with pytest.raises(InputError, match="must be a WeightMoments"):
        tensor_moments(torch.ones(2)) + 1.0  # type: ignore[operator]


def test_shares_of_large_tensors_are_exact_alone_and_within_their_limits_merged() -> None:
    rng = torch.Generator().manual_seed(3)
    wide, narrow = torch.randn(5_000_001, generator=rng) * 3, torch.randn(4_500_000, generator=rng)
    alone = tensor_moments(wide)
    assert alone.exact
    assert alone.beyond_3 == float(((wide.double() - wide.double().mean()).abs() > 3 * alone.sigma).double().mean())
    both = alone + tensor_moments(narrow)
    everything = torch.cat([wide, narrow]).double()
    for k, share in ((1.0, both.beyond(1.0)), (3.0, both.beyond_3), (6.0, both.beyond_6)):
        truth = float(((everything - everything.mean()).abs() > k * both.sigma).double().mean())
        least, greatest = both.beyond_bounds(k)
        assert least <= truth <= greatest
        assert greatest - least < 0.02 * truth + 0.005
        assert share == pytest.approx(truth, rel=0.02, abs=1e-5)
    assert not both.exact


@pytest.mark.parametrize("column", [10, 100, 4000])
def test_an_outlier_column_of_large_tensors_is_counted(column: int) -> None:
    rng = torch.Generator().manual_seed(column)
    halves = [torch.randn(1100, 4096, generator=rng) for _ in range(2)]
    for half in halves:
        half[:, column] *= 20
    both = tensor_moments(halves[0]) + tensor_moments(halves[1])
    everything = torch.cat(halves).double()
    for k, error in ((3.0, 0.08), (6.0, 0.01)):  # four standard errors of the sampled part; outliers are counted whole
        truth = float(((everything - everything.mean()).abs() > k * both.sigma).double().mean())
        least, greatest = both.beyond_bounds(k)
        assert least <= truth <= greatest
        assert both.beyond(k) == pytest.approx(truth, rel=error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_counting_in_torch_is_that_of_the_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = gaussian(70_001, dtype=dtype)
    expected = tensor_moments(weights)
    monkeypatch.setattr("fairbits.models.moment_passes._count_patterns", count_patterns_in_torch)
    monkeypatch.setattr("fairbits.models.moment_passes.CHECKED_WEIGHTS", 10_000)
    assert tensor_moments(weights) == expected
