import pytest
import torch

from fairbits.errors import InputError
from fairbits.model import Checkpoint
from fairbits.model.groups import Codes, choose_scales, round_to_nearest
from fairbits.model.scheme import Scheme
from fairbits.model.swapped_model import SwappedModel
from fairbits.theory.grid import Grid


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
    before = {name: each.clone() for name, each in model.state_dict().items()}
    names = [name for block in checkpoint.architecture.blocks for name in block.linears]
    layers = {name: codes_of(checkpoint, name) for name in names}
    swapped.replace(layers)
    weights = checkpoint.architecture.weights
    for name, codes in layers.items():
        W = model.get_parameter(f"{weights[name].module}.weight")
        assert torch.equal(W.T if weights[name].transposed else W, codes.dequantized)
    changed = {name for name, each in model.state_dict().items() if not torch.equal(each, before[name])}
    assert len(changed) == len(names)
    swapped.restore()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


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


def test_stacked_experts_are_refused(reading_model) -> None:
    checkpoint = reading_model("mixtral")
    name, weight = next((n, w) for n, w in checkpoint.architecture.linears.items() if w.expert is not None)
    codes = Codes(torch.zeros(weight.shape, dtype=torch.int8), torch.ones(weight.shape[0], 1), 4)
    with pytest.raises(InputError, match=r"cannot be replaced: MixtralForCausalLM has no matrix at"):
        SwappedModel.load(checkpoint).replace({name: codes})


def test_whatever_happens_the_model_is_restored(reading_model) -> None:
    checkpoint = reading_model("gpt2")
    swapped, (one, other) = SwappedModel.load(checkpoint), [*checkpoint.architecture.blocks[0].linears][:2]
    before = {name: each.clone() for name, each in swapped.model.state_dict().items()}
    W = torch.zeros(checkpoint.architecture.weights[one].shape)
    for _ in range(2):  # the same model can be entered again
        with (
            pytest.raises(InputError, match=r"of shape \(1, 1\) cannot be replaced: .* has a matrix of shape"),
            swapped,
        ):
            swapped.replace({one: W, other: torch.zeros(1, 1)})
        assert all(torch.equal(each, before[name]) for name, each in swapped.model.state_dict().items())
