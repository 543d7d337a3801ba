"""Loading and evaluating on a GPU gives what the CPU gives."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fairbits
from fairbits import Checkpoint
from fairbits.evaluation import hidden_states as features

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SETTING = {"languages": ["en", "fi", "sw"], "tokens": 1024, "sequence": 256}
EMBEDDED = "embedded:tiny"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized copy of the embedded model."""
    out = tmp_path_factory.mktemp("quantized") / "model"
    plan = fairbits.plan(EMBEDDED, policy="rtn", bits=3, group=64)
    fairbits.quantize(EMBEDDED, plan, out=out, device="cpu")
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_weights_loaded_onto_the_gpu_are_those_of_the_cpu(packed: bool, quantized: Path) -> None:
    checkpoint = Checkpoint(quantized if packed else EMBEDDED)
    there, here = checkpoint.load(device="cuda"), checkpoint.load()
    expected = here.state_dict()
    assert there.state_dict().keys() == expected.keys()
    for name, tensor in there.state_dict().items():
        assert tensor.is_cuda
        assert tensor.dtype == expected[name].dtype
        torch.testing.assert_close(tensor.cpu(), expected[name], rtol=0, atol=0)


def test_scores_on_the_gpu_are_those_of_the_cpu(quantized: Path) -> None:
    there, here = (
        fairbits.evaluate(quantized, reference=EMBEDDED, device=device, **SETTING) for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(there.documents.kl, here.documents.kl, rtol=2e-3)
    np.testing.assert_allclose(there.documents.nll_quantized, here.documents.nll_quantized, rtol=1e-4)


def test_scores_in_blocks_are_those_of_whole_models(quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fairbits.evaluate(quantized, reference=EMBEDDED, device="cuda", **SETTING)
    monkeypatch.setattr(features, "fits_whole", lambda _bytes, _device: False)
    blocks = fairbits.evaluate(quantized, reference=EMBEDDED, device="cuda", **SETTING)
    np.testing.assert_allclose(blocks.documents.kl, whole.documents.kl, rtol=2e-3)
    np.testing.assert_allclose(blocks.documents.nll_quantized, whole.documents.nll_quantized, rtol=1e-4)
