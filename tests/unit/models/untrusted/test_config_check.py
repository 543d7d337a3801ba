"""Configurations that strangers wrote: wrong types and sizes that are lies end in one sentence, and at once."""

import json
import os
import shutil
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import ASSETS
from fairbits.models.untrusted.config_check import CONFIG_RULES, GENERATION_RULES, check_config, check_generation_config

WRONG = (True, -5, 10**30, 1.5, "x", [], {}, [1], {"a": 1}, ["x"], "\ud800", [[]])


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    for path in (ASSETS / "tiny").iterdir():
        os.symlink(path, directory / path.name)
    return directory


def rewritten(model: Path, name: str, **entries: Any) -> Path:
    content = json.loads((ASSETS / "tiny" / name).read_text())
    (model / name).unlink(missing_ok=True)
    (model / name).write_text(json.dumps({**content, **entries}))
    return model


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"num_labels": 10**9}, "num_labels = 1000000000; it must be a whole number from 0 to 100,000"),
        ({"num_labels": 1e9}, "num_labels = 1000000000.0; it must be a whole number"),
        ({"num_labels": True}, "num_labels = True; it must be a whole number"),
        ({"id2label": ["a"]}, "id2label = ['a']; it must be an object"),
        ({"id2label": {str(i): "" for i in range(100_001)}}, "more than 100,000 entries in id2label"),
        ({"n_layer": 10**9}, "n_layer = 1,000,000,000, and the files have 149 tensors; they must agree"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "text_config.num_hidden_layers = 1,000,000,000, and the files"),
        ({"num_experts": 10**6}, "num_experts = 1,000,000, and no tensor in the files has that many rows"),
        ({"seq_length": 2**40}, "seq_length = 1,099,511,627,776; it must be at most 134,217,728"),
        ({"vocab_size": 10**7}, "vocab_size = 10,000,000, and no tensor in the files is longer than 16,384"),
        ({"vocab_size": "many"}, "vocab_size = 'many'; it must be a whole number"),
        ({"attn_implementation": 7}, "attn_implementation = 7; it must be a string or an object"),
        ({"architectures": {"a": 1}}, "architectures = {'a': 1}; it must be a list of names of classes"),
        ({"sliding_window": "wide"}, "sliding_window = 'wide'; it must be a whole number"),
        ({"sliding_window": 0}, "sliding_window = 0; it must be 1 or more, or null for no window"),
        ({"sliding_window": False}, "sliding_window = False; it must be 1 or more, or null for no window"),
        ({"text_config": {"sliding_window": 0}}, "text_config.sliding_window = 0; it must be 1 or more"),
        ({"sliding_window": 0, "layer_types": ["sliding_attention"]}, "sliding_window = 0; it must be 1 or more"),
        ({"eos_token_id": {}}, "eos_token_id = {}; it must be a token id or a list of them"),
        ({"unheard_of": [10**30]}, "it must fit into 64 bits"),
        ({"deep": json.loads("[" * 20 + "]" * 20)}, "nested more than 8 levels deep"),
    ],
)
def test_a_configuration_that_lies_is_refused_at_once(model, entries, message) -> None:
    checkpoint = Checkpoint(rewritten(model, "config.json", **entries))
    began = perf_counter()
    with pytest.raises(InputError) as raised:
        _ = checkpoint.config
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{model / 'config.json'} has ")
    assert perf_counter() - began < 2


@pytest.mark.parametrize(
    "entries",
    [
        {"sliding_window": None},
        {"sliding_window": 1},
        {"sliding_window": 0, "use_sliding_window": False},  # as Qwen2MoeConfig writes it
        {"sliding_window": 0, "layer_types": ["full_attention"] * 12},
    ],
)
def test_no_window_is_one_too(model, entries) -> None:
    raw = {"vocab_size": 64, **entries}
    check_config(raw, model / "config.json", [(64, 16)])


@pytest.mark.parametrize("name", sorted(CONFIG_RULES))
def test_whatever_a_field_holds_the_error_is_ours(model, name) -> None:
    refused = 0
    for wrong in WRONG:
        try:
            _ = Checkpoint(rewritten(model, "config.json", **{name: wrong})).config
        except InputError:
            refused += 1
    assert refused >= 4  # the others are values that the field may have


@pytest.mark.parametrize("name", sorted(GENERATION_RULES))
def test_a_field_of_generation_that_is_wrong_is_named(tmp_path, name) -> None:
    refused = 0
    for wrong in WRONG:
        (tmp_path / "generation_config.json").write_text(json.dumps({name: wrong}))
        message = refusal(tmp_path)
        assert message is None or message.startswith(f"{tmp_path / 'generation_config.json'} has {name} = ")
        refused += message is not None
    assert refused >= 4


def refusal(directory: Path) -> str | None:
    try:
        check_generation_config(directory)
    except InputError as problem:
        return str(problem)
    return None


def test_what_it_refuses_is_not_loaded(model) -> None:
    rewritten(model, "config.json")
    with pytest.raises(InputError, match=r"generation_config\.json has watermarking_config = 7; it must be an object"):
        Checkpoint(rewritten(model, "generation_config.json", watermarking_config=7)).load()
    with pytest.raises(InputError, match=r"eos_token_id = 1\.5"):
        Checkpoint(rewritten(model, "generation_config.json", eos_token_id=1.5)).load()


@pytest.mark.parametrize("family", ["llama", "mixtral", "llama4", "mt5", "m2m100", "gemma3", "xlmr", "gpt2"])
def test_honest_configurations_pass(reading_model, family) -> None:
    checkpoint = reading_model(family)
    assert checkpoint.config.model_type == Checkpoint(checkpoint.directory).config.model_type
    check_generation_config(checkpoint.directory)


@pytest.mark.long
def test_the_defaults_of_every_family_pass() -> None:
    """Only types and bounds are tested: the files could have tensors of any size."""
    tried = 0
    for name in sorted(t.CONFIG_MAPPING):
        try:
            content = json.loads(t.CONFIG_MAPPING[name]().to_json_string(use_diff=False))
        except Exception:  # a family without defaults
            continue
        check_config(content, Path(f"config.json of {name}"), [(2**40, 16_384)] * 10_000)
        tried += 1
    assert tried > 200


def test_a_table_of_positions_is_not_built_for_a_lie(reading_model, tmp_path) -> None:
    source = reading_model("m2m100").directory
    directory = shutil.copytree(source, tmp_path / "model")
    content = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**content, "max_position_embeddings": 100_000_000}))
    for use in (Checkpoint.load, lambda checkpoint: checkpoint.architecture):
        with pytest.raises(InputError, match="values by its configuration, and the files have at most"):
            use(Checkpoint(directory))
