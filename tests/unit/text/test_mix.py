import json
import os
import re
import resource
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from fairbits.core.errors import InputError
from fairbits.text.corpus import Corpus
from fairbits.text.mix import Mix, Sample, allocate, build_mix, manifest_path, parse_weights, weights_by_code

ENG, FRA, HEB, ZHO = "eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans"


def tokens_of(mix: Mix) -> dict[str, int]:
    return {code: part.tokens for code, part in mix.languages.items()}


def test_equal_tokens_per_language(corpus, tokenizer) -> None:
    mix = build_mix(corpus, tokenizer, tokens=4 * 4 * 128, sequence=128)
    assert tokens_of(mix) == dict.fromkeys((ENG, FRA, HEB, ZHO), 512)
    for sample in mix.samples:
        assert len(tokenizer(sample.text)["input_ids"]) == sample.tokens == 128
        assert sample.text == sample.text.strip()


def test_only_calibration_text_of_the_language_is_used(corpus, tokenizer) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64)
    for sample in mix.samples:
        calibration, evaluation = (
            set("\n".join(split[sample.lang]).split("\n")) for split in (corpus.calibration, corpus.evaluation)
        )
        whole_lines = set(sample.text.split("\n")[1:-1])
        assert whole_lines <= calibration
        assert not whole_lines & (evaluation - calibration)
        assert any(sample.text.split("\n")[0] in line for line in calibration)


def test_nothing_is_used_twice(tokenizer) -> None:
    texts = [f"sentence number {i:04} of a text without end" for i in range(400)]
    mix = build_mix(Corpus("x", {"eng": texts}, {}), tokenizer, tokens=16 * 100, sequence=100)
    numbers = Counter(
        word for sample in mix.samples for word in sample.text.split() if word.isdigit() and len(word) == 4
    )
    assert len(numbers) > 50
    assert numbers.most_common(1)[0][1] == 1


def test_without_a_budget_the_scarcest_language_decides(corpus, tokenizer) -> None:
    scarce = Corpus("x", {**corpus.calibration, ZHO: corpus.calibration[ZHO][:3]}, {})
    mix = build_mix(scarce, tokenizer, sequence=128)
    numbers = {part.samples for part in mix.languages.values()}
    assert len(numbers) == 1
    assert mix.notes[-1] == "no budget given: as many samples as the text of zho_Hans allows"
    with pytest.raises(InputError, match=r"lacks .*zho_Hans 128 tokens"):
        build_mix(scarce, tokenizer, sequence=128, tokens=4 * 128 * (numbers.pop() + 1))


def test_without_a_budget_a_large_text_is_not_used_up(tokenizer) -> None:
    mix = build_mix(Corpus("x", {"eng": ["all human beings"] * 9000}, {}), tokenizer, sequence=32)
    assert len(mix.samples) == 64


def test_proportional_to_the_tokens_of_the_text(corpus, tokenizer) -> None:
    uneven = Corpus("x", {ENG: corpus.calibration[ENG] * 3, FRA: corpus.calibration[FRA][:4]}, {})
    available = {
        code: sum(len(tokenizer(text)["input_ids"]) - 1 for text in texts) for code, texts in uneven.calibration.items()
    }
    mix = build_mix(uneven, tokenizer, weights="proportional", tokens=3000, sequence=50)
    for code, tokens in tokens_of(mix).items():
        assert abs(tokens - 3000 * available[code] / sum(available.values())) <= 50


def test_given_weights(corpus, tokenizer) -> None:
    mix = build_mix(corpus, tokenizer, languages=["en", "he"], weights={"Hebrew": 3, "en": 1}, tokens=800, sequence=50)
    assert tokens_of(mix) == {ENG: 200, HEB: 600}
    assert mix.shares == {ENG: 0.25, HEB: 0.75}


def test_repeats_only_when_allowed_and_says_so(corpus, tokenizer) -> None:
    small = Corpus("x", {FRA: corpus.calibration[FRA][:2], ENG: corpus.calibration[ENG]}, {})
    with pytest.raises(InputError, match=r"lacks fra_Latn [\d,]+ tokens \(it has [\d,]+\): each language"):
        build_mix(small, tokenizer, tokens=3200, sequence=100)
    mix = build_mix(small, tokenizer, tokens=3200, sequence=100, repeat=True)
    assert tokens_of(mix) == {FRA: 1600, ENG: 1600}
    assert list(mix.rounds) == [FRA]
    assert mix.rounds[FRA] >= 2
    assert mix.notes == (f"fra_Latn: text used {mix.rounds[FRA]} times",)
    with pytest.raises(InputError, match="give tokens"):
        build_mix(small, tokenizer, repeat=True)


def test_all_lacking_languages_are_named_at_once(corpus, tokenizer) -> None:
    with pytest.raises(InputError) as caught:
        build_mix(corpus, tokenizer, tokens=10**6)
    assert all(f"{code} " in str(caught.value) for code in (ENG, FRA, HEB, ZHO))


