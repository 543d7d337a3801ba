"""The map of every family, on the real class: random weights, saved, opened again."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def test_every_tensor_of_the_file_is_in_the_map_in_its_order(opened: Any) -> None:
    assert list(opened.map.weights) == list(opened.shapes)
    assert opened.map.ignored == {}
    assert opened.map.class_name == opened.family.cls.__name__
    assert opened.map.n_blocks == opened.family.n_blocks == len(opened.map.blocks)


def test_roles_inputs_and_groups_of_the_first_block(opened: Any) -> None:
    weights = {n: (w.role, w.sees, w.fused) for n, w in opened.map.blocks[0].weights.items()}
    assert weights == opened.family.first_block()
    assert {w.stack for w in opened.map.blocks[0].weights.values()} == {opened.family.stack}


def test_roles_outside_the_blocks(opened: Any) -> None:
    assert {n: w.role for n, w in opened.map.weights.items() if w.block is None} == opened.family.outside


def test_linear_maps_and_their_orientation(opened: Any) -> None:
    not_linear = {"norm", "bias", "embedding", "position", "token_type"}
    for name, weight in opened.map.weights.items():
        assert weight.linear == (weight.role not in not_linear) == (weight.sees is not None), name
        assert weight.transposed == (weight.linear and "gpt2" in opened.config.model_type), name
        assert weight.shape == (opened.shapes[name][::-1] if weight.transposed else opened.shapes[name]), name


def test_what_the_file_leaves_out_is_tied(opened: Any) -> None:
    family = opened.family
    assert opened.map.tied == dict(family.tied)
    assert not set(opened.map.tied) & set(opened.shapes)
    assert all(weight.tied_to is None for weight in opened.map.weights.values())
    heads = [source for target, source in family.tied if "bias" not in target] or [
        name for name, role in family.outside.items() if role == "head"
    ]
    assert (opened.map.head.name if opened.map.head else None) == next(iter(heads), None)


def test_equal_names_of_inputs_mean_equal_inputs_and_others_differ(opened: Any) -> None:
    inputs = _real_inputs(opened)
    seen: dict[str, bytes] = {}
    for name, weight in opened.map.linears.items():
        value = inputs[name].contiguous().numpy().tobytes()
        assert seen.setdefault(str(weight.sees), value) == value, name
    assert len(set(seen.values())) == len(seen)


def _real_inputs(opened: Any) -> dict[str, torch.Tensor]:
    """Returns what every linear layer of the file receives in a forward pass with real numbers."""
    model = opened.model()
    inputs: dict[str, torch.Tensor] = {}
    by_address: dict[int, list[str]] = {}
    for name, weight in opened.map.linears.items():
        if weight.expert is None:
            module = model.get_submodule(weight.module)
            module.register_forward_pre_hook(lambda _m, args, name=name: inputs.__setitem__(name, args[0]))
        else:
            stacked = "down_proj" if weight.role == "mlp_down" else "gate_up_proj"
            address = model.get_parameter(f"{weight.module}.{stacked}")[weight.expert].data_ptr()
            by_address.setdefault(address, []).append(name)

    class Experts(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.linear:
                inputs.update(dict.fromkeys(by_address.get(args[1].data_ptr(), ()), args[0]))
            return func(*args, **(kwargs or {}))

    ids = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(1))
    extra = {"decoder_input_ids": ids.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.no_grad(), Experts():
        model(input_ids=ids, **extra, use_cache=False)
    return inputs
