"""Overlays on disk and in a loaded model."""

from pathlib import Path

import pytest
import torch

from fairbits.adaptive.files import Overlays
from fairbits.adaptive.overlay import BASE
from fairbits.adaptive.switch import Switch
from fairbits.errors import InputError
from fairbits.model import Checkpoint


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_way_through_the_overlays_leads_back_bit_for_bit(adaptive: tuple[Path, Path], dtype: torch.dtype) -> None:
    base = Checkpoint(adaptive[0])
    overlays, model = Overlays.load(adaptive[1], base), base.load(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    switch = Switch(model, overlays.overlays)
    seen: dict[str, dict[str, torch.Tensor]] = {BASE: before}
    for name in ("a", "b", "a", BASE, "b", BASE):
        switch.to(name)
        now = model.state_dict()
        same = seen.setdefault(name, {key: tensor.clone() for key, tensor in now.items()})
        assert all(torch.equal(now[key], same[key]) for key in same)
    changed = {key for key in before if not torch.equal(seen["a"][key], before[key])}
    assert changed == {patch.module + ".weight" for patch in overlays.overlays[0].patches}
