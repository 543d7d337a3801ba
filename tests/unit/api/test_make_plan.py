"""The step that makes plans: evidence is gathered when a policy asks, and only then."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairbits.api.audit import audit
from fairbits.api.make_plan import plan
from fairbits.core.errors import InputError
from fairbits.core.table import render_tables
from fairbits.forward.tokenize import count_tokens, tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.plan import LayerResult, Plan, bits_per_weight
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

SMALL = {"languages": ["eng", "he"], "tokens": 64, "sequence": 32}


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


def shown(quantization_plan: Plan, checkpoint: Checkpoint) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_tables(quantization_plan.tables(checkpoint)))
    return console.export_text()


def test_the_default_is_gptq_in_the_models_own_languages(tiny: Checkpoint) -> None:
    gptq_plan = plan(tiny)
    assert gptq_plan.policy == "gptq"
    assert len(gptq_plan.languages) == 20
    assert gptq_plan.languages["heb_Hebr"] == pytest.approx(0.05)
    assert gptq_plan.calibration is not None
    assert gptq_plan.calibration.hashes == udhr(gptq_plan.languages).hashes["calibration"]
    assert (gptq_plan.calibration.tokens, gptq_plan.calibration.sequence, gptq_plan.calibration.seed) == (4096, 512, 0)
    assert {layer.bits for layer in gptq_plan.quantized} == {4}
    assert {scheme.group for scheme in gptq_plan.schemes.values()} == {128}
    assert gptq_plan.fingerprint == tiny.fingerprint


def test_a_policy_without_text_reads_none(tiny: Checkpoint) -> None:
    stages: list[str] = []
    rtn_plan = plan(tiny, policy="rtn", bits=3, progress=lambda what, *_: stages.append(what))
    assert stages == []
    assert rtn_plan.languages == {}
    assert rtn_plan.calibration is None
    assert rtn_plan.size_bytes < plan(tiny, policy="rtn").size_bytes


def test_a_policy_without_text_takes_it_to_measure_languages(tiny: Checkpoint) -> None:
    rtn_plan = plan(tiny, policy="rtn", languages=["eng", "heb"])
    assert not rtn_plan.reads_text
    assert list(rtn_plan.languages) == ["eng_Latn", "heb_Hebr"]
    assert rtn_plan.calibration is not None


def test_none_is_not_given(tiny: Checkpoint) -> None:
    assert (
        plan(tiny, policy="rtn", bits=None, avg_bits=None, distribution=None).digest == plan(tiny, policy="rtn").digest
    )


def test_kappa_comes_from_weights_or_from_an_audit_of_them(tiny: Checkpoint, audit_data: Any, tmp_path: Path) -> None:
    stages: list[str] = []
    measured = plan(tiny, policy="mixed", tau=1.0, progress=lambda what, *_: stages.append(what), **SMALL)
    assert set(stages) == {"reading weights"}
    assert {layer.bits for layer in measured.quantized} == {4, 8}
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(audit_data(tiny.fingerprint, measured.settings["kappa"])))
    stages.clear()
    from_audit = plan(tiny, policy="mixed", tau=1.0, audit=file, progress=lambda what, *_: stages.append(what), **SMALL)
    assert stages == []
    assert from_audit.layers == measured.layers
    file.write_text(json.dumps(audit_data("0" * 64, measured.settings["kappa"])))
    with pytest.raises(InputError, match="other weights"):
        plan(tiny, policy="mixed", audit=file, **SMALL)
    with pytest.raises(InputError, match="gptq takes nothing from an audit"):
        plan(tiny, audit=file, **SMALL)


def test_kappa_comes_from_an_audit_in_memory(llama: Checkpoint, tiny: Checkpoint) -> None:
    stages: list[str] = []
    options: dict[str, Any] = {
        "policy": "mixed",
        "group": 16,
        **SMALL,
        "progress": lambda what, *_: stages.append(what),
    }
    record = audit(llama, scheme=Scheme(4, 16), **SMALL)
    low, high = sorted(block.kappa for block in record.moments.blocks)
    from_audit = plan(llama, audit=record, tau=(low + high) / 2, **options)
    assert stages == []  # the weights are not read again
    assert from_audit.digest == plan(llama, tau=(low + high) / 2, **options).digest
    assert {layer.bits for layer in from_audit.quantized} == {4, 8}
    with pytest.raises(InputError, match="the audit is of a model with other weights"):
        plan(tiny, audit=record, **options)


def mixed_lengths(*, parallel: bool = False) -> Corpus:
    """Long text of English; of Hebrew a quarter of it."""
    source = udhr(["eng", "heb"]).calibration
    english, hebrew = source["eng_Latn"], [text[:40] for text in source["heb_Hebr"]]
    return Corpus("lengths", {"eng_Latn": english, "heb_Hebr": hebrew}, {}, parallel=parallel)


def shortage(quantization_plan: Plan) -> list[str]:
    return [note for note in quantization_plan.notes if "shorter than the budget" in note]


@pytest.mark.parametrize("policy", ["gptq", "rtn"])
def test_a_plan_says_where_text_is_short(llama: Checkpoint, policy: str) -> None:
    text = mixed_lengths()
    hebrew = count_tokens(tokenize_corpus(llama, text.restrict(["heb"]), request=TextRequest(tokens=800)))["heb_Hebr"]
    assert 100 < hebrew < 720
    short_plan = plan(llama, policy=policy, text=text, tokens=800, group=16)
    note = f"calibration text is shorter than the budget: heb_Hebr {hebrew} of 800 tokens"
    assert shortage(short_plan) == [note]
    assert shortage(plan(llama, policy=policy, text=text, tokens=hebrew, group=16)) == []


def test_parallel_text_is_short_if_the_mean_language_is(llama: Checkpoint) -> None:
    text = mixed_lengths(parallel=True)
    counts = count_tokens(tokenize_corpus(llama, text, request=TextRequest(tokens=10**6)))
    enough = sum(counts.values()) // len(counts)
    assert min(counts.values()) < 0.9 * enough
    assert shortage(plan(llama, text=text, tokens=enough, group=16)) == []
    (note,) = shortage(plan(llama, text=text, tokens=10_000, group=16))
    assert f"heb_Hebr {counts['heb_Hebr']:,} of 10,000 tokens, eng_Latn {counts['eng_Latn']:,}" in note


def test_a_short_english_mix_is_not_at_equal_budget(tiny: Checkpoint) -> None:
    short = shortage(plan(tiny, mix="english"))
    assert short == [
        "calibration text is shorter than the budget: eng_Latn 814 of 81,920 tokens; "
        "mixes are then not compared at equal budgets"
    ]
    (equal,) = shortage(plan(tiny))
    assert "eng_Latn 814 of 4,096 tokens, zho_Hans 873, kor_Hang 1,005, " in equal
    assert equal.endswith(" and 12 more")
    assert "budgets" not in equal
    assert shortage(plan(tiny, policy="rtn")) == []  # which has no text


def test_outliers_decide_mixed_widths() -> None:
    mixed_plan = plan("embedded:tiny?outliers=3:150", policy="mixed", **SMALL)
    assert {layer.block for layer in mixed_plan.quantized if layer.bits == 8} == {3}


def test_allocate_and_protect_find_out_what_they_need(llama: Checkpoint) -> None:
    stages: list[str] = []
    predicted = plan(llama, policy="allocate", avg_bits=4.5, group=16, progress=lambda w, *_: stages.append(w), **SMALL)
    assert set(stages) == {"reading text"}
    assert predicted.settings["sensitivity"]["how"] == "predicted"
    stages.clear()
    protected = plan(llama, policy="protect", k=1, bits=2, group=16, progress=lambda w, *_: stages.append(w), **SMALL)
    assert list(dict.fromkeys(stages)) == ["measuring blocks", "measuring sets of blocks"]
    assert sorted({layer.bits for layer in protected.quantized}) == [2, 8]
    assert len(protected.settings["random"]) == 1
    measured = plan(llama, policy="allocate", avg_bits=4.5, group=16, sensitivity="measured", widths=(4, 8), **SMALL)
    assert measured.settings["sensitivity"]["how"] == "measured"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"}, "policy is 'best'"),
        ({"policy": "rtn", "k": 3}, "rtn does not take k"),
        ({"policy": "rtn", "group": 100}, "1024|256 inputs, which groups of 100 do not divide"),
        ({"tokens": 3}, "tokens is 3"),
        ({"languages": ["xx-none"]}, "xx-none"),
        ({"policy": "allocate", "languages": ["eng"]}, "needs avg_bits"),
        ({"policy": "protect", "k": -1}, "k is -1; it must be 1 to 11"),
        ({"embeddings": 4}, "head and embedding tied"),
        ({"policy": "rtn", "tokens": 3}, "tokens is 3"),
        ({"policy": "rtn", "sequence": 1}, "sequence is 1"),
        ({"policy": "rtn", "seed": -1}, "seed is -1"),
        ({"policy": "rtn", "rounds": 0}, "rounds is 0"),
        ({"policy": "rtn", "device": "abacus"}, "device is 'abacus'"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(tiny: Checkpoint, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(tiny, **options)


def test_a_model_of_unknown_languages_asks_for_them(llama: Checkpoint) -> None:
    with pytest.raises(InputError, match="name the languages"):
        plan(llama, group=16)


def test_plans_survive_the_disk(llama: Checkpoint, tmp_path: Path) -> None:
    protect_plan = plan(llama, policy="protect", k=1, bits=2, group=16, **SMALL)
    protect_plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == protect_plan


def test_the_table_joins_blocks_that_are_alike(tiny: Checkpoint) -> None:
    text = shown(plan(tiny, policy="gateway", k=2, **SMALL), tiny)
    rows = [line.split() for line in text.splitlines()]
    assert [row[:6] for row in rows if row and row[0] in ("0", "1–10", "11")] == [
        ["0", "8", "128", "exact", "mean", "gptq"],
        ["1–10", "4", "128", "exact", "mean", "gptq"],
        ["11", "8", "128", "exact", "mean", "gptq"],
    ]
    assert next(row for row in rows if row and row[0] == "embedding")[:2] == ["embedding", "kept"]
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_counts_bytes(tiny: Checkpoint) -> None:
    rtn_plan = plan(tiny, policy="rtn", bits=8, group="channel")
    text = shown(rtn_plan, tiny)
    rows = [line.split() for line in text.splitlines()]
    listed = sum(int(row[-1].replace(",", "")) for row in rows if row[:1] in (["embedding"], ["0–11"]))
    vectors = sum(info.nbytes for name, info in tiny.tensors.items() if name not in {t.name for t in rtn_plan.layers})
    assert listed + vectors == rtn_plan.size_bytes
    weights = sum(info.nbytes // 2 for info in tiny.tensors.values())
    assert bits_per_weight(rtn_plan, tiny) == pytest.approx(8 * rtn_plan.size_bytes / weights)


def test_the_table_counts_the_bytes_of_embedding_and_head(llama: Checkpoint) -> None:
    rtn_plan = plan(llama, policy="rtn", group=16, embeddings=4)
    rows = [line.split() for line in shown(rtn_plan, llama).splitlines()]
    listed = {row[0]: (row[1], int(row[-1].replace(",", ""))) for row in rows if row[:1] and row[-1][-1:].isdigit()}
    assert (listed["embedding"][0], listed["0–1"][0], listed["head"][0]) == ("8", "4", "4")
    vectors = sum(info.nbytes for name, info in llama.tensors.items() if name not in {t.name for t in rtn_plan.layers})
    assert sum(listed[part][1] for part in ("embedding", "0–1", "head")) + vectors == rtn_plan.size_bytes


def test_the_table_tells_weights_warnings_and_outcomes(tiny: Checkpoint) -> None:
    assert "can destroy the model" in " ".join(shown(plan(tiny, policy="mse"), tiny).split())
    weighted_plan = plan(tiny, mix={"eng": 3, "he": 1}, **SMALL)
    assert "weights of languages: English 75.0%, Hebrew 25.0%" in shown(weighted_plan, tiny)
    error = {"eng_Latn": 0.01, "heb_Hebr": 0.03}
    results = tuple(
        LayerResult(layer.name, 4, 10, (0.1, 0.2, 0.3), 0.005, error, (f"damped by {i}",))
        for i, layer in enumerate(weighted_plan.quantized)
    )
    text = shown(Plan(**{**vars(weighted_plan), "results": results}), tiny)
    row = next(line.split() for line in text.split("\nResults\n")[1].splitlines() if line.strip().startswith("3 "))
    assert row == ["3", "0.2", "0.005", "Hebrew", "0.03"]
    assert "damped by 0 (and 47 similar notes)" in " ".join(text.split())
    assert "damped by 1" not in text
