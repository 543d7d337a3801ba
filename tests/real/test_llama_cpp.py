"""An imatrix of published models: names and sizes as in their own GGUF files, and what llama-quantize says to it.

The second part needs llama-quantize on the PATH, or in $LLAMA_QUANTIZE.
"""

import os
import shutil
import subprocess
from pathlib import Path

import gguf
import pytest

from fairbits.api.evaluate import evaluate
from fairbits.api.imatrix import LanguageImatrices, imatrix
from fairbits.models.checkpoint import Checkpoint

LLAMA_QUANTIZE = os.environ.get("LLAMA_QUANTIZE") or shutil.which("llama-quantize")
LANGUAGES = ["eng", "fra"]


@pytest.fixture(scope="module")
def smollm_imatrix(smollm: Checkpoint) -> LanguageImatrices:
    return imatrix(smollm, languages=LANGUAGES, text="help", tokens=64)


@pytest.mark.parametrize("model", ["gemma", "smollm"])
def test_names_and_sizes_are_those_of_the_file(model: str, request: pytest.FixtureRequest) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(model)
    mix = imatrix(checkpoint, languages=LANGUAGES, text="help", tokens=64).mix
    widths = {
        tensor.name: int(tensor.shape[0])  # llama.cpp's first dimension: the inputs
        for tensor in gguf.GGUFReader(checkpoint.target).tensors
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2
    }
    assert {name: entry.mean.size for name, entry in mix.entries.items()} == widths


@pytest.mark.skipif(LLAMA_QUANTIZE is None, reason="llama-quantize is not installed")
def test_llama_quantize_uses_it(smollm: Checkpoint, smollm_imatrix: LanguageImatrices, tmp_path: Path) -> None:
    mix, out = tmp_path / "imatrix.gguf", tmp_path / "IQ3_XXS.gguf"
    smollm_imatrix.save(mix)
    command = [LLAMA_QUANTIZE, "--allow-requantize", "--imatrix", mix, smollm.target, out, "IQ3_XXS"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    output = done.stdout + done.stderr
    assert f"loaded {len(smollm_imatrix.mix.entries)} importance matrix entries" in output
    assert "help: eng_Latn fra_Latn" in output
    assert "did not find weights for blk." not in output
    scores = evaluate(out, reference=smollm, languages=LANGUAGES, text="help", tokens=64)
    assert 0 < scores.documents.kl.sum() / scores.documents.tokens.sum() < 2
