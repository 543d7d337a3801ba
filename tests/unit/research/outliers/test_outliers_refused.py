import numpy as np
import pytest
import torch
import transformers

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.outlier_writer import plan_outliers, rescale, write_with_outliers

SHAPE = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "at least|one block"),
        ([125.0], "must map"),
        ({3: 50.0}, r"block is 3; it must be 0 to 2"),
        ({-1: 50.0}, r"block is -1"),
        ({True: 50.0}, r"block is True"),
        ({"1": 50.0}, r"block is '1'"),
        ({1: float("nan")}, r"kappa of block 1 is nan"),
        ({1: float("inf")}, r"kappa of block 1 is inf"),
        ({1: "50"}, r"kappa of block 1 is str '50'"),
        ({1: 0.0}, r"above 0"),
        ({1: 1e6}, r"block 1 .*is the largest within reach"),
    ],
)
def test_hostile_requests_are_refused(checkpoints, asked, message):
    with pytest.raises(InputError, match=message):
        plan_outliers(checkpoints["bloom"], asked)


def test_kurtosis_is_never_lowered(checkpoints, tmp_path):
    write_with_outliers(checkpoints["bloom"], tmp_path / "new", {1: 60.0})
    with pytest.raises(InputError, match=r"block 1 .*already and 30 was requested"):
        plan_outliers(Checkpoint(tmp_path / "new"), {1: 30.0})


def test_gaps_between_reachable_values_are_named(checkpoints, kappa):
    with pytest.raises(InputError, match=r"nearest within reach are \S+ and \S+$"):
        plan_outliers(checkpoints["bloom"], {1: 1.2 * kappa(checkpoints["bloom"], 1)})


@pytest.mark.parametrize(("dtype", "in_reach"), [(torch.float16, False), (torch.bfloat16, True)], ids=str)
def test_float16_overflow_is_avoided(tmp_path, dtype, in_reach, random_checkpoint):
    source = random_checkpoint("bloom", tmp_path / "old", dtype=dtype)
    weight = "transformer.h.1.self_attention.query_key_value.weight"
    info = source.tensors[weight]
    large = source.read(weight).clone()
    large[0] = 5000.0  # × 8 is within float16, × 16 is not
    with info.file.open("r+b") as file:
        file.seek(info.start)
        file.write(large.view(torch.uint8).numpy().tobytes())
    c, n_columns = 16, 64
    with_16 = (
        large.numel() * c**4 / (c**2 + n_columns - 1) ** 2 - 3
    )  # one element × 16, the others of its row as before
    if in_reach:
        assert [r.factor for r in plan_outliers(Checkpoint(tmp_path / "old"), {1: with_16}, role="qkv").rescalings] == [
            16
        ]
    else:
        with pytest.raises(InputError, match=r"is the largest within reach"):
            plan_outliers(Checkpoint(tmp_path / "old"), {1: with_16}, role="qkv")


def test_a_model_in_a_narrower_type_does_not_overflow(checkpoints):
    plan = plan_outliers(checkpoints["bloom"], {1: 60.0})
    grown = plan.rescalings[0].coupling.grows[0].tensor
    narrow = torch.full_like(checkpoints["bloom"].read(grown), 60000.0, dtype=torch.float16)
    with pytest.raises(InputError, match=r"would leave the range of torch.float16"):
        rescale(grown, narrow, plan.factors[grown])


def test_values_that_a_division_would_blur_are_left_alone(tmp_path, random_checkpoint):
    source = random_checkpoint("bloom", tmp_path / "old", dtype=torch.float16)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        info = source.tensors[f"transformer.h.1.{norm}.bias"]
        with info.file.open("r+b") as file:
            file.seek(info.start)
            file.write(np.full(64, 2.0**-14 * (1 + 2.0**-10), np.float16).tobytes())  # ÷ 2 drops the last bit
    with pytest.raises(InputError, match=r"is the largest within reach"):
        plan_outliers(Checkpoint(tmp_path / "old"), {1: 50.0})
    assert plan_outliers(Checkpoint(tmp_path / "old"), {1: 50.0}, route="value").rescalings


def test_broken_weights_are_refused(tmp_path, random_checkpoint):
    source = random_checkpoint("llama", tmp_path / "old")
    info = source.tensors["model.layers.0.mlp.up_proj.weight"]
    with info.file.open("r+b") as file:
        file.seek(info.start)
        file.write(np.float32("nan").tobytes())
    with pytest.raises(InputError, match=r"block 0 .*NaN"):
        plan_outliers(Checkpoint(tmp_path / "old"), {0: 50.0})


def test_families_without_a_proof_are_refused(tmp_path, random_checkpoint):
    config = transformers.Gemma3TextConfig(**SHAPE, head_dim=16, intermediate_size=128, sliding_window=8)
    with pytest.raises(InputError, match=r"'gemma3_text'; exact rescaling is known for bloom, llama"):
        plan_outliers(random_checkpoint(config, tmp_path), {0: 50.0})


def test_routes_that_are_not_exact_are_refused(checkpoints, tmp_path, random_checkpoint):
    with pytest.raises(InputError, match=r"needs a gated MLP"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, route="mlp")
    with pytest.raises(InputError, match=r"route is 'head'"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, route="head")
    with pytest.raises(InputError, match=r"role is 'q'; it must be one of attention_out, mlp_down, mlp_up, qkv"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, role="q")
    with pytest.raises(InputError, match=r"route 'norm' does not pass through"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, role="mlp_down")
    post = random_checkpoint(transformers.BloomConfig(**SHAPE, apply_residual_connection_post_layernorm=True), tmp_path)
    with pytest.raises(InputError, match=r"residual stream also sees"):
        plan_outliers(post, {0: 50.0})
    assert plan_outliers(post, {0: 20.0}, route="value").rescalings


def test_a_plan_for_another_model_is_refused(checkpoints):
    plan = plan_outliers(checkpoints["bloom"], {1: 60.0})
    for name, factors in plan.factors.items():
        small = checkpoints["bloom"].read(name).flatten()[:1]
        with pytest.raises(InputError, match=r"too small for the plan"):
            rescale(name, small, factors)
