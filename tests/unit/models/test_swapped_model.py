import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import Codes, choose_scales, round_to_nearest
from fairbits.models.scales.scheme import Scheme
from fairbits.models.swapped_model import SwappedModel, expert_matrix


def codes_of(checkpoint: Checkpoint, name: str) -> Codes:
    weight = checkpoint.architecture.weights[name]
    W = checkpoint.read(name).float()
    W = W.T if weight.transposed else W
    return round_to_nearest(
        W, choose_scales(W, Scheme(4, "channel", grid="twos"), dtype=torch.float32)[0], grid=Grid(4, "twos")
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "mt5"])
def test_every_linear_map_is_replaced_and_restored_exactly(reading_model, family) -> None:
    checkpoint = reading_model(family)
    swapped = SwappedModel.load(checkpoint)
    model = swapped.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = [name for block in checkpoint.architecture.blocks for name in block.linears]
    layers = {name: codes_of(checkpoint, name) for name in names}
    swapped.replace(layers)
    weights = checkpoint.architecture.weights
    for name, codes in layers.items():
        W = model.get_parameter(f"{weights[name].module}.weight")
        assert torch.equal(W.T if weights[name].transposed else W, codes.dequantized)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert len(changed) == len(names)
    swapped.restore()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_tied_head_follows_its_embedding() -> None:
    checkpoint = Checkpoint("embedded:tiny")
    swapped, name = SwappedModel.load(checkpoint), checkpoint.architecture.head.name
    assert checkpoint.architecture.weights[name].role == "embedding"
    head = swapped.model.get_output_embeddings().weight
    before = head.detach().clone()
    with swapped:
        swapped.replace({name: codes_of(checkpoint, name)})
        assert not torch.equal(head, before)
    assert torch.equal(head, before)


@pytest.mark.parametrize("family", ["mixtral", "llama4"])
def test_experts_are_replaced_in_the_tensor_that_stacks_them(reading_model, family) -> None:
    checkpoint = reading_model(family)
    swapped = SwappedModel.load(checkpoint)
    experts = {name: weight for name, weight in checkpoint.architecture.linears.items() if weight.expert is not None}
    assert {weight.role for weight in experts.values()} == {"mlp_gate", "mlp_up", "mlp_down"}
    before = {name: tensor.clone() for name, tensor in swapped.model.state_dict().items()}
    for name, weight in experts.items():  # what lies there is what the file has
        assert torch.equal(expert_matrix(swapped.model, weight), checkpoint.read(name).float())
    name, weight = next((n, w) for n, w in experts.items() if w.role == "mlp_up" and w.expert == 1)
    swapped.replace({name: torch.zeros(weight.shape)})
    stacked = swapped.model.get_submodule(weight.module).gate_up_proj
    stacked = stacked.mT if family == "llama4" else stacked
    rows = weight.shape[0]
    assert not stacked[1, rows:].any()
    assert stacked[1, :rows].all()
    assert stacked[0].all()
    swapped.restore()
    assert all(torch.equal(tensor, before[name]) for name, tensor in swapped.model.state_dict().items())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("concatenated", [False, True])
def test_gate_and_up_of_an_expert_are_found_however_they_lie(reading_model, transposed, concatenated) -> None:
    weights = reading_model("mixtral").architecture.linears.values()
    gate, up = (next(w for w in weights if w.expert == 1 and w.role == role) for role in ("mlp_gate", "mlp_up"))
    experts = torch.nn.Module()
    experts.has_gate, experts.is_transposed, experts.is_concatenated = True, transposed, concatenated
    rows = torch.arange(6.0)[:, None].expand(6, 4)  # row numbers
    experts.gate_up_proj = torch.stack([rows, rows + 10]).mT if transposed else torch.stack([rows, rows + 10])
    model = torch.nn.Module()
    model.get_submodule = lambda _: experts
    expected = ([10, 11, 12], [13, 14, 15]) if concatenated else ([10, 12, 14], [11, 13, 15])
    assert tuple(expert_matrix(model, weight)[:, 0].tolist() for weight in (gate, up)) == expected


def test_whatever_happens_the_model_is_restored(reading_model) -> None:
    checkpoint = reading_model("gpt2")
    swapped, (one, other) = SwappedModel.load(checkpoint), [*checkpoint.architecture.blocks[0].linears][:2]
    before = {name: tensor.clone() for name, tensor in swapped.model.state_dict().items()}
    W = torch.zeros(checkpoint.architecture.weights[one].shape)
    for _ in range(2):  # the same model can be entered again
        with (
            pytest.raises(InputError, match=r"of shape \(1, 1\) cannot be replaced: .* has a matrix of shape"),
            swapped,
        ):
            swapped.replace({one: W, other: torch.zeros(1, 1)})
        assert all(torch.equal(tensor, before[name]) for name, tensor in swapped.model.state_dict().items())
