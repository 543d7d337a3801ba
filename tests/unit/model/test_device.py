import pytest
import torch

from fairbits.errors import InputError
from fairbits.model.device import check_device


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
