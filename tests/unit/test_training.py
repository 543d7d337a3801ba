"""The scripts that trained the embedded model: their BLOOM is that of transformers."""

import importlib
import json
import lzma
import sys
import tomllib
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import ASSETS

TRAINING = Path(__file__).parents[2] / "training"
SETTINGS = tomllib.loads((TRAINING / "config.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    """The script `training/train.py`, which finds its neighbours as a script does."""
    names = ("train", "bloom", "llama", "mixtral", "text", "arms", "apart")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TRAINING)
        yield importlib.import_module("train")
    for name in names:
        sys.modules.pop(name, None)


def losses(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        return model(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("length", [2, 33, 128])
def test_bloom_computes_what_transformers_does(train, length) -> None:
    torch.manual_seed(1)
    ours = train.Bloom(vocabulary=97, layers=3, width=32, heads=4, dropout=0.3).eval()
    for parameter in ours.parameters():  # gains and biases that are all alike would hide mistakes
        torch.nn.init.normal_(parameter, mean=0.3 if parameter.ndim == 1 else 0.0, std=0.3)
    theirs = BloomForCausalLM(BloomConfig(vocab_size=97, hidden_size=32, n_layer=3, n_head=4)).eval()
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    theirs.tie_weights()
    tokens = torch.randint(97, (2, length + 1))
    with torch.no_grad():
        logits = theirs(tokens[:, :-1]).logits
    expected = cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    assert expected.std() > 0.1
    torch.testing.assert_close(losses(ours, tokens), expected, rtol=1e-5, atol=1e-5)


def test_what_is_saved_is_what_was_trained(train, tmp_path) -> None:
    torch.manual_seed(2)
    settings = {"model": {"layers": 2, "width": 32, "heads": 4}, "training": {"sequence": 16}}
    trained = train.Bloom(vocabulary=16384, dropout=0.0, **settings["model"]).eval()
    train.save(trained, ASSETS / "tiny", tmp_path, settings)
    tokens = torch.randint(16384, (1, 17))
    with torch.no_grad():
        saved = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(tokens[:, :-1]).logits
    expected = cross_entropy(saved.transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(losses(trained, tokens), expected, rtol=1e-3, atol=1e-3)  # saved in float16
    checkpoint = Checkpoint(tmp_path)
    assert {info.dtype for info in checkpoint.tensors.values()} == {torch.float16}
    assert checkpoint.tokenizer().encode("naïve") == Checkpoint("embedded:tiny").tokenizer().encode("naïve")


def test_the_second_model_is_a_llama_of_about_ten_million_weights(train, tmp_path) -> None:
    settings = tomllib.loads((TRAINING / "llama.toml").read_text(encoding="utf-8"))
    shape = dict(settings["model"])
    trained = train.ARCHITECTURES[shape.pop("architecture")](vocabulary=16384, dropout=0.0, **shape).eval()
    assert sum(parameter.numel() for parameter in trained.parameters()) == pytest.approx(10.5e6, rel=0.01)
    train.save(trained, ASSETS / "tiny", tmp_path, settings)
    tokens = torch.randint(16384, (1, 9))
    with torch.no_grad():
        saved = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(tokens[:, :-1]).logits
    expected = cross_entropy(saved.transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(losses(trained, tokens), expected, rtol=1e-3, atol=1e-3)
    assert Checkpoint(tmp_path).architecture.family == "llama"


def test_a_limit_of_tokens_keeps_whole_documents(train) -> None:
    text = importlib.import_module(train.encode.__module__)
    arrays = [np.zeros(size, dtype=np.int32) for size in (5, 9, 7)]
    assert [len(text.within(arrays, most)) for most in (None, 21, 20, 14, 4)] == [3, 3, 2, 2, 0]


def test_the_embedded_model_has_the_settings_of_the_script() -> None:
    config = Checkpoint("embedded:tiny").config
    model = SETTINGS["model"]
    assert (config.n_layer, config.hidden_size, config.n_head) == (model["layers"], model["width"], model["heads"])
    assert config.vocab_size == SETTINGS["tokenizer"]["vocabulary"]


def test_an_epoch_holds_every_document_once_in_a_new_order(train) -> None:
    documents = [np.full(size, i, dtype=np.int32) for i, size in enumerate([5, 9, 7, 11, 8])]
    rows = train.epoch(documents, size=4, generator=np.random.default_rng(0))
    assert rows.shape[1] == 4
    sizes = np.bincount(rows.flatten().numpy(), minlength=5)
    assert (sizes <= [5, 9, 7, 11, 8]).all()
    assert sizes.sum() > 40 - 2 * 4  # less than a row is lost at either end
    other = train.epoch(documents, size=4, generator=np.random.default_rng(1))
    assert other[0].tolist() != rows[0].tolist()


def test_the_learning_rate_rises_and_falls_to_zero(train) -> None:
    choice = {"learning_rate": 0.1, "warmup": 10}
    rates = [train.learning_rate(step, 100, choice) for step in range(101)]
    assert rates[0] == pytest.approx(0.01)
    assert max(rates) == pytest.approx(0.1) == rates[10]
    assert all(before > after for before, after in pairwise(rates[10:]))
    assert rates[100] == pytest.approx(0, abs=1e-12)


def test_a_model_with_experts_learns_and_all_its_weights_are_moved(train) -> None:
    settings = train.settings_of(
        "mixtral.toml", ["training.batch=4", "training.warmup=2", "training.epochs=24", "model.layers=1"]
    )
    text = np.tile(np.arange(4, 30, dtype=np.int32), 80)  # 16 rows that can be learned by heart
    model, history = train.train(settings, {"xx": ([text], [text[:200]])}, vocabulary=32, device="cpu")
    assert history[-1]["held_out"]["xx"] < history[0]["held_out"]["xx"] - 1
    moved = {
        id(parameter)
        for mover in train.optimizers(model, settings["training"])
        for g in mover.param_groups
        for parameter in g["params"]
    }
    assert moved == {id(parameter) for parameter in model.parameters()}
    assert any(parameter.ndim == 3 for parameter in model.parameters())
    assert model.as_transformers(settings).config.num_local_experts == 8


def test_the_llama_arm_begins_and_drops_out_as_base_does(train) -> None:
    arms = importlib.import_module("arms")
    settings = train.settings_of("config.toml", ["model.layers=2", "model.width=64", "model.heads=4"])
    torch.manual_seed(3)
    base, llama = (arms.ARMS[arm].settings(settings) for arm in ("base", "architecture"))
    bloom, model = train.build(base, vocabulary=97), arms.ARMS["architecture"].build(llama, vocabulary=97)
    last = [dict(bloom.named_parameters())["transformer.h.0.mlp.dense_4h_to_h.weight"]]
    last += [
        part.weight for block in model.model.model.layers for part in (block.self_attn.o_proj, block.mlp.down_proj)
    ]
    assert [weight.std().item() for weight in last] == pytest.approx([0.02 / 2] * 5, rel=0.05)
    model.dropout.p = 0.0  # what is left is dropped out inside the blocks
    tokens = torch.randint(97, (1, 9))
    assert not torch.equal(losses(model.train(), tokens), losses(model, tokens))
    assert torch.equal(losses(model.eval(), tokens), losses(model, tokens))
    blocks = [
        sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 2)
        for block in (bloom.transformer["h"][0], model.model.model.layers[0])
    ]
    assert blocks[0] == blocks[1]


def test_text_kept_apart_is_what_every_training_holds_out_and_more(train, tmp_path) -> None:
    apart, arms = importlib.import_module("apart"), importlib.import_module("arms")
    tokenizer = arms.Tokenizer.from_file(str(ASSETS / "tiny" / "tokenizer.json"))
    (tmp_path / "train").mkdir()
    with lzma.open(tmp_path / "train" / "eng.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(f"line {i}" for i in range(8 * 600)) + "\n")
    records = [json.loads(line) for line in apart.lines(tmp_path)]
    assert [record["split"] for record in records] == ["evaluation"] * 30 + ["calibration"] * 6
    split = train.encode(tmp_path, tokenizer, SETTINGS["text"])
    kept, held = split["eng"]
    assert 0 < len(held) < 30
    texts = {record["text"] for record in records}
    assert {tokenizer.decode(array[1:-1].tolist()) for array in held} < texts
    left, none = arms.without(split, texts, tokenizer)["eng"]
    assert (len(left), none) == (600 - 36, [])
    assert len(kept) == 600 - len(held)
