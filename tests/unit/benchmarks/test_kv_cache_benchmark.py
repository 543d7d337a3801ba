"""The tables of KV caches by language: a column for every type, the worst language with its name, bounds named."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.measurement import BOUND, Measurement
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from kv_cache import Place, context, in_order, table

CHANGED = {"eng_Latn": 1, "fin_Latn": 3}  # of 100 tokens in every window


def write_scores(file: Path, *, windows: int, served: bool = False) -> None:
    """Writes scores whose windows are all alike, so that intervals have no width."""
    lang = np.repeat(list(CHANGED), windows)
    count = len(lang)
    changed = np.array([float(CHANGED[code]) for code in lang])
    documents = DocumentScores(
        lang=lang,
        document=np.arange(count),
        tokens=np.full(count, 100.0),
        bytes=np.full(count, 400.0),
        nll_reference=np.full(count, 300.0),
        nll_quantized=np.full(count, 300.0),
        kl=0.4 * np.log(2) * changed,  # 0.001 bits per byte for every changed token
        flips=changed,
    )
    percentiles = dict.fromkeys(CHANGED, TokenPercentiles(0.25, 0.01, 0.12, 0.4, -0.05, -1.5))
    Scores(
        quantized=Identity("m", "f" * 64, 1),
        reference=Identity("m", "e" * 64, 1),
        setting=EvaluationSetting("causal", "text", "evaluation", False, dict.fromkeys(CHANGED, "0" * 64), 600, 100, 0),
        languages=tuple(CHANGED),
        documents=documents,
        percentiles={} if served else percentiles,
        measurement=Measurement("vLLM", kl=BOUND, top=20) if served else None,
    ).save(file)


def test_what_is_measured_is_shown_by_language_and_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, "models/m-0.5")
    write_scores(place.scores(512, "nvfp4"), windows=6)
    write_scores(place.scores(512, "fp8_e4m3"), windows=6)
    write_scores(place.scores(512, "served-auto"), windows=6, served=True)
    write_scores(place.scores(4096, "fp8_e4m3"), windows=1)
    table(argparse.Namespace(out=tmp_path))
    text = capsys.readouterr().out
    parts = text.split("**")
    summary, here, kl, served, bound, long, _ = parts[2::2]
    assert "| type | 512: worst | 512: English | 512: mean | 4,096: worst | 4,096: English | 4,096: mean |" in summary
    assert "| fp8_e4m3 | 3.0 Finnish (3.0–3.0) | 1.0 (1.0–1.0) | 2.0 (2.0–2.0) | 3.0 Finnish (–) |" in summary
    assert "| language | fp8_e4m3 | nvfp4 |" in here
    assert "| Finnish | 3.0 (3.0–3.0) | 3.0 (3.0–3.0) |" in here
    assert "| mean | 2 (2–2) | 2 (2–2) |" in kl
    assert "| language | served-auto |" in served
    assert "| worst | 3 Finnish (3–3) |" in bound
    assert "| Finnish | 3.0 (–) |" in long
    assert [title for title in parts[1::2] if "lower bounds" in title] == [parts[9]]
    rows = (tmp_path / "kv_cache.csv").read_text("utf-8").splitlines()
    assert len(rows) == 1 + 4 * (len(CHANGED) + 2)
    assert "m-0.5,512,fp8_e4m3,worst,1200,fin_Latn,3,3,3,fin_Latn,3,3,3,whole vocabulary" in rows
    assert "m-0.5,4096,fp8_e4m3,fin_Latn,100,fin_Latn,3,,,fin_Latn,3,,,whole vocabulary" in rows


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    place = Place(tmp_path, "embedded:tiny")
    place.scores(512, "nvfp4").write_text("{}")
    assert place.missing(512, ["fp8_e4m3", "nvfp4"]) == ["fp8_e4m3"]
    assert place.missing(4096, ["nvfp4"]) == ["nvfp4"]


def test_contexts_and_the_order_of_types() -> None:
    assert (context("4096"), context("64:1024")) == ((4096, 32_768), (64, 1024))
    assert in_order({"served-auto", "q8_0", "nvfp4", "fp8_e4m3"}) == ["fp8_e4m3", "nvfp4", "served-auto", "q8_0"]
