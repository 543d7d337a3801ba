"""The evaluation of packed checkpoints, and its table."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from rich.console import Console
from safetensors.torch import save_file

from fairbits.api.evaluate import evaluate
from fairbits.core.errors import InputError
from fairbits.core.table import render_tables
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import Codes, round_to_nearest
from fairbits.text.corpus import Corpus

ENG = [f"On day {i} the wind came from the north{' and brought rain' * (i % 3)}." for i in range(8)]
HEB = [f"ביום {i} באה הרוח מצפון{' והביאה גשם' * (i % 3)}." for i in range(8)]
CORPUS = Corpus("weather", {}, {"eng": ENG, "heb": HEB}, parallel=True, notes=("written for a test",))


def rounded(W: torch.Tensor, bits: int) -> Codes:
    steps = W.float().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return round_to_nearest(W, steps.to(W.dtype), grid=Grid(bits, "twos"))


def pack(source: Checkpoint, directory: Path, *, bits: int) -> Checkpoint:
    """Writes a checkpoint whose blocks are packed as compressed-tensors packs them, one scale per channel."""
    directory.mkdir()
    linears = {name for block in source.architecture.blocks for name in block.linears}
    tensors = {}
    for info, W in source.stream():
        if info.name in linears:
            module, codes = info.name.removesuffix(".weight"), rounded(W, bits)
            tensors[f"{module}.weight_packed"] = pack_to_int32(codes.codes, bits)
            tensors[f"{module}.weight_scale"] = codes.scales
            tensors[f"{module}.weight_shape"] = torch.tensor(W.shape)
        else:
            tensors[info.name] = W.clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}
    config = json.loads((source.directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source.directory / name, directory)
    return Checkpoint(directory)


@pytest.fixture(scope="module")
def packed(reading_model, tmp_path_factory) -> Checkpoint:
    return pack(reading_model("llama"), tmp_path_factory.mktemp("packed") / "q4", bits=4)


@pytest.fixture(scope="module")
def scores(packed, reading_model) -> Scores:
    return evaluate(packed, reference=reading_model("llama"), text=CORPUS)


def test_packed_weights_are_unpacked_without_a_word(packed, reading_model, capfd) -> None:
    model, name = packed.load(), "model.layers.0.mlp.down_proj"
    W = rounded(reading_model("llama").read(f"{name}.weight"), 4).dequantized
    assert torch.equal(model.get_submodule(name).weight, W)
    model.base_model(input_ids=torch.tensor([[1, 2]]))  # a part of it, which would not unpack anything
    assert capfd.readouterr() == ("", "")


def test_the_scores_say_what_was_compared(scores, packed, reading_model, capfd) -> None:
    source = reading_model("llama")
    seen = []
    again = evaluate(
        str(packed.directory), reference=source.directory, text=CORPUS, progress=lambda *call: seen.append(call)
    )
    assert capfd.readouterr() == ("", "")
    assert [what for what, done, total in seen if done == total > 0] == [
        "stage 1 of 2: evaluating the reference model",
        "stage 2 of 2: evaluating the quantized model",
    ]
    assert again.as_bytes() == scores.as_bytes()  # the same inputs, the same bytes
    assert (scores.reference.fingerprint, scores.quantized.fingerprint) == (source.fingerprint, packed.fingerprint)
    assert scores.quantized.size_bytes < scores.reference.size_bytes
    assert scores.setting.hashes == CORPUS.hashes["evaluation"]
    assert scores.languages == ("eng_Latn", "heb_Hebr")
    assert scores.notes == (
        "written for a test",
        "evaluation text is shorter than the budget: eng_Latn 190 of 8,192 tokens, heb_Hebr 250",
    )
    assert (scores.documents.kl > 0).all()


def with_plan(source: Checkpoint, directory: Path, plan: object) -> Checkpoint:
    shutil.copytree(source.directory, directory)
    (directory / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return Checkpoint(directory)


def test_a_model_made_from_another_one_is_refused(reading_model, packed, tmp_path) -> None:
    source = reading_model("llama")

    def nothing(what: str, *_: int) -> None:
        raise AssertionError(f"{what}: nothing may be run")

    other = {"schema": "fairbits.plan/1", "model": "./other", "fingerprint": "0" * 64}
    with pytest.raises(InputError, match=r"was made from ./other .*; the reference must be the model it was made from"):
        evaluate(with_plan(packed, tmp_path / "a", other), reference=source, text=CORPUS, progress=nothing)
    same = other | {"fingerprint": source.fingerprint}
    for number, plan in enumerate((same, {"of": "another tool"}, "{")):
        quantized = with_plan(packed, tmp_path / f"b{number}", plan)
        assert evaluate(quantized, reference=source, text=CORPUS, tokens=16).languages == ("eng_Latn", "heb_Hebr")


def test_an_unknown_device_is_refused_first(packed, reading_model) -> None:
    with pytest.raises(InputError, match="device is 'foo'"):
        evaluate(packed, reference=reading_model("llama"), text=CORPUS, device="foo")


def test_more_bits_hurt_less(scores, reading_model, tmp_path) -> None:
    source = reading_model("llama")
    eight = evaluate(pack(source, tmp_path / "q8", bits=8), reference=source, text=CORPUS)
    assert eight.documents.kl.sum() < scores.documents.kl.sum() / 50
    assert np.array_equal(eight.documents.nll_reference, scores.documents.nll_reference)


@pytest.mark.parametrize(("family", "task"), [("xlmr", "masked"), ("mt5", "completion")])
def test_other_tasks_are_named(reading_model, family, task) -> None:
    scores = evaluate(reading_model(family), reference=reading_model(family), text=CORPUS)
    assert scores.setting.task == task
    assert not scores.documents.kl.any()
    assert any("cannot be separated" in note for note in scores.notes)
    word = {"masked": "pseudo-likelihood", "completion": "teacher forcing"}[task]
    assert word in scores.summary()["question"]["asked"]


def test_other_tokens_are_refused(reading_model) -> None:
    with pytest.raises(InputError, match=r"tokenizers of .* differ \(in bos_token_id"):
        evaluate(reading_model("qwen2"), reference=reading_model("llama"), text=CORPUS)


def test_another_vocabulary_is_refused_by_the_text_it_cuts(reading_model, packed, tmp_path) -> None:
    directory = tmp_path / "other"
    shutil.copytree(packed.directory, directory)
    data = json.loads((directory / "tokenizer.json").read_text())
    data["model"]["merges"] = data["model"]["merges"][:200]
    (directory / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"differ \(in eng_Latn"):
        evaluate(directory, reference=reading_model("llama"), text=CORPUS)


def printed(scores: Scores) -> str:
    console = Console(file=io.StringIO(), width=80, emoji=False)
    console.print(render_tables(scores.tables()))
    return console.file.getvalue()


def test_the_table_fits_and_has_the_worst_first(scores) -> None:
    text = printed(scores)
    assert max(map(len, text.splitlines())) <= 80
    damage = scores.frame().by_language()
    first, second = sorted(damage, key=lambda code: -damage[code].value)
    assert text.index(first) < text.index(second)
    for word in (
        "changed",
        "perplexity",
        "divergence",
        "loss",
        "What this means",
        "worst",
        "mean",
        "gap",
        "corrected for chance",
    ):
        assert word in text
    assert "ats of divergence per parallel section" in text
    assert "2 languages, 16 documents" in text
    assert "at least 8 documents per language" in " ".join(text.split())
    row = next(line for line in text.splitlines() if first in line)
    assert f"{100 * scores.changed_frame.by_language()[first].value:.1f}" in row
    assert "written for a test" in text
    assert "predicting every token, given those before it" in text


def test_percentiles_over_tokens_are_in_order(scores) -> None:
    for percentiles in scores.percentiles.values():
        numbers = (percentiles.kl_p50, percentiles.kl_p95, percentiles.kl_p99, percentiles.kl_p99_9)
        assert numbers == tuple(sorted(numbers))


def test_the_table_of_one_language_has_no_gap(reading_model, packed) -> None:
    text = printed(evaluate(packed, reference=reading_model("llama"), text=CORPUS, languages=["he"]))
    assert "Hebrew" in text
    assert "gap" not in text


def test_the_table_of_nothing_lost_has_no_ratio(reading_model) -> None:
    source = reading_model("llama")
    text = printed(evaluate(source, reference=source, text=CORPUS))
    assert "The ratio is left out where the smallest damage may be 0" in text


def test_a_measurement_is_repeated_by_its_signature(packed, reading_model) -> None:
    llama = reading_model("llama")
    first = evaluate(packed, reference=llama, languages=["eng", "fra"], tokens=96, sequence=48, seed=3)
    line = str(first.signature())
    assert evaluate(packed, reference=llama, repeat=line).as_bytes() == first.as_bytes()
    with pytest.raises(InputError, match=r"model is .* here and .* in the signature"):
        evaluate(llama, reference=llama, repeat=line)
    with pytest.raises(InputError, match=r"hash is .* here and .* in the signature"):
        evaluate(packed, reference=llama, repeat=line, text="help")
