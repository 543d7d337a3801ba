import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

from fairbits.errors import InputError
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.outliers import apply_outliers, plan_outliers, write_with_outliers

SHAPE = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
GATED = SHAPE | {"intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}
CONFIGS = {
    "bloom": lambda: transformers.BloomConfig(**SHAPE),
    "llama": lambda: transformers.LlamaConfig(**GATED, attention_bias=True, mlp_bias=True),
    "mistral": lambda: transformers.MistralConfig(**GATED),
    "qwen2": lambda: transformers.Qwen2Config(**GATED),
    "qwen3": lambda: transformers.Qwen3Config(**GATED | {"head_dim": 32}),
}
ROUTES = [(f, r) for f in CONFIGS for r in ("norm", "value", "mlp") if (f, r) != ("bloom", "mlp")]


def save(config, directory: Path, *, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Returns a random model whose norms and biases matter, in several shards."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
            elif parameter.ndim == 2:
                parameter.mul_(5)  # so that attention is not uniform
    model.to(dtype).save_pretrained(directory, max_shard_size="100KB")
    (directory / "tokenizer.json").write_text("{}")
    return Checkpoint(directory)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Checkpoint]:
    return {name: save(make(), tmp_path_factory.mktemp(name)) for name, make in CONFIGS.items()}


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    return logits_of(checkpoint.load())


def logits_of(model) -> torch.Tensor:
    tokens = torch.randint(0, SHAPE["vocab_size"], (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits


def kappa(checkpoint: Checkpoint, block: int, *, role: str | None = None) -> float:
    weights = checkpoint.architecture.blocks[block].linears.values()
    chosen = [checkpoint.read(w.name).double().flatten() for w in weights if role in (None, w.role)]
    return float(stats.kurtosis(torch.cat(chosen).numpy()))


def read_all(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, checkpoint.read(name)) for name in checkpoint.tensors)


@pytest.mark.parametrize(("family", "route"), ROUTES)
def test_the_kurtosis_is_reached_and_the_logits_stay(checkpoints, tmp_path, family, route):
    source = checkpoints[family]
    asked = {0: 25.0, 2: 60.0}
    plan = write_with_outliers(source, tmp_path / "new", asked, route=route)
    written = Checkpoint(tmp_path / "new")
    for block, target in asked.items():
        assert kappa(written, block) == pytest.approx(target, rel=0.02)
        assert kappa(written, block) == pytest.approx(plan.achieved[block], rel=1e-6)
        assert kappa(source, block) == pytest.approx(plan.before[block], rel=1e-6)
    assert kappa(written, 1) == kappa(source, 1)
    before = logits(source)
    assert before.std() > 0.1
    torch.testing.assert_close(logits(written), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "route"), [pair for pair in ROUTES if pair[0] != "mistral"])
def test_every_slice_of_a_coupling_is_needed(checkpoints, family, route):
    """Each tensor left out of the plan changes the logits, so the test above would notice a forgotten one."""
    plan = plan_outliers(checkpoints[family], {1: 60.0}, route=route)
    before = logits(checkpoints[family])
    model = checkpoints[family].load()
    apply_outliers(model, plan)
    for name in plan.factors:
        rescaled = model.get_parameter(name).detach().clone()
        model.get_parameter(name).data = checkpoints[family].read(name)
        assert (logits_of(model) - before).abs().max() > 1e-3, name
        model.get_parameter(name).data = rescaled


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("family", "route"), [("bloom", "norm"), ("bloom", "value"), ("qwen2", "mlp")])
def test_half_precision_stays_exact(tmp_path, dtype, family, route):
    source = save(CONFIGS[family](), tmp_path / "old", dtype=dtype)
    write_with_outliers(source, tmp_path / "new", {1: 50.0}, route=route)
    written = Checkpoint(tmp_path / "new")
    assert kappa(written, 1) == pytest.approx(50.0, rel=0.02)
    atol = 0.0 if route == "norm" or dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(logits(written), logits(source), rtol=0, atol=atol)


def test_only_the_planned_slices_change(checkpoints, tmp_path):
    source = checkpoints["bloom"]
    plan = write_with_outliers(source, tmp_path / "new", {1: 60.0})
    written = Checkpoint(tmp_path / "new")
    assert list(written.tensors) == list(source.tensors)
    touched = {name: {(p.axis, i): f for p, f in parts for i in p.indices} for name, parts in plan.factors.items()}
    assert len(touched) >= 3
    for name, new in read_all(written):
        expected = source.read(name).clone()
        for (axis, index), factor in touched.get(name, {}).items():
            expected.select(axis, index).mul_(factor)
        assert torch.equal(new, expected), name
    old_files = {path.name for path in source.directory.iterdir()}
    assert {path.name for path in (tmp_path / "new").iterdir()} == old_files | {"outliers.json"}
    assert (tmp_path / "new" / "config.json").read_bytes() == (source.directory / "config.json").read_bytes()


