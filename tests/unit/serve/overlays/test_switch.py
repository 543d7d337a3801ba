"""Overlays in a loaded model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.overlay_files import BASE, Overlay, Overlays, Patch
from fairbits.serve.overlays.switch import Switch

TYPES = [torch.float32, torch.float16, torch.bfloat16]
ALL_CODES = torch.arange(-128, 128)


def bits_of(tensor: Tensor) -> Tensor:
    """Returns the bits of floating point numbers, in which 0 and −0 differ."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def one_map(W: Tensor) -> Any:
    """Returns a model of a single linear layer, named "0"."""
    model = nn.Sequential(nn.Linear(W.shape[1], W.shape[0], bias=False, dtype=W.dtype))
    model[0].weight.data = W.clone()
    return model


def rescaled(old: Tensor, new: Tensor, rows: Tensor | None = None) -> Overlay:
    return Overlay("a", (), (Patch("steps", "w", "0", 8, rows, new, None, old),))


def there_and_back(codes: Tensor, old: Tensor, new: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """Returns the weights under other scales, and whether rows were kept; the way back is checked."""
    W = codes.to(dtype) * old.to(dtype)
    model = one_map(W)
    switch = Switch(model, [rescaled(old, new)])
    for _ in range(2):
        switch.to("a")
        put, kept = model[0].weight.data.clone(), any(rows is not None for *_, rows in switch._kept)
        switch.to(BASE)
        assert torch.equal(bits_of(model[0].weight.data), bits_of(W))
    return put, kept


@pytest.mark.parametrize("dtype", TYPES)
def test_every_way_through_the_overlays_leads_back_bit_for_bit(adaptive: tuple[Path, Path], dtype: torch.dtype) -> None:
    base = Checkpoint(adaptive[0])
    overlays, model = Overlays.load(adaptive[1], base), base.load(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    switch = Switch(model, overlays.overlays)
    seen: dict[str, dict[str, torch.Tensor]] = {BASE: before}
    for name in ("a", "b", "a", BASE, "b", BASE):
        switch.to(name)
        now = model.state_dict()
        same = seen.setdefault(name, {key: tensor.clone() for key, tensor in now.items()})
        assert all(torch.equal(now[key], same[key]) for key in same)
    changed = {key for key in before if not torch.equal(seen["a"][key], before[key])}
    assert changed == {patch.module + ".weight" for patch in overlays.overlays[0].patches}


def test_all_codes_of_8_bits_are_read_off_bfloat16_for_all_steps() -> None:
    mantissas = torch.arange(128, 256).float()
    old, new = (grid.flatten()[:, None] * 2.0**-17 for grid in torch.meshgrid(mantissas, mantissas, indexing="ij"))
    codes = ALL_CODES.expand(len(old), -1)
    put, kept = there_and_back(codes, old, new, torch.bfloat16)
    assert torch.equal(put, codes.bfloat16() * new.bfloat16())
    assert not kept


@pytest.mark.parametrize("exponent", [-34, -30, -24, -12])  # the first two are below the normal numbers
def test_all_codes_of_8_bits_are_read_off_float16_for_all_steps(exponent: int) -> None:
    mantissas = torch.arange(1024, 2048).float()
    old = mantissas[:, None] * 2.0**exponent
    new = mantissas[torch.randperm(1024, generator=torch.Generator().manual_seed(0))][:, None] * 2.0**exponent
    codes = ALL_CODES.expand(len(old), -1)
    put, kept = there_and_back(codes, old.half(), new.half(), torch.float16)
    assert torch.equal(put, codes.half() * new.half())
    assert not kept


@pytest.mark.parametrize("dtype", TYPES)
def test_groups_and_rows_take_their_own_steps(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (40, 64), generator=rng)
    old, new = (0.001 + torch.rand(40, 4, generator=rng) / 50 for _ in range(2))
    W = (codes.reshape(40, 4, 16).to(dtype) * old.to(dtype)[:, :, None]).reshape(40, 64)
    expected = (codes.reshape(40, 4, 16).to(dtype) * new.to(dtype)[:, :, None]).reshape(40, 64)
    rows, model = torch.tensor([3, 0, 39, 17]), one_map(W)
    switch = Switch(model, [rescaled(old[rows], new[rows], rows)])
    switch.to("a")
    others = torch.ones(40, dtype=torch.bool).index_fill_(0, rows, False)
    assert torch.equal(model[0].weight[rows], expected[rows])
    assert torch.equal(model[0].weight[others], W[others])
    switch.to(BASE)
    assert torch.equal(bits_of(model[0].weight.data), bits_of(W))


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        pytest.param(0.0, 0.0, False, id="no scale"),  # codes below 0 make −0 of it
        pytest.param(0.01, 0.0, True, id="a scale that becomes 0"),
        pytest.param(0.01, 1e-9, True, id="a scale that float16 has not"),
        pytest.param(0.01, 6e4, True, id="weights beyond float16"),
        pytest.param(0.01, 0.02, False, id="ordinary steps"),
    ],
)
def test_rows_are_kept_where_codes_cannot_be_read_off(old: float, new: float, kept: bool) -> None:
    before, after = (torch.tensor([[0.01], [scale]]) for scale in (old, new))
    assert there_and_back(ALL_CODES.expand(2, -1), before, after, torch.float16)[1] is kept


