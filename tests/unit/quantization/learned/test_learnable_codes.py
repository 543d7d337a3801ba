from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.core.errors import InputError
from fairbits.models.scales.float_scales import full_global_scale
from fairbits.models.scales.groups import WEIGHT_GLOBAL_SCALE, choose_scales, round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import FORMATS, Scheme
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET, LearnableCodes, learnable_codes

FOUR_BITS = Scheme(4, "channel", grid="twos")


def learnable_of(W, *, bits=3, groups=2, kind="twos", transposed=False):
    scheme = Scheme(bits, 4, grid=kind)
    scales = torch.full((len(W), groups), 0.25, dtype=torch.float16)
    codes = round_to_nearest(W, scales, grid=scheme_grid(scheme))
    return codes, LearnableCodes(W, codes, scheme=scheme, transposed=transposed)


@pytest.fixture
def W():
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0)) * 0.3


@pytest.mark.parametrize("transposed", [False, True])
def test_before_anything_is_learned_the_codes_are_those_given(W, transposed):
    codes, learnable = learnable_of(W, transposed=transposed)
    weight = learnable(torch.empty(0))
    assert torch.equal(weight.T if transposed else weight, codes.dequantized.float())
    current = learnable.current()
    assert torch.equal(current.codes, codes.codes)
    assert torch.equal(current.scales, codes.scales)
    assert (current.bits, current.scales.dtype) == (3, torch.float16)


def test_gradients_pass_straight_through(W):
    codes, learnable = learnable_of(W)
    pull = torch.randn(W.shape, generator=torch.Generator().manual_seed(1))
    (learnable(torch.empty(0)) * pull).sum().backward()
    scale = 0.25
    assert torch.equal(learnable.offsets.grad.reshape(W.shape), (pull * scale).bfloat16())
    by_group = (pull * codes.dequantized.float()).reshape(6, 2, 4).sum(2)  # ∂W/∂r = W
    assert torch.allclose(learnable.log_scales.grad[:, :, 0], by_group, atol=1e-6)


@pytest.mark.parametrize(("kind", "lowest"), [("twos", -4), ("symmetric", -3)])
def test_no_code_leaves_its_grid_or_goes_beyond_its_neighbours(W, kind, lowest):
    codes, learnable = learnable_of(3 * W, kind=kind)
    for far in (-100.0, 100.0):
        learnable.offsets.data.fill_(far).clamp_(-MAX_OFFSET, MAX_OFFSET)
        current = learnable.current().codes
        assert lowest <= current.min()
        assert current.max() <= 3
        assert (current.int() - codes.codes.int()).abs().max() == 1


def test_steps_are_learned_in_the_type_that_is_stored(W):
    _, learnable = learnable_of(W)
    learnable.log_scales.data.fill_(1e-5)  # less than float16 can represent
    assert torch.equal(learnable.current().scales, torch.full((6, 2), 0.25, dtype=torch.float16))
    learnable.log_scales.data.fill_(0.1)
    assert torch.allclose(
        learnable.current().scales.float(), torch.full((6, 2), 0.25) * torch.tensor(0.1).exp(), rtol=1e-3
    )


def test_a_group_of_zeros_stays_zero():
    W = torch.zeros(2, 4)
    codes = round_to_nearest(W, torch.zeros(2, 1, dtype=torch.float16), grid=scheme_grid(FOUR_BITS))
    learnable = LearnableCodes(W, codes, scheme=FOUR_BITS, transposed=False)
    assert torch.isfinite(learnable.offsets).all()
    assert not learnable(torch.empty(0)).any()


