"""A GGUF file that is estimated without being dequantized: same shapes, about the same tokens, nothing written."""

from pathlib import Path

import gguf
import pytest

from fairbits.api.dry_run import estimate_quantize
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.sketched_checkpoint import SketchedCheckpoint, open_sketch


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_gguf) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "model.gguf", gguf.LlamaFileType.MOSTLY_Q8_0)
    return tmp_path / "model.gguf"


def test_a_sketch_has_the_shapes_of_the_model_and_writes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbits.api.measured_rates.SECONDS", 0.001)
    sketch = open_sketch(path)
    assert isinstance(sketch, SketchedCheckpoint)
    options = {"policy": "gptq", "bits": 4, "group": 32, "languages": ["eng", "fra"], "tokens": 64}
    estimate = estimate_quantize(sketch, out=None, device="cpu", **options)
    assert estimate.seconds > 0
    assert estimate.stages[0].name == "dequantize the GGUF file"
    assert [file.name for file in path.parent.iterdir()] == ["model.gguf"]
    model = Checkpoint(path)
    shapes = [{name: info.shape for name, info in some.tensors.items()} for some in (sketch, model)]
    assert shapes[0] == shapes[1]
    assert sketch.architecture.linears.keys() == model.architecture.linears.keys()
    assert sketch.config.vocab_size == model.config.vocab_size
    text = "two words"
    counts = [len(some.tokenizer()(text, add_special_tokens=False)["input_ids"]) for some in (sketch, model)]
    assert 0.3 < counts[0] / counts[1] < 3
    assert not isinstance(open_sketch(path), SketchedCheckpoint)  # it is in the cache now
