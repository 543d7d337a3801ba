import pytest
import torch

from fairbits.errors import InputError
from fairbits.model.device import autocast, autocast_dtype, check_device, compute_dtype, fixed_seed, is_gpu, move


def test_the_processor_is_always_there() -> None:
    assert check_device("cpu") == "cpu"


@pytest.mark.parametrize("device", ["foo", "", "cpu:7", "meta", "cuda:99", "CPU", None, 0])
def test_other_devices_are_refused_by_name(device) -> None:
    with pytest.raises(InputError, match=r"device is .*torch has here: cpu"):
        check_device(device)


def test_devices_that_torch_counts_are_allowed(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(each) for each in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    with pytest.raises(InputError, match="cpu, cuda, cuda:0, cuda:1"):
        check_device("cuda:2")


def test_a_gpu_computes_in_half_the_bytes() -> None:
    assert [is_gpu(each) for each in ("cpu", "cuda", "cuda:1", torch.device("meta"))] == [False, True, True, False]
    assert (compute_dtype("cpu"), compute_dtype("cuda:1")) == (torch.float32, torch.bfloat16)


def test_a_type_holds_within_its_context_only() -> None:
    with autocast("cpu"):
        assert autocast_dtype("cpu") == torch.float32
    with autocast("cpu", torch.bfloat16):
        assert autocast_dtype("cpu") == torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert autocast_dtype("cpu") == torch.float32


def test_a_model_is_moved_itself() -> None:
    model = torch.nn.Linear(2, 2)
    assert move(model, "cpu") is model


def test_a_seed_decides_what_is_drawn_and_leaves_no_trace() -> None:
    with fixed_seed(3, "cpu"):
        first = torch.rand(4)
    torch.manual_seed(7)
    with fixed_seed(3, torch.device("cpu")):
        assert torch.equal(torch.rand(4), first)
    after = torch.rand(4)
    torch.manual_seed(7)
    with fixed_seed(None, "cpu"):
        assert torch.equal(torch.rand(4), after)
