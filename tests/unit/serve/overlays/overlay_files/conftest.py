"""Overlays in every form, in memory and saved."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.activations import ActivationTable
from fairbits.serve.overlays.overlay_files import BASE, Overlay, Overlays, Patch

ROWS = torch.tensor([0, 5, 31])
Q, K, V = (f"model.layers.0.self_attn.{each}_proj" for each in "qkv")


def table() -> ActivationTable:
    alpha = np.array([[0.1, 2.5], [1e-30, 3e30], [7.0, 0.3]], dtype=np.float32)
    return ActivationTable(
        8, "exact", {"one": (Q, K), "other": (V,)}, ("eng_Latn", "heb_Hebr", "jpn_Jpan"), alpha, alpha[0]
    )


@pytest.fixture(scope="module")
def made(llama_base: Checkpoint) -> Overlays:
    """Returns overlays in all forms, with some rows and with all; two of them share theirs, one has none."""
    rng = torch.Generator().manual_seed(0)

    def scales(name: str) -> torch.Tensor:
        return llama_base.read(f"{name}.weight_scale").clone()

    def codes(rows: int, bits: int) -> torch.Tensor:
        return torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (rows, 32), generator=rng).to(torch.int8)

    def patch(form: Any, name: str, bits: int, **rest: Any) -> Patch:
        return Patch(form, f"{name}.weight", name, bits, **rest)

    shared = (
        patch("residual", Q, 2, rows=ROWS, scales=0.1 * scales(Q)[ROWS], codes=codes(3, 2)),
        patch("codes", K, 3, rows=None, scales=scales(K), codes=codes(len(scales(K)), 3)),
        patch("steps", V, 3, rows=None, scales=1.1 * scales(V), base_scales=scales(V)),
    )
    own = (patch("steps", Q, 3, rows=ROWS, scales=1.2 * scales(Q)[ROWS], base_scales=scales(Q)[ROWS]),)
    served = {"eng_Latn": "eng_Latn", "heb_Hebr": "heb_Hebr", "jpn_Jpan": "jpn_Jpan", "fra_Latn": BASE}
    overlays = (
        Overlay("eng_Latn", ("eng_Latn",), shared),
        Overlay("heb_Hebr", ("heb_Hebr",), shared),
        Overlay("jpn_Jpan", ("jpn_Jpan",), own),
        Overlay("none", (), ()),
    )
    return Overlays(llama_base.fingerprint, overlays, served, {"why": "שלום", "n": 3}, table())


@pytest.fixture
def place(made: Overlays, tmp_path: Path) -> Path:
    made.save(tmp_path / "overlays")
    return tmp_path / "overlays"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def compare(one: Overlays, other: Overlays) -> None:
    assert (one.base, dict(one.languages), dict(one.record)) == (other.base, dict(other.languages), dict(other.record))
    for mine, its in zip(one.overlays, other.overlays, strict=True):
        assert (mine.name, mine.languages) == (its.name, its.languages)
        for patch, twin in zip(mine.patches, its.patches, strict=True):
            assert all(same(getattr(patch, each.name), getattr(twin, each.name)) for each in fields(Patch))
    assert (one.activations is None) == (other.activations is None)
    if one.activations is not None and other.activations is not None:
        assert one.activations.saved() == other.activations.saved()
        for name, tensor in one.activations.tensors().items():
            assert torch.equal(tensor.view(torch.int32), other.activations.tensors()[name].view(torch.int32))


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Overlays, Overlays], None]:
    """Returns the function that compares overlays bit for bit."""
    return compare
