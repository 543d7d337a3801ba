"""lm-eval itself, on the tasks that fairbits writes, before and after quantization; `make test-lmeval` installs it."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import fairbits as fb
from fairbits.core.units import bits_per_byte
from fairbits.evaluation.lm_eval.paired_samples import pair_samples
from fairbits.evaluation.lm_eval.sample_files import find_run
from fairbits.models.embedded import ASSETS

LM_EVAL = Path(os.environ.get("FAIRBITS_LM_EVAL", "none"))
LANGUAGES = ["eng", "heb", "zho"]
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")

pytestmark = pytest.mark.skipif(not LM_EVAL.is_file(), reason="lm-eval is not installed: make test-lmeval")


@pytest.fixture(scope="module")
def text() -> fb.Corpus:
    """Returns 6 sections of the declaration, each short enough for one window."""
    whole = fb.udhr(LANGUAGES)
    short = {code: tuple(document[:400] for document in texts[:6]) for code, texts in whole.evaluation.items()}
    return fb.Corpus("short", {}, short)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Path:
    """Returns the embedded model in 2 bits."""
    out = tmp_path_factory.mktemp("model") / "w2"
    fb.quantize("embedded:tiny", fb.plan("embedded:tiny", policy="rtn", bits=2, group=32), out=out)
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text, quantized) -> tuple[Path, Path]:
    """Returns the directories of two runs of lm-eval: of the embedded model, and of the quantized one."""
    here = tmp_path_factory.mktemp("lm-eval")
    tasks = fb.write_tasks(here / "tasks", text=text)
    for name, model in (("before", ASSETS / "tiny"), ("after", quantized)):
        command = [LM_EVAL.absolute(), "--model", "hf", "--model_args", f"pretrained={model},dtype=float32"]
        command += ["--include_path", tasks.directory, "--tasks", ",".join(tasks.groups.values()), "--device", "cpu"]
        command += ["--batch_size", "4", "--log_samples", "--output_path", here / name]
        environment = {**os.environ, **OFFLINE, "HF_HOME": str(here / "cache"), "PYTHONPATH": ""}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=here, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    return here / "before", here / "after"


@pytest.mark.parametrize(("kind", "metric"), [("bpb", "bits_per_byte"), ("cloze", "acc")])
def test_scores_are_those_that_lm_eval_reports(runs, kind, metric) -> None:
    paired = pair_samples(*runs, tasks=f"fairbits_{kind}_*")
    assert paired.metric.name == metric
    assert paired.notes == ()
    for side, run in enumerate(map(find_run, runs)):
        results = json.loads(next(run.directory.glob("results_*.json")).read_text("utf-8"))["results"]
        for code, scores in paired.scores.items():
            assert scores[side] == pytest.approx(results[f"fairbits_{kind}_{code}"][f"{metric},none"], rel=1e-9)


def test_tasks_that_fairbits_computes_are_those_of_lm_eval(runs, tmp_path) -> None:
    """Computed by fairbits and by lm-eval, the same model has the same items, and loses nothing."""
    out = tmp_path / "before"
    fb.evaluate_tasks("embedded:tiny", runs[0].parent / "tasks", out=out, device="cpu")
    mine, theirs = (find_run(directory) for directory in (out, runs[0]))
    assert mine.samples.keys() == theirs.samples.keys()
    for task in mine.samples:
        ours, lm_eval = (json.loads(run.samples[task].read_text("utf-8").splitlines()[0]) for run in (mine, theirs))
        assert list(ours) == list(lm_eval)
        numbers = ("resps", "filtered_resps", "bits_per_byte")
        assert [ours[key] for key in ours if key not in numbers] == [lm_eval[key] for key in ours if key not in numbers]
    for kind, metric in (("bpb", "bits_per_byte"), ("cloze", "acc")):
        losses = fb.gate_samples(runs[0], out, tasks=f"fairbits_{kind}_*").languages
        assert [row.loss.value for row in losses] == pytest.approx([0.0] * len(losses), abs=1e-5), metric


def test_bits_per_byte_are_those_of_evaluate(runs, text, quantized) -> None:
    """Every document is one window that begins with the start token in both, so that only rounding differs."""
    paired = pair_samples(*runs, tasks="fairbits_bpb_*")
    documents = fb.evaluate(quantized, reference="embedded:tiny", text=text, tokens=100_000, device="cpu").documents
    for code, scores in paired.scores.items():
        rows = documents.lang == code
        assert rows.sum() == 6
        for nats, score in zip((documents.nll_reference, documents.nll_quantized), scores, strict=True):
            expected = bits_per_byte(nats[rows].sum(), documents.bytes[rows].sum())
            print(f"{code}: lm-eval {score:.7f}, fairbits {expected:.7f} bits per byte")
            assert score == pytest.approx(expected, rel=1e-5)


def test_two_bits_are_significantly_worse_in_every_language(runs) -> None:
    gate = fb.gate_samples(*runs, tasks="fairbits_bpb_*")
    assert [check.outcome for check in gate.verdict.checks] == ["fail", "fail"]
    assert all(row.loss.low > 0 for row in gate.languages)
    assert np.isfinite(gate.worst[1].high)
    assert fb.gate_samples(runs[0], runs[0], tasks="fairbits_cloze_*").verdict.passed
