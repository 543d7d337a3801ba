import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import tensor_moments, weight_moments

LINEARS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


@pytest.fixture(scope="module", params=[torch.float16, torch.bfloat16, torch.float32], ids=str)
def directory(request, tmp_path_factory):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0)
    path = tmp_path_factory.mktemp("model")
    GPT2LMHeadModel(config).to(request.param).save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"] *= 7  # blocks in which one σ is not like another
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.uint8)  # as old GPT-2 files hold it
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_blocks_are_their_linear_maps_in_one_pass(directory) -> None:
    weights = load_file(directory / "model.safetensors")
    model = weight_moments(Checkpoint(directory))
    assert len(model.blocks) == 2
    for i, block in enumerate(model.blocks):
        together = torch.cat([weights[f"transformer.h.{i}.{name}.weight"].flatten() for name in LINEARS])
        whole = tensor_moments(together)
        assert block.n == whole.n
        assert block.largest == whole.largest
        assert block.sigma == pytest.approx(whole.sigma, rel=1e-12)
        assert block.kappa == pytest.approx(whole.kappa, rel=1e-10)
        for k, share, exact in ((3, block.beyond_3, whole.beyond_3), (6, block.beyond_6, whole.beyond_6)):
            least, greatest = block.beyond_bounds(k)
            assert least <= exact <= greatest
            assert share == pytest.approx(exact, rel=0 if together.dtype.itemsize == 2 else 0.02)


def test_every_tensor_has_moments_or_a_reason(directory) -> None:
    checkpoint = Checkpoint(directory)
    seen: list[tuple[int, int]] = []
    model = weight_moments(checkpoint, progress=lambda _, done, total: seen.append((done, total)))
    assert set(model.tensors) | set(model.skipped) == set(checkpoint.tensors)
    assert dict(model.skipped) == {"transformer.h.0.attn.bias": "it holds 16 element(s) of torch.uint8"}
    assert len(seen) == len(checkpoint.tensors)
    assert seen[-1] == (seen[0][1], seen[0][1])
    assert seen == sorted(seen)
    for name, moments in model.tensors.items():
        assert moments == tensor_moments(checkpoint.read(name)), name


def test_any_tensors_merge(directory) -> None:
    model = weight_moments(Checkpoint(directory))
    biases = [name for name in model.tensors if ".h." in name and "bias" in name]
    assert model.merge(biases).n == sum(model.tensors[name].n for name in biases)
    fc = [f"transformer.h.{i}.mlp.c_fc.weight" for i in (0, 1)]
    assert model.merge(fc).kappa == pytest.approx((model.tensors[fc[0]] + model.tensors[fc[1]]).kappa, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("transformer.h.0.attn.bias", r"it holds 16 element\(s\) of torch.uint8"), ("wte", "no tensor of this name")],
)
def test_merging_what_has_no_moments_says_why(directory, name, reason) -> None:
    with pytest.raises(InputError, match=f"{name} has no moments: .*{reason}"):
        weight_moments(Checkpoint(directory)).merge([name])


def test_results_are_plain_json(directory) -> None:
    data = json.loads(json.dumps(weight_moments(Checkpoint(directory)).as_data(), allow_nan=False))
    assert len(data["blocks"]) == 2
    assert math.isfinite(data["tensors"]["transformer.wte.weight"]["kappa"])