def test_parallel_text_gives_the_same_sections_to_every_language(corpus, tokenizer) -> None:
    mix = build_mix(corpus, tokenizer, languages=[ENG, FRA], tokens=2 * 64, sequence=64, seed=3)
    first = {sample.lang: sample.text.split("\n")[0][:50] for sample in mix.samples}
    sections = {
        code: next(i for i, text in enumerate(corpus.calibration[code]) if text.startswith(first[code]))
        for code in first
    }
    assert sections[ENG] == sections[FRA]


def test_any_first_part_of_the_mix_has_about_its_shares(corpus, tokenizer) -> None:
    mix = build_mix(corpus, tokenizer, languages=[ENG, HEB], weights={ENG: 1, HEB: 3}, tokens=40 * 16, sequence=16)
    for n in range(1, 41):
        hebrew = sum(sample.lang == HEB for sample in mix.samples[:n])
        assert abs(hebrew - 0.75 * n) <= 1.5


def test_fingerprint_follows_the_vocabulary_not_the_padding(corpus, tokenizer) -> None:
    before = build_mix(corpus, tokenizer, sequence=64).tokenizer
    tokenizer.backend_tokenizer.enable_truncation(64)
    assert build_mix(corpus, tokenizer, sequence=64).tokenizer == before
    tokenizer.backend_tokenizer.no_truncation()
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()))
    other.add_tokens(["declaration"])
    assert build_mix(corpus, other, sequence=64).tokenizer != before


def test_progress_rises_to_the_number_of_languages(corpus, tokenizer) -> None:
    calls: list[tuple[str, float, float]] = []
    build_mix(corpus, tokenizer, sequence=64, tokens=4 * 3 * 64, progress=lambda *call: calls.append(call))
    assert [round(done, 2) for _, done, _ in calls] == [round((i + 1) / 3, 2) for i in range(12)]
    assert {(stage, total) for stage, _, total in calls} == {("cutting samples", 4)}


def test_a_tokenizer_in_python_gives_texts_of_the_same_length(corpus, tokenizer) -> None:
    class Slow:
        """The same tokens without the places where they end, as in a tokenizer without a backend."""

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": tokenizer(text)["input_ids"]}

        def get_vocab(self) -> dict[str, int]:
            return tokenizer.get_vocab()

    slow = build_mix(corpus, Slow(), tokens=4 * 3 * 100, sequence=100)
    assert tokens_of(slow) == tokens_of(build_mix(corpus, tokenizer, tokens=4 * 3 * 100, sequence=100))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": "fair"}, "must be one of equal, proportional"),
        ({"weights": {ENG: 1}}, "must name each of eng_Latn, fra_Latn, heb_Hebr, zho_Hans once"),
        ({"weights": {"eng": 1, "en": 1, FRA: 1, HEB: 1, ZHO: 1}}, "must name each of"),
        ({"weights": {ENG: 0, FRA: 1, HEB: 1, ZHO: 1}}, "weight of eng_Latn is 0"),
        ({"weights": {ENG: 1e-9, FRA: 1, HEB: 1, ZHO: 1}, "tokens": 2048}, "gives no whole sample .* to eng_Latn;"),
        ({"weights": {ENG: 1e-9, FRA: 1, HEB: 1, ZHO: 1}}, "gives no whole sample .* to eng_Latn;"),
        ({"tokens": 300}, "budget of 300 tokens gives no whole sample of 512"),
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": 2.5}, "tokens is 2.5"),
        ({"tokens": 10**30}, "tokens is 1000.*; it must be 1 to 1000000000000"),
        ({"sequence": 5}, "sequence is 5; it must be 9 to 1000000000000"),
        ({"sequence": 10**6}, "gives no whole sample of 1,000,000 tokens"),
        ({"seed": -1}, "seed is -1"),
        ({"languages": ["deu"]}, "no text in deu_Latn"),
        ({"languages": []}, "no calibration text"),
    ],
)
def test_bad_wishes_are_refused(corpus, tokenizer, options, reason) -> None:
    with pytest.raises(InputError, match=reason):
        build_mix(corpus, tokenizer, **options)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 500))
def test_allocation_is_within_one_sample_of_every_share(weights, samples) -> None:
    pi = {str(i): Fraction(weight, sum(weights)) for i, weight in enumerate(weights)}
    counts = allocate(pi, samples)
    assert sum(counts.values()) <= samples
    assert all(abs(counts[code] - pi[code] * samples) < 1 for code in pi)
    assert len({(pi[code], counts[code]) for code in pi}) == len(set(pi.values()))  # equal shares, equal counts
    if len(set(weights)) == len(weights) and len({pi[code] * samples % 1 for code in pi}) == len(pi):
        assert sum(counts.values()) == samples


def test_weights_that_name_a_language_twice() -> None:
    with pytest.raises(InputError, match="name eng twice"):
        parse_weights("eng=1,fra=2,eng=3")


@pytest.mark.parametrize("text", ["eng=x", "eng", "", "eng=1;fra=2", "eng=1,,fra=2"])
def test_weights_that_cannot_be_read(text) -> None:
    with pytest.raises(InputError, match="a number per language"):
        parse_weights(text)


