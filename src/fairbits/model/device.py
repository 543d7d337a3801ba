"""The device that a model runs on."""

import torch

from fairbits.errors import InputError


def check_device(device: str) -> str:
    """Returns the device if torch has it here: cpu, cuda, or one of several such as cuda:1."""
    graphics = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    here = ["cpu", *(["cuda"] if graphics else []), *graphics]
    if device not in here:
        raise InputError(f"device is {device!r:.40}; it must be one that torch has here: {', '.join(here)}")
    return device
