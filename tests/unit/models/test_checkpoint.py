"""A checkpoint that is what it says: reading, streaming, fingerprint, configuration, tokenizer, model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def bloom() -> BloomForCausalLM:
    torch.manual_seed(0)
    return BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=32, n_layer=2, n_head=4)).eval()


@pytest.fixture
def directory(bloom: BloomForCausalLM, tmp_path: Path) -> Path:
    bloom.save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


def edit_config(directory: Path, **entries: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_metadata_and_weights(bloom: BloomForCausalLM, directory: Path) -> None:
    checkpoint = Checkpoint(str(directory))
    assert (checkpoint.kind, checkpoint.target, checkpoint.directory) == ("directory", str(directory), directory)
    assert checkpoint.notes == ()
    weights = bloom.state_dict()
    streamed = {info.name: tensor for info, tensor in checkpoint.stream()}
    assert list(streamed) == list(checkpoint.tensors)
    assert len({info.file for info in checkpoint.tensors.values()}) > 1
    assert streamed.keys() == weights.keys() - {"lm_head.weight"}
    assert all(tensor.equal(weights[name]) for name, tensor in streamed.items())
    assert checkpoint.config.n_layer == 2


def test_streaming_a_choice_keeps_file_order(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    names = list(checkpoint.tensors)
    assert [info.name for info, _ in checkpoint.stream([names[5], names[1], names[5]])] == [names[1], names[5]]
    with pytest.raises(InputError, match=r"no tensor 'transformer\.ln_g\.weight'; near: .*transformer\.ln_f\.weight"):
        list(checkpoint.stream(["transformer.ln_g.weight"]))
    with pytest.raises(InputError, match="must be a list"):
        list(checkpoint.stream("transformer.ln_f.weight"))


def test_writing_to_a_tensor_changes_neither_file_nor_the_next_reading(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    before = checkpoint.fingerprint
    tensor = checkpoint.read("transformer.ln_f.weight")
    tensor.fill_(7)
    assert not checkpoint.read("transformer.ln_f.weight").eq(7).any()
    assert Checkpoint(directory).fingerprint == before


def test_a_tensor_outlives_its_file(directory: Path) -> None:
    tensor = Checkpoint(directory).read("transformer.ln_f.weight")
    shutil.rmtree(directory)
    assert tensor.equal(torch.ones(32))


def test_fingerprint_is_that_of_the_model_not_of_its_files(directory: Path) -> None:
    other = directory / "single"
    other.mkdir()
    weights = {}
    for file in directory.glob("*.safetensors"):
        weights |= load_file(file)
    shutil.copy(directory / "config.json", other)
    edit_config(other, transformers_version="4.0", _name_or_path="elsewhere")
    save_file(weights, other / "model.safetensors")
    first = Checkpoint(directory).fingerprint
    assert Checkpoint(other).fingerprint == first
    weights["transformer.ln_f.weight"][3] += 1e-6
    save_file(weights, other / "model.safetensors")
    changed = Checkpoint(other).fingerprint
    edit_config(other, n_head=8)
    assert len({first, changed, Checkpoint(other).fingerprint}) == 3


def test_loading_gives_the_same_logits(bloom: BloomForCausalLM, directory: Path) -> None:
    model = Checkpoint(directory).load()
    ids = torch.arange(12)[None]
    assert not model.training
    with torch.no_grad():
        assert model(ids).logits.equal(bloom(ids).logits)
    assert Checkpoint(directory).load(torch.bfloat16).dtype == torch.bfloat16


MT5 = MT5ForConditionalGeneration(MT5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
XLMR = XLMRobertaForMaskedLM(
    XLMRobertaConfig(vocab_size=64, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32)
)


@pytest.mark.parametrize(
    ("model", "architectures"),
    [(XLMR, ["XLMRobertaForMaskedLM"]), (MT5, ["MT5ForConditionalGeneration"]), (MT5, None)],
)
def test_the_class_is_the_one_of_the_family(
    model: PreTrainedModel, architectures: list[str] | None, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=architectures)
    assert type(Checkpoint(tmp_path).load()) is type(model)


def test_a_missing_weight_is_not_drawn_at_random(bloom: BloomForCausalLM, tmp_path: Path) -> None:
    bloom.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.mlp.dense_4h_to_h.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 weights .*h\.1\.mlp\.dense_4h_to_h\.weight"):
        Checkpoint(tmp_path).load()


def test_a_configuration_that_does_not_fit_the_weights(directory: Path) -> None:
    edit_config(directory, hidden_size=64)
    with pytest.raises(InputError, match="transformers cannot load"):
        Checkpoint(directory).load()


def test_an_already_quantized_checkpoint_is_noted(directory: Path) -> None:
    edit_config(directory, quantization_config={"quant_method": "compressed-tensors"})
    assert Checkpoint(directory).notes == ("the checkpoint is already quantized (compressed-tensors)",)


def test_unknown_families_and_their_code(directory: Path) -> None:
    edit_config(directory, model_type="nobody_knows")
    with pytest.raises(InputError, match=r"'nobody_knows', which transformers .* does not know"):
        _ = Checkpoint(directory).config
    edit_config(directory, auto_map={"AutoConfig": "their_code.TheirConfig"})
    (directory / "their_code.py").write_text("raise SystemExit('their code ran')")
    checkpoint = Checkpoint(directory)
    assert len(list(checkpoint.stream())) == len(checkpoint.tensors)
    with pytest.raises(InputError, match="trust_remote_code"):
        _ = checkpoint.config
    edit_config(directory, model_type=None)
    with pytest.raises(InputError, match="trust_remote_code"):
        _ = Checkpoint(directory).config


def test_code_of_a_trusted_model_is_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(directory / "modules"))
    edit_config(directory, model_type="theirs", auto_map={"AutoConfig": "their_code.TheirConfig"})
    (directory / "their_code.py").write_text(
        "from transformers import PretrainedConfig\nclass TheirConfig(PretrainedConfig):\n    model_type = 'theirs'\n"
    )
    assert type(Checkpoint(directory, trust_remote_code=True).config).__name__ == "TheirConfig"


def test_a_configuration_with_an_impossible_entry(directory: Path) -> None:
    edit_config(directory, hidden_size="wide")
    with pytest.raises(InputError, match=r"config\.json is not usable"):
        _ = Checkpoint(directory).config


def test_tokenizer(directory: Path) -> None:
    alphabet = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    backend = Tokenizer(BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
    assert Checkpoint(directory).tokenizer()("שלום")["input_ids"] == [
        alphabet[piece] for piece in "".join(ByteLevel(add_prefix_space=False).pre_tokenize_str("שלום")[0][0])
    ]


@pytest.mark.parametrize("family", ["bloom", "gpt2", "gemma", "mt5", "xglm"])
def test_a_missing_tokenizer_is_an_error(family: str, directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(InputError, match=r"no usable tokenizer .* tokenizer\.json"):
        Checkpoint(directory).tokenizer()
