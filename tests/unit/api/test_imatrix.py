"""The imatrix of a small model in two languages."""

from pathlib import Path

import numpy as np
import pytest

from fairbits.api.imatrix import imatrix, merge
from fairbits.core.errors import InputError
from fairbits.models.io.imatrix_file import read_imatrix
from fairbits.text.corpus import Corpus

ENG = [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(6)]
HEB = [f"ביום {i} גשם." for i in range(5)]
CORPUS = Corpus("weather", {"eng_Latn": ENG, "heb_Hebr": HEB}, {})
DOWN = "blk.1.ffn_down.weight"


def test_the_mix_counts_every_language_the_same(reading_model, tmp_path: Path) -> None:
    matrices = imatrix(reading_model("llama"), text=CORPUS, tokens=64)
    eng, heb = (matrices.languages[code].entries[DOWN] for code in ("eng_Latn", "heb_Hebr"))
    assert eng.counts[0] != heb.counts[0]
    np.testing.assert_allclose(matrices.mix.entries[DOWN].mean, (eng.mean + heb.mean) / 2)
    assert matrices.mix.datasets == ("weather: eng_Latn heb_Hebr",)
    paths = matrices.save(tmp_path / "mix.gguf", per_language=tmp_path / "each")
    assert [path.name for path in paths] == ["mix.gguf", "eng_Latn.gguf", "heb_Hebr.gguf"]
    again = merge([(tmp_path / "each" / "eng_Latn.gguf", 1.0), (tmp_path / "each" / "heb_Hebr.gguf", 1.0)])
    for name, entry in read_imatrix(tmp_path / "mix.gguf").entries.items():
        np.testing.assert_allclose(again.entries[name].mean, entry.mean, rtol=1e-6)
    assert again.fingerprint == reading_model("llama").fingerprint


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_sizes_are_those_of_the_tensors(family: str, reading_model) -> None:
    matrices = imatrix(reading_model(family), text=CORPUS, tokens=64)
    widths = {name: entry.mean.shape for name, entry in matrices.mix.entries.items()}
    inputs = {"ffn_down": 48, "attn_output": 64 if family == "gemma3" else 32}
    layers = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    assert widths == {
        f"blk.{block}.{layer}.weight": (1, inputs.get(layer, 32)) for block in range(2) for layer in layers
    }
    assert matrices.notes == ()


def test_weights(reading_model) -> None:
    matrices = imatrix(reading_model("llama"), text=CORPUS, tokens=64, weights={"heb": 3, "eng": 1})
    eng, heb = (matrices.languages[code].entries[DOWN].mean for code in ("eng_Latn", "heb_Hebr"))
    np.testing.assert_allclose(matrices.mix.entries[DOWN].mean, (eng + 3 * heb) / 4)
    assert matrices.mix.languages == {"eng_Latn": 0.25, "heb_Hebr": 0.75}


@pytest.mark.parametrize(
    ("weights", "message"),
    [("proportional", "must be one of equal"), ({"eng": 1}, "must name each"), ({"eng": 1, "heb": 0}, "heb is 0")],
)
def test_bad_weights(weights, message, reading_model) -> None:
    with pytest.raises(InputError, match=message):
        imatrix(reading_model("llama"), text=CORPUS, weights=weights)


def test_layers_without_importance_are_named(reading_model, monkeypatch) -> None:
    monkeypatch.setattr(
        "fairbits.api.imatrix.gguf_names", lambda _family, names, **_: {n: n for n in names if "q_proj" in n}
    )
    matrices = imatrix(reading_model("llama"), text=CORPUS, tokens=64)
    assert len(matrices.mix.entries) == 2
    (note,) = matrices.notes
    assert note.startswith("no importance for 12 layers (model.layers.0.mlp.down_proj.weight, ")
    assert "and 10 more): llama.cpp's names do not include it. llama-quantize rounds them without it" in note


@pytest.mark.parametrize("family", ["gpt2", "mt5", "xlmr", "mixtral"])
def test_families_without_names_are_refused(family: str, reading_model) -> None:
    with pytest.raises(
        InputError, match=r"of the family '[\w-]+'; the names of its tensors in llama\.cpp are known for"
    ):
        imatrix(reading_model(family), text=CORPUS)


def test_files_are_written_together_or_not_at_all(reading_model, tmp_path: Path) -> None:
    matrices = imatrix(reading_model("llama"), text=CORPUS, tokens=64)
    (tmp_path / "each").write_text("a file")
    with pytest.raises(InputError, match="is not a directory"):
        matrices.save(tmp_path / "mix.gguf", per_language=tmp_path / "each")
    assert not (tmp_path / "mix.gguf").exists()
    with pytest.raises(InputError, match="no file to write is named"):
        matrices.save()


def test_a_model_in_memory(reading_model) -> None:
    checkpoint = reading_model("llama")
    wanted = imatrix(checkpoint, text=CORPUS, tokens=64).mix
    in_memory = imatrix(checkpoint.load(), tokenizer=checkpoint.tokenizer(), text=CORPUS, tokens=64).mix
    for name, entry in in_memory.entries.items():
        np.testing.assert_array_equal(entry.mean, wanted.entries[name].mean)
