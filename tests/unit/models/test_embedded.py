"""The embedded model: its files, its languages, and outliers that keep the same function."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomForCausalLM

from fairbits.core.errors import InputError
from fairbits.core.files import cache_directory
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import ASSETS, LANGUAGES, embedded_languages
from fairbits.models.weight_moments import weight_moments
from fairbits.text.detect import Detector
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import find_languages

TINY = ASSETS / "tiny"
TRAINING = Path(__file__).parents[3] / "training"
RECORD = json.loads((TRAINING / "history.json").read_text(encoding="utf-8"))
TRAINED = list(RECORD["tokens"])
CORPUS = udhr(TRAINED)
CODES = list(CORPUS.evaluation)


@pytest.fixture(scope="module")
def model() -> BloomForCausalLM:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@torch.no_grad()
def bits_per_byte(model, tokenizer, documents: tuple[str, ...]) -> float:
    nats = 0.0
    for document in documents:
        ids = torch.tensor([tokenizer.bos_token_id, *tokenizer(document).input_ids])
        nats += float(cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="sum"))
    return nats / math.log(2) / sum(len(document.encode()) for document in documents)


def test_files_are_what_they_are_said_to_be() -> None:
    shards = sorted(TINY.glob("*.safetensors"))
    assert shards
    assert all(shard.stat().st_size <= 15_000_000 for shard in shards)
    tensors = Checkpoint("embedded:tiny").tensors.values()
    assert {info.dtype for info in tensors} == {torch.float16}
    assert sum(info.numel for info in tensors) == pytest.approx(13.6e6, rel=0.01)
    for path in TINY.glob("*.json"):  # whoever trains leaves no trace of a machine
        assert not any(root in path.read_text(encoding="utf-8") for root in ("/home/", "/root/", "/tmp/", "/work/"))


def test_transformers_and_checkpoint_give_the_same_model(model) -> None:
    assert isinstance(model, BloomForCausalLM)
    assert model.lm_head.weight is model.transformer.word_embeddings.weight
    stored = AutoModelForCausalLM.from_pretrained(TINY)
    assert stored.dtype == torch.float16
    loaded = Checkpoint("embedded:tiny").load().state_dict()
    assert loaded.keys() == model.state_dict().keys()
    for name, weights in stored.state_dict().items():
        assert torch.equal(weights.float(), loaded[name])
        assert torch.equal(loaded[name], model.state_dict()[name])


def test_model_and_tokenizer_name_the_same_tokens(model, tokenizer) -> None:
    assert len(tokenizer) == model.config.vocab_size == 16384
    for token in ("bos", "eos", "pad"):
        expected = getattr(tokenizer, f"{token}_token_id")
        assert expected == getattr(model.generation_config, f"{token}_token_id") is not None


@pytest.mark.parametrize("code", CODES)
def test_the_tokenizer_gives_every_text_back(code, tokenizer) -> None:
    for document in (*CORPUS.calibration[code], *CORPUS.evaluation[code], f"  {code}\n\n\tא\u200d🙂 1234 <s>\x00"):
        assert tokenizer.decode(tokenizer(document).input_ids) == document


@pytest.mark.long
def test_the_model_beats_a_unigram_code_in_every_language(model, tokenizer) -> None:
    """The code knows the words of the other half of the same declaration (Krichevsky–Trofimov: counts + ½)."""
    for code in CODES:
        counts = torch.full((len(tokenizer),), 0.5, dtype=torch.float64)
        for document in CORPUS.calibration[code]:
            counts += torch.bincount(torch.tensor(tokenizer(document).input_ids), minlength=len(tokenizer))
        bits = -torch.log2(counts / counts.sum())
        documents = CORPUS.evaluation[code][:3]
        size = sum(len(document.encode()) for document in documents)
        unigram = sum(float(bits[tokenizer(document).input_ids].sum()) for document in documents) / size
        assert bits_per_byte(model, tokenizer, documents) < 0.9 * unigram, code


@pytest.mark.long
@torch.no_grad()
def test_greedy_continuations_are_in_the_language_of_the_prompt(model, tokenizer) -> None:
    article = 3
    prompts = [[tokenizer.bos_token_id, *tokenizer(CORPUS.evaluation[code][article]).input_ids[:24]] for code in CODES]
    ids = torch.tensor(prompts)
    generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
    continuations = tokenizer.batch_decode(generated[:, ids.shape[1] :], skip_special_tokens=True)
    detector = Detector(TRAINED)
    assert [detector.detect(text).language.code for text in continuations] == CODES
    assert len(set(continuations)) == len(CODES)


@pytest.fixture(scope="module")
def card() -> dict[str, list[str]]:
    """The cells of the card's table of languages, by code."""
    lines = (TINY / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    header = next(row for row in rows if row[0] == "language")
    assert header[:6] == ["language", "MB", "share", "held out, nats/token", "udhr, bits/byte", "udhr, nats/token"]
    return {row[0].split("`")[1]: row[1:] for row in rows if "`" in row[0]}


def test_the_card_agrees_with_the_history_of_training(card) -> None:
    assert len(CODES) == 20
    assert card.keys() == set(CODES)
    tokens, last = RECORD["tokens"], RECORD["history"][-1]["held_out"]
    for short, code in zip(TRAINED, CODES, strict=True):
        assert card[code][1] == f"{100 * tokens[short] / sum(tokens.values()):.1f} %"
        assert card[code][2] == f"{last[short]:.2f}"


@pytest.mark.long
@pytest.mark.parametrize("code", ["eng_Latn", "heb_Hebr", "zho_Hans"])
def test_the_card_agrees_with_a_fresh_measurement(code, card, model, tokenizer) -> None:
    measured, low, high = (float(cell) for cell in card[code][3].rstrip(")").replace(" (", "–").split("–"))
    assert bits_per_byte(model, tokenizer, CORPUS.evaluation[code]) == pytest.approx(measured, abs=0.002)
    assert low < measured < high


def test_the_card_names_no_place_outside_the_project() -> None:
    text = (TINY / "README.md").read_text(encoding="utf-8")
    assert not any(root in text for root in ("/home/", "/root/", "/tmp/", "/work/", "../"))


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_languages_are_those_of_the_card(name) -> None:
    card = (ASSETS / name / "README.md").read_text(encoding="utf-8")
    line = next(line for line in card.splitlines() if line.startswith("language: ["))
    named = line.removeprefix("language: [").removesuffix("]").split(", ")
    assert {language.code for language in find_languages(named)} == set(embedded_languages(f"embedded:{name}"))
    assert all(f"`{code}`" in card for code in LANGUAGES[name])


def test_every_embedded_model_has_languages() -> None:
    assert {path.parent.name for path in ASSETS.glob("*/config.json")} == LANGUAGES.keys()


def test_other_models_have_none() -> None:
    assert embedded_languages("owner/name") is None
    with pytest.raises(InputError, match="does not name an embedded model"):
        embedded_languages("embedded:huge")


ASKED = {3: 125.0, 7: 148.0, 10: 164.0}
TARGET = "embedded:tiny?outliers=3:125,7:148,10:164"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """An empty cache for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield cache_directory()


@pytest.fixture(scope="module")
def with_outliers(cache) -> Checkpoint:
    checkpoint = Checkpoint(TARGET)
    assert checkpoint.directory.parent == cache
    return checkpoint


@pytest.mark.long
def test_the_kurtosis_is_reached_and_no_other_block_changes(with_outliers) -> None:
    plain, rescaled = (weight_moments(checkpoint).blocks for checkpoint in (Checkpoint("embedded:tiny"), with_outliers))
    for block, (before, after) in enumerate(zip(plain, rescaled, strict=True)):
        if block in ASKED:
            assert after.kappa == pytest.approx(ASKED[block], rel=0.02)
        else:
            assert after.kappa == before.kappa < 10


@torch.no_grad()
def test_logits_are_those_of_the_plain_model(with_outliers) -> None:
    plain = Checkpoint("embedded:tiny")
    tokenizer, models = with_outliers.tokenizer(), (plain.load(), with_outliers.load())
    for code, documents in udhr(["eng", "heb", "hin", "jpn"]).evaluation.items():
        ids = torch.tensor([tokenizer(documents[2]).input_ids])
        expected, got = (model(ids).logits for model in models)
        assert expected.std() > 1  # else anything would be near
        assert (got - expected).abs().max() < 1e-4, code


def test_a_second_opening_writes_nothing(with_outliers, cache) -> None:
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    again = Checkpoint(TARGET)
    assert (again.directory, again.fingerprint) == (with_outliers.directory, with_outliers.fingerprint)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
    assert again.notes
    assert again.fingerprint != Checkpoint("embedded:tiny").fingerprint


@pytest.mark.long
def test_threads_that_open_it_at_once_get_one_whole_model(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = "embedded:tiny?outliers=1:50"
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda _: Checkpoint(target), range(3)))
    assert len({checkpoint.directory for checkpoint in opened}) == 1
    assert len({checkpoint.fingerprint for checkpoint in opened}) == 1
    assert list(cache_directory().iterdir()) == [opened[0].directory]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("embedded:huge?outliers=3:125", "does not name an embedded model; available: embedded:tiny"),
        ("embedded:tiny?outliers=12:125", "block is 12; it must be 0 to 11"),
        ("embedded:tiny?outliers=99999999999999999999:125", "block is 99999999999999999999; it must be 0 to 11"),
        ("embedded:tiny?outliers=3:125,3:125", "names block 3 twice"),
        ("embedded:tiny?outliers=3:high", "'high' in block 3; it must be a number"),
        ("embedded:tiny?outliers=3:-125", "κ of block 3 is -125; it must be finite, above 0"),
        ("embedded:tiny?outliers=3:0", "κ of block 3 is 0; it must be finite, above 0"),
        ("embedded:tiny?outliers=3:1e300", "block 3"),
        ("embedded:tiny?outliers=3=125", "must read embedded:tiny\\?outliers=BLOCK:KAPPA"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(target, message, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=message):
        Checkpoint(target)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