def test_norm_gain_shrinks_where_columns_grow(checkpoints):
    source = checkpoints["llama"]
    plan = plan_outliers(source, {1: 60.0})
    model = source.load()
    before = model.model.layers[1].input_layernorm.weight.detach().clone()
    apply_outliers(model, plan)
    ratio = before / model.model.layers[1].input_layernorm.weight.detach()
    q = source.read("model.layers.1.self_attn.q_proj.weight")
    growth = (model.model.layers[1].self_attn.q_proj.weight.detach() / q).median(0).values
    torch.testing.assert_close(ratio, growth)
    exponents = torch.log2(ratio)
    assert torch.equal(exponents, exponents.round())


def test_a_model_in_memory_becomes_the_written_one(checkpoints, tmp_path):
    source = checkpoints["qwen2"]
    plan = write_with_outliers(source, tmp_path / "new", {0: 40.0}, route="value")
    model = source.load()
    apply_outliers(model, plan)
    written = dict(read_all(Checkpoint(tmp_path / "new")))
    assert all(torch.equal(parameter, written[name]) for name, parameter in model.named_parameters() if name in written)


def test_a_plan_for_a_bare_model_fits_the_model_with_a_head(checkpoints, tmp_path):
    model = checkpoints["bloom"].load()
    model.transformer.save_pretrained(tmp_path / "bare")
    bare = Checkpoint(tmp_path / "bare")
    plan = plan_outliers(bare, {1: 60.0})
    assert all(name.startswith("h.1.") for name in plan.factors)
    before = logits_of(model)
    apply_outliers(model, plan)
    torch.testing.assert_close(logits_of(model), before, rtol=0, atol=1e-5)
    changed = [name for name in plan.factors if not torch.equal(model.transformer.get_parameter(name), bare.read(name))]
    assert changed == list(plan.factors)


@pytest.mark.parametrize(
    ("family", "role", "route"),
    [
        ("bloom", "qkv", "norm"),
        ("bloom", "mlp_up", "norm"),
        ("bloom", "attention_out", "value"),
        ("qwen2", "v", "value"),
        ("qwen2", "attention_out", "value"),
        ("qwen2", "mlp_gate", "norm"),
        ("qwen2", "mlp_down", "mlp"),
    ],
)
def test_one_role_can_be_the_target(checkpoints, tmp_path, family, role, route):
    source = checkpoints[family]
    plan = write_with_outliers(source, tmp_path / "new", {1: 30.0}, route=route, role=role)
    written = Checkpoint(tmp_path / "new")
    assert kappa(written, 1, role=role) == pytest.approx(30.0, rel=0.02)
    assert kappa(written, 1, role=role) == pytest.approx(plan.achieved[1], rel=1e-6)
    torch.testing.assert_close(logits(written), logits(source), rtol=0, atol=1e-5)


def test_the_seed_draws_the_channels(checkpoints, tmp_path):
    source = checkpoints["qwen2"]
    plan, other = (plan_outliers(source, {1: 60.0, 2: 60.0}, seed=seed, route="value") for seed in (0, 1))
    channels = [
        {r.coupling.channel for r in p.rescalings if r.block == b} for p, b in ((plan, 1), (plan, 2), (other, 1))
    ]
    assert channels[0] <= channels[1] or channels[1] <= channels[0]  # one order for all blocks
    assert not channels[0] <= channels[2]
    assert not channels[2] <= channels[0]
    for name in ("a", "b"):
        assert write_with_outliers(source, tmp_path / name, {1: 60.0, 2: 60.0}, route="value") == plan
    assert Checkpoint(tmp_path / "a").fingerprint == Checkpoint(tmp_path / "b").fingerprint


def test_the_plan_is_saved_beside_the_weights(checkpoints, tmp_path):
    plan = write_with_outliers(checkpoints["bloom"], tmp_path / "new", {2: 40.0}, seed=3)
    saved = json.loads((tmp_path / "new" / "outliers.json").read_text())
    assert saved["requested"] == {"2": 40.0}
    assert saved["achieved"] == {"2": plan.achieved[2]}
    assert saved["seed"] == 3
    assert saved["source"]["sha256"] == checkpoints["bloom"].fingerprint
    assert len(saved["rescalings"]) == len(plan.rescalings) > 0


@pytest.mark.parametrize("ratio", [0.985, 1.005])
def test_a_kurtosis_that_is_there_already_needs_nothing(checkpoints, tmp_path, ratio):
    plan = write_with_outliers(checkpoints["bloom"], tmp_path / "new", {1: 60.0})
    again = plan_outliers(Checkpoint(tmp_path / "new"), {1: plan.achieved[1] * ratio})
    assert again.rescalings == ()
    assert again.achieved == again.before


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
    with pytest.raises(InputError, match=r"block 1 .*already and 30 was asked for"):
        plan_outliers(Checkpoint(tmp_path / "new"), {1: 30.0})