def test_weights_as_users_write_them() -> None:
    assert parse_weights("proportional") == "proportional"
    assert parse_weights("eng=2, fra=0.5") == {"eng": 2.0, "fra": 0.5}


ENG, FRA, HEB, ZHO = "eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans"


def test_same_input_same_bytes_and_another_seed_another_mix(corpus, tokenizer, tmp_path) -> None:
    mixes = [build_mix(corpus, tokenizer, sequence=64, seed=seed) for seed in (5, 5, 6)]
    for i, mix in enumerate(mixes):
        mix.save(tmp_path / f"{i}.jsonl")
    first, second, third = ((tmp_path / f"{i}.jsonl").read_bytes() for i in range(3))
    assert first == second != third
    manifests = [manifest_path(tmp_path / f"{i}.jsonl").read_bytes() for i in range(2)]
    assert manifests[0] == manifests[1]
    assert sorted(path.name for path in tmp_path.iterdir())[:2] == ["0.jsonl", "0.jsonl.manifest.json"]


def test_saved_and_loaded(corpus, tokenizer, tmp_path) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64)
    mix.save(tmp_path / "calib.jsonl")
    assert Mix.load(tmp_path / "calib.jsonl") == mix
    rows = [json.loads(line) for line in (tmp_path / "calib.jsonl").read_text(encoding="ascii").splitlines()]
    assert [Sample(**row) for row in rows] == list(mix.samples)
    manifest = json.loads((tmp_path / "calib.jsonl.manifest.json").read_text())
    assert manifest["schema"] == "fairbits.mix/1"
    assert manifest["hashes"] == corpus.hashes["calibration"]
    assert manifest["short_samples"] == 0
    assert manifest["languages"][HEB]["tokens"] == 64 * manifest["languages"][HEB]["samples"]


def test_a_changed_mix_is_not_loaded(corpus, tokenizer, tmp_path) -> None:
    path = tmp_path / "calib.jsonl"
    build_mix(corpus, tokenizer, sequence=64).save(path)
    content, manifest = path.read_bytes(), json.loads(manifest_path(path).read_text())

    def refused() -> str:
        with pytest.raises(InputError) as caught:
            Mix.load(path)
        return str(caught.value)

    path.write_bytes(content.replace(b"human", b"woman"))
    assert "does not match calib.jsonl.manifest.json" in refused()
    path.write_bytes(content)
    manifest_path(path).write_text(json.dumps(manifest | {"schema": "fairbits.mix/9"}))
    assert "has the schema 'fairbits.mix/9'; it must be fairbits.mix/1: update fairbits" in refused()
    manifest_path(path).write_text(json.dumps({key: value for key, value in manifest.items() if key != "seed"}))
    assert "is damaged: seed is missing; write it again with fairbits mix" in refused()
    manifest_path(path).write_text("{")
    assert "is not valid JSON" in refused()
    manifest_path(path).unlink()
    assert "cannot be read" in refused()


def test_a_mix_that_cannot_be_written(corpus, tokenizer, tmp_path) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    (tmp_path / "x.jsonl.manifest.json").mkdir()
    for name, reason in {
        "nowhere/calib.jsonl": "nowhere is not a directory",
        "": "is not a regular file",
        "pipe": "is not a regular file",
        "x.jsonl": "manifest.json is not a regular file",
        "link": "cannot be written",
        245 * "x": "cannot be written (File name too long)",
    }.items():
        with pytest.raises(InputError, match=re.escape(reason)):
            mix.save(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "x.jsonl.manifest.json"]


def test_a_full_disk_leaves_the_mix_that_was_there(corpus, tokenizer, tmp_path) -> None:
    path = tmp_path / "calib.jsonl"
    small, large = (build_mix(corpus, tokenizer, sequence=64, tokens=n * 4 * 64) for n in (1, 8))
    small.save(path)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(small.jsonl) + 100, hard))
    try:
        with pytest.raises(InputError, match=r"calib.jsonl cannot be written \(File too large\)"):
            large.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    assert Mix.load(path) == small
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_is_followed(corpus, tokenizer, tmp_path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "calib.jsonl")
    mix = build_mix(corpus, tokenizer, sequence=64)
    mix.save(tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert Mix.load(tmp_path / "link.jsonl") == Mix.load(tmp_path / "calib.jsonl") == mix


def test_the_model_and_what_is_to_be_known_of_it_are_recorded(corpus, tokenizer, tmp_path) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64, model="m.gguf", notes=["the reference is itself quantized"])
    mix.save(tmp_path / "calib.jsonl")
    manifest = json.loads((tmp_path / "calib.jsonl.manifest.json").read_text())
    assert manifest["model"] == "m.gguf"
    assert manifest["notes"] == ["the reference is itself quantized", *corpus.notes, mix.notes[-1]]
    assert build_mix(corpus, tokenizer, sequence=64).model is None


def test_weights_may_name_languages_in_any_way():
    weights = weights_by_code({"fr": 1.0, "English": 2.0}, ["eng_Latn", "fra_Latn"])
    assert weights == {"eng_Latn": 2.0, "fra_Latn": 1.0}