def test_learnable_codes_take_the_place_of_weights_and_release_them(reading_model):
    checkpoint = reading_model("gpt2")
    model = checkpoint.load()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = {
        name: weight for name, weight in checkpoint.architecture.weights.items() if weight.linear and weight.block == 0
    }
    start = {}
    for name, weight in weights.items():
        W = checkpoint.read(name).float()
        W = W.T if weight.transposed else W
        scales = (W.abs().amax(1, keepdim=True) / 7).half()
        start[name] = round_to_nearest(W, scales, grid=scheme_grid(FOUR_BITS)), FOUR_BITS
    ids = torch.tensor([[1, 2, 3]])
    with learnable_codes(model, checkpoint.architecture.weights, start) as learnable, torch.no_grad():
        assert set(learnable) == set(weights)
        assert [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        quantized = model(ids).logits
        for name, (codes, _) in start.items():
            module = model.get_submodule(weights[name].module)
            dequantized = module.weight.T if weights[name].transposed else module.weight
            assert torch.equal(dequantized, codes.dequantized.float())
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert tensor.numel() == 0 if name in start else torch.equal(tensor, before[name])
    swapped = checkpoint.load()
    assert not torch.equal(quantized, swapped(ids).logits)


def test_a_weight_that_no_module_has_is_refused(reading_model):
    checkpoint = reading_model("llama")
    model = checkpoint.load()
    name, weight = next((n, w) for n, w in checkpoint.architecture.weights.items() if w.block == 0 and w.linear)
    scales = torch.ones(weight.shape[0], 1).half()
    codes = round_to_nearest(checkpoint.read(name).float(), scales, grid=scheme_grid(FOUR_BITS))
    model.set_submodule(weight.module, t.activations.ACT2FN["relu"])
    with (
        pytest.raises(InputError, match="cannot be learned; use"),
        learnable_codes(model, checkpoint.architecture.weights, {name: (codes, FOUR_BITS)}),
    ):
        pass


@pytest.mark.parametrize("format", [name for name, format in FORMATS.items() if format.numbers != "int"])
def test_floating_point_codes(format):
    scheme = Scheme(FORMATS[format].bits, FORMATS[format].group, format=format)
    W = torch.randn(130, 128, generator=torch.Generator().manual_seed(0))
    constants = {WEIGHT_GLOBAL_SCALE: full_global_scale(W.abs().amax())} if scheme.scales == "e4m3" else {}
    scales, _ = choose_scales(W, scheme, dtype=torch.bfloat16)
    codes = replace(round_to_nearest(W, scales, grid=scheme_grid(scheme)), constants=constants)
    learnable = LearnableCodes(W, codes, scheme=scheme, transposed=False)
    assert torch.equal(learnable(torch.empty(0)), codes.dequantized.float())
    pull = torch.randn(W.shape, generator=torch.Generator().manual_seed(1))
    (learnable(torch.empty(0)) * pull).sum().backward()
    # as a code goes up and down, its number moves by the gradient: the mean of the two
    sizes = codes.scales.float().repeat_interleave(128 // codes.scales.shape[1], 1)
    numbers = (codes.dequantized.float() / sizes).numpy()
    values = scheme_grid(scheme).values
    above, below = (np.interp(codes.codes.numpy() + step, *_counted(values)) for step in (1, -1))
    inside = np.abs(codes.codes.numpy()) < len(values) - 1
    expected = (pull * sizes).numpy() * (above - below) / 2
    moved = learnable.offsets.grad.float().reshape(W.shape).numpy()
    assert np.allclose(moved[inside], expected[inside], rtol=1e-2, atol=1e-6)
    assert np.allclose(np.interp(codes.codes.numpy(), *_counted(values)), numbers, rtol=1e-2)
    # scales stay such as can be stored
    learnable.log_scales.data.fill_(0.05)
    assert torch.equal(learnable(torch.empty(0)), learnable.current().dequantized.float())
    assert set(learnable.current().constants) == set(constants)
    moves = not torch.equal(learnable.current().scales, codes.scales)
    assert moves == (format in ("FP8_DYNAMIC", "NVFP4", "NVFP4A16"))


def _counted(values):
    """Returns all codes, and the number of each."""
    return np.arange(1 - len(values), len(values)), np.concatenate([-values[:0:-1], values])