def test_groups_of_zeros_need_nothing_kept() -> None:
    scales = torch.tensor([[0.0], [0.5]])
    codes = torch.tensor([[0, 0], [3, -3]])
    put, kept = there_and_back(codes, scales, 2 * scales, torch.float16)
    assert put.tolist() == [[0, 0], [3, -3]]
    assert not kept


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("form", ["residual", "codes"])
def test_rows_with_codes_lie_over_those_of_the_base(form: Any, transposed: bool, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(2)
    W, codes = torch.randn(24, 16, generator=rng).to(dtype), torch.randint(-2, 2, (5, 16), generator=rng).to(torch.int8)
    rows, scales = torch.tensor([1, 2, 3, 20, 23]), torch.rand(5, 2, generator=rng).half()
    model = one_map(W.T if transposed else W)
    switch = Switch(model, [Overlay("a", (), (Patch(form, "w", "0", 2, rows, scales, codes, transposed=transposed),))])
    switch.to("a")
    added = codes.to(dtype) * scales.to(dtype).repeat_interleave(8, dim=1)
    expected = W.index_copy(0, rows, added + W[rows] if form == "residual" else added)
    weight = model[0].weight.data.T if transposed else model[0].weight.data
    assert torch.equal(weight, expected)
    switch.to(BASE)
    assert torch.equal(bits_of(weight), bits_of(W))


def test_overlays_with_the_same_patches_are_switched_without_writing() -> None:
    scales = torch.tensor([[0.5]])
    first = rescaled(scales, 2 * scales)
    model = one_map(torch.tensor([[1.0, 2.0]]))
    switch = Switch(model, [first, Overlay("b", (), first.patches)])
    switch.to("a")
    assert model[0].weight.tolist() == [[2, 4]]
    with torch.no_grad():
        model[0].weight.fill_(7)
    switch.to("b")
    assert switch.now == "b"
    assert model[0].weight.tolist() == [[7, 7]]


SCALES, CODES = torch.ones(2, 1), torch.zeros(2, 4, dtype=torch.int8)
FITTING: dict[str, Any] = {"module": "0", "rows": torch.tensor([0, 2]), "scales": SCALES, "codes": CODES}


@pytest.mark.parametrize(
    "wrong",
    [
        {"module": "1"},
        {"module": ""},
        {"rows": torch.tensor([0, 3])},
        {"rows": torch.tensor([-1, 2])},
        {"rows": torch.tensor([0, 1, 2])},
        {"rows": None},
        {"rows": torch.zeros(0, dtype=torch.int64), "scales": SCALES[:0], "codes": CODES[:0]},
        {"codes": torch.zeros(2, 5, dtype=torch.int8)},
        {"scales": torch.ones(2, 3)},
    ],
)
def test_a_patch_that_does_not_fit_the_model_is_refused(wrong: dict[str, Any]) -> None:
    def patched(**changes: Any) -> Overlay:
        return Overlay("a", (), (Patch("codes", tensor="w", bits=4, **{**FITTING, **changes}),))

    model = one_map(torch.zeros(3, 4))
    Switch(model, [patched()])
    with pytest.raises(InputError, match="give the base that the overlays were made for"):
        Switch(model, [patched(**wrong)])


def test_an_overlay_that_is_not_there_changes_nothing() -> None:
    scales = torch.tensor([[0.5]])
    model = one_map(torch.tensor([[1.0, 2.0]]))
    switch = Switch(model, [rescaled(scales, 2 * scales)])
    switch.to("a")
    with pytest.raises(InputError, match="there is no overlay 'b'; there are base, a"):
        switch.to("b")
    assert switch.now == "a"
    assert model[0].weight.tolist() == [[2, 4]]


def test_a_map_cannot_be_changed_twice() -> None:
    scales = torch.tensor([[0.5]])
    with pytest.raises(InputError, match="changes w twice"):
        Overlay("a", (), 2 * rescaled(scales, scales).patches)
