import pytest
import torch

from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.outlier_writer import plan_outliers, write_with_outliers

FAMILIES = ("bloom", "llama", "mistral", "qwen2", "qwen3")
ROUTES = [(f, r) for f in FAMILIES for r in ("norm", "value", "mlp") if (f, r) != ("bloom", "mlp")]


@pytest.mark.parametrize(("family", "route"), ROUTES)
def test_the_kurtosis_is_reached_and_the_logits_stay(checkpoints, tmp_path, family, route, kappa, logits):
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
def test_every_slice_of_a_coupling_is_needed(checkpoints, family, route, logits, apply):
    """Each tensor left out of the plan changes the logits, so the test above would notice a forgotten one."""
    plan = plan_outliers(checkpoints[family], {1: 60.0}, route=route)
    before = logits(checkpoints[family])
    model = checkpoints[family].load()
    apply(model, plan)
    for name in plan.factors:
        rescaled = model.get_parameter(name).detach().clone()
        model.get_parameter(name).data = checkpoints[family].read(name)
        assert (logits(model) - before).abs().max() > 1e-3, name
        model.get_parameter(name).data = rescaled


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("family", "route"), [("bloom", "norm"), ("bloom", "value"), ("qwen2", "mlp")])
def test_half_precision_stays_exact(tmp_path, dtype, family, route, random_checkpoint, kappa, logits):
    source = random_checkpoint(family, tmp_path / "old", dtype=dtype)
    write_with_outliers(source, tmp_path / "new", {1: 50.0}, route=route)
    written = Checkpoint(tmp_path / "new")
    assert kappa(written, 1) == pytest.approx(50.0, rel=0.02)
    atol = 0.0 if route == "norm" or dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(logits(written), logits(source), rtol=0, atol=atol)


def test_norm_gain_shrinks_where_columns_grow(checkpoints, apply):
    source = checkpoints["llama"]
    plan = plan_outliers(source, {1: 60.0})
    model = source.load()
    before = model.model.layers[1].input_layernorm.weight.detach().clone()
    apply(model, plan)
    ratio = before / model.model.layers[1].input_layernorm.weight.detach()
    q = source.read("model.layers.1.self_attn.q_proj.weight")
    growth = (model.model.layers[1].self_attn.q_proj.weight.detach() / q).median(0).values
    torch.testing.assert_close(ratio, growth)
    exponents = torch.log2(ratio)
    assert torch.equal(exponents, exponents.round())


def test_a_plan_for_a_bare_model_fits_the_model_with_a_head(checkpoints, tmp_path, logits, apply):
    model = checkpoints["bloom"].load()
    model.transformer.save_pretrained(tmp_path / "bare")
    bare = Checkpoint(tmp_path / "bare")
    plan = plan_outliers(bare, {1: 60.0})
    assert all(name.startswith("h.1.") for name in plan.factors)
    before = logits(model)
    apply(model.transformer, plan)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-5)
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
def test_one_role_can_be_the_target(checkpoints, tmp_path, family, role, route, kappa, logits):
    source = checkpoints[family]
    plan = write_with_outliers(source, tmp_path / "new", {1: 30.0}, route=route, role=role)
    written = Checkpoint(tmp_path / "new")
    assert kappa(written, 1, role=role) == pytest.approx(30.0, rel=0.02)
    assert kappa(written, 1, role=role) == pytest.approx(plan.achieved[1], rel=1e-6)
    torch.testing.assert_close(logits(written), logits(source), rtol=0, atol=1e-5)


@pytest.mark.parametrize("ratio", [0.985, 1.005])
def test_a_kurtosis_that_is_there_already_needs_nothing(checkpoints, tmp_path, ratio):
    plan = write_with_outliers(checkpoints["bloom"], tmp_path / "new", {1: 60.0})
    again = plan_outliers(Checkpoint(tmp_path / "new"), {1: plan.achieved[1] * ratio})
    assert again.rescalings == ()
    assert again.achieved == again.before