def test_gaps_between_reachable_values_are_named(checkpoints):
    with pytest.raises(InputError, match=r"nearest within reach are \S+ and \S+$"):
        plan_outliers(checkpoints["bloom"], {1: 1.2 * kappa(checkpoints["bloom"], 1)})


@pytest.mark.parametrize(("dtype", "in_reach"), [(torch.float16, False), (torch.bfloat16, True)], ids=str)
def test_float16_overflow_is_avoided(tmp_path, dtype, in_reach):
    source = save(CONFIGS["bloom"](), tmp_path / "old", dtype=dtype)
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
    model = checkpoints["bloom"].load(torch.float16)
    grown = plan.rescalings[0].coupling.grows[0].tensor
    model.get_parameter(grown).data.fill_(60000.0)
    with pytest.raises(InputError, match=r"would leave the range of torch.float16"):
        apply_outliers(model, plan)


def test_values_that_a_division_would_blur_are_left_alone(tmp_path):
    source = save(CONFIGS["bloom"](), tmp_path / "old", dtype=torch.float16)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        info = source.tensors[f"transformer.h.1.{norm}.bias"]
        with info.file.open("r+b") as file:
            file.seek(info.start)
            file.write(np.full(64, 2.0**-14 * (1 + 2.0**-10), np.float16).tobytes())  # ÷ 2 drops the last bit
    with pytest.raises(InputError, match=r"is the largest within reach"):
        plan_outliers(Checkpoint(tmp_path / "old"), {1: 50.0})
    assert plan_outliers(Checkpoint(tmp_path / "old"), {1: 50.0}, route="value").rescalings


def test_broken_weights_are_refused(tmp_path):
    source = save(CONFIGS["llama"](), tmp_path / "old")
    info = source.tensors["model.layers.0.mlp.up_proj.weight"]
    with info.file.open("r+b") as file:
        file.seek(info.start)
        file.write(np.float32("nan").tobytes())
    with pytest.raises(InputError, match=r"block 0 .*NaN"):
        plan_outliers(Checkpoint(tmp_path / "old"), {0: 50.0})


def test_families_without_a_proof_are_refused(tmp_path):
    config = transformers.Gemma3TextConfig(**GATED, sliding_window=8)
    with pytest.raises(InputError, match=r"'gemma3_text'; exact rescaling is known for bloom, llama"):
        plan_outliers(save(config, tmp_path), {0: 50.0})


def test_routes_that_are_not_exact_are_refused(checkpoints, tmp_path):
    with pytest.raises(InputError, match=r"needs a gated MLP"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, route="mlp")
    with pytest.raises(InputError, match=r"route is 'head'"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, route="head")
    with pytest.raises(InputError, match=r"role is 'q'; it must be one of attention_out, mlp_down, mlp_up, qkv"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, role="q")
    with pytest.raises(InputError, match=r"route 'norm' does not pass through"):
        plan_outliers(checkpoints["bloom"], {0: 50.0}, role="mlp_down")
    post = save(transformers.BloomConfig(**SHAPE, apply_residual_connection_post_layernorm=True), tmp_path)
    with pytest.raises(InputError, match=r"residual stream also sees"):
        plan_outliers(post, {0: 50.0})
    assert plan_outliers(post, {0: 20.0}, route="value").rescalings


def test_a_plan_for_another_model_changes_nothing(checkpoints):
    plan = plan_outliers(checkpoints["bloom"], {1: 60.0})
    with pytest.raises(InputError, match=r"LlamaForCausalLM lacks"):
        apply_outliers(checkpoints["llama"].load(), plan)
    small = transformers.BloomForCausalLM(transformers.BloomConfig(**SHAPE | {"hidden_size": 4}))
    before = [parameter.clone() for parameter in small.parameters()]
    with pytest.raises(InputError, match=r"too small for the plan"):
        apply_outliers(small, plan)
    assert all(torch.equal(a, b) for a, b in zip(before, small.parameters(), strict=True))


def test_a_directory_in_use_is_left_alone(checkpoints, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty"):
        write_with_outliers(checkpoints["bloom"], tmp_path, {1: 60.0})
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_failed_write_leaves_nothing(tmp_path):
    source = save(CONFIGS["bloom"](), tmp_path / "old")
    directory = tmp_path / "new"
    source.__dict__["fingerprint"] = object()  # cannot be saved as JSON
    with pytest.raises(TypeError):
        write_with_outliers(source, directory, {1: 60.0})
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_place_that_cannot_be_written_is_named(checkpoints, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file/new"):
        write_with_outliers(checkpoints["bloom"], tmp_path / "file" / "new", {1: 60.0})


def test_an_empty_directory_may_be_given(checkpoints, tmp_path):
    (tmp_path / "new").mkdir()
    write_with_outliers(checkpoints["bloom"], tmp_path / "new", {1: 60.0})
    assert kappa(Checkpoint(tmp_path / "new"), 1) == pytest.approx(60.0, rel=0.02)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
