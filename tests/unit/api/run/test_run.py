"""What a run writes and shows."""

import io
import json
import weakref
from collections.abc import Iterator

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from fairbits.api.evaluate import evaluate
from fairbits.api.run import FinishedRun, run
from fairbits.api.run.run_settings import file_name, usual_baselines
from fairbits.cli.run_command import next_steps, run_data, run_tables
from fairbits.core.errors import InputError
from fairbits.core.table import plain, render_tables
from fairbits.evaluation.meaning import SUGGESTED
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.variants import variant
from fairbits.text.included_texts import udhr

SCORES = ("scores.json", "baselines/rtn.json", "baselines/gptq-mix-english.json", "more-bits/3.json")


@pytest.fixture(scope="module")
def alive() -> Iterator[list[int]]:
    """How many models that were loaded before are still in memory when another one is loaded."""
    load, loaded, counts = Checkpoint.load, [], []

    def spy(self: Checkpoint, *args: object, **where: str) -> object:
        counts.append(sum(model_ref() is not None for model_ref in loaded))
        loaded_model = load(self, *args, **where)
        loaded.append(weakref.ref(loaded_model))
        return loaded_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "load", spy)
        yield counts


def test_the_directory_holds_everything(whole, model) -> None:
    files = {str(path.relative_to(whole.directory)) for path in whole.directory.rglob("*") if path.is_file()}
    reports = {"report.html", "report.md", "report.json"}
    expected = {"run.json", "audit.json", "audit.safetensors", "sweep.json", *SCORES, *reports}
    assert {name for name in files if not name.startswith("model/")} == expected
    record = json.loads((whole.directory / "run.json").read_text())
    source = Checkpoint(model)
    assert (record["schema"], record["policy"], record["fingerprint"]) == ("fairbits.run/1", "gptq", source.fingerprint)
    assert record["settings"] | {"bits": 4, "seed": 0, "more_bits": [3], "tokens": 64} == record["settings"]
    assert (
        [baseline["name"] for baseline in record["baselines"]] == ["rtn", "gptq:mix=english"] == list(whole.baselines)
    )
    assert all((whole.directory / baseline["scores"]).is_file() for baseline in record["baselines"])
    assert set(record["hashes"]) == {"calibration", "evaluation"}
    assert record["written"] == Checkpoint(whole.directory / "model").fingerprint == whole.scores.quantized.fingerprint
    assert (
        record["versions"] | {"torch": torch.__version__, "torch threads": str(torch.get_num_threads())}
        == (record["versions"])
    )
    assert {"fairbits", "Python", "transformers", "compressed-tensors", "numpy"} <= set(record["versions"])


def test_scores_are_those_of_the_written_model(whole, model, small) -> None:
    asked = {"languages": small["languages"], "tokens": 128, "sequence": 64}
    again = evaluate(whole.directory / "model", reference=model, **asked)
    assert again.as_bytes() == whole.scores.as_bytes()
    plan = Plan.load(whole.directory / "model" / "plan.json")
    assert plan.results
    assert (plan.settings["bits"], plan.calibration.tokens) == (4, 64)
    assert whole.scores.quantized.size_bytes == plan.size_bytes


def test_the_sweep_has_the_written_model_at_its_own_width(whole) -> None:
    swept = json.loads((whole.directory / "sweep.json").read_text())
    three = Scores.load(whole.directory / "more-bits" / "3.json")
    for code, estimate in whole.scores.frame().by_language().items():
        assert list(swept["damage"][code]) == ["3", "4"]
        assert swept["damage"][code]["4"] == estimate.to_dict()
        assert swept["damage"][code]["3"] == three.frame().language(code).to_dict()
    assert swept["sizes"] == {"3": three.quantized.size_bytes, "4": whole.scores.quantized.size_bytes}


def test_bits_that_a_policy_cannot_have_are_refused_and_an_audit_says_what_it_assumes(model, tmp_path, small) -> None:
    options = small | {"languages": ["fra", "heb"], "group": "tensor", "baselines": []}
    chosen = {"out": tmp_path / "run", "policy": "mixed:rounding=nearest"}
    with pytest.raises(InputError, match="mixed:rounding=nearest at 8 bits: "):
        run(model, **chosen, **options | {"more_bits": (3, 8)})
    assert not (tmp_path / "run").exists()
    finished = run(model, **chosen, **options)
    (audited,) = finished.notes
    assert "per channel" in audited
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["scheme"]["group"] is None
    assert list(json.loads((tmp_path / "run" / "sweep.json").read_text())["sizes"]) == ["3", "4"]
    assert "gptq" not in shown(render_tables(run_tables(finished)))  # there is nothing to compare with


@pytest.mark.parametrize(
    ("policy", "languages", "demo", "expected"),
    [
        ("gptq", ("eng", "heb"), True, ["gptq:mix=english"]),
        ("gptq", ("eng", "heb"), False, ["rtn"]),
        ("gptq", ("fra", "heb"), True, ["rtn"]),  # there is no English
        ("rtn", ("eng", "heb"), False, []),
        ("gptq:mix=english", ("eng", "heb"), True, []),
    ],
)
def test_the_usual_baselines(policy, languages, demo, expected) -> None:
    baselines = usual_baselines(variant(policy), udhr(languages), demo=demo)
    assert [baseline.name for baseline in baselines] == expected


def test_names_of_files_are_safe_and_short() -> None:
    assert file_name("gptq:mix=eng=2+fra=1") == "gptq-mix-eng-2+fra-1"
    assert "/" not in file_name("gptq:mix=../x")
    long = [f"gptq:mix={'+'.join(f'{code}={weight}' for code in ('eng', 'fra') * 40)}" for weight in (1, 2)]
    assert len({file_name(name) for name in long}) == 2
    assert all(len(file_name(name)) < 100 for name in long)


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "options", "loaded"),
    [
        (
            "gptq",
            {"more_bits": (), "baselines": ["rtn"]},
            3,
        ),  # for the audit, reference, and baseline; packed weights are read one by one
        ("allocate:rounding=nearest", {"baselines": []}, 5),  # and to plan, for the model and the other width
        ("rtn", {"baselines": ["protect:k=1:sets=1:rounding=nearest"]}, 4),  # and to plan the baseline
    ],
)
def test_two_copies_of_a_model_are_never_in_memory(model, alive, tmp_path, policy, options, loaded, small) -> None:
    alive.clear()
    run(model, out=tmp_path / "run", policy=policy, **small | options)
    assert (tmp_path / "run" / "sweep.json").exists() == ("more_bits" not in options)
    assert alive == [0] * loaded


def shown(*parts: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def test_the_table_has_the_worst_language_first_and_fits(whole) -> None:
    printed = shown(render_tables(run_tables(whole)))
    assert max(map(cell_len, printed.splitlines())) <= 80
    added = whole.scores.frame().by_language()
    first, last = sorted(added, key=lambda code: -added[code].value)
    assert printed.index(first) < printed.index(last)
    assert "rtn" in printed
    assert f"{whole.scores.quantized.size_bytes / 1e6:,.2f} MB" in printed


def test_why_the_model_is_large_is_said(whole) -> None:
    (note,) = whole.plan_notes
    assert "tensors that are not quantized, in float32 as the model stores them" in note
    assert note in str(run_tables(whole)[-1])
    assert note in run_data(whole)["notes"]


def test_the_mark_follows_the_paired_contrast(whole) -> None:
    contrast = whole.scores.contrast(whole.baselines["rtn"])
    other = FinishedRun(
        whole.directory, "gptq", whole.scores, {"rtn": whole.baselines["rtn"]}, whole.report, {}, whole.notes
    )
    printed = shown(render_tables(run_tables(other))).split("better, worse:")[0]  # the legend
    for code, difference in contrast.differences.items():
        (line,) = (line for line in printed.splitlines() if code in line)
        mark = ("better" if difference.value < 0 else "worse") if contrast.p_holm[code] < 0.05 else code
        assert mark in line
    sure = [code for code, p in contrast.p_holm.items() if p < 0.05]
    assert sum(line.rstrip().endswith(("better", "worse")) for line in printed.splitlines()) == len(sure)


def test_what_comes_next(whole, small) -> None:
    meaning, *advised, page, command = map(plain, next_steps(whole))
    assert meaning == whole.scores.meaning.sentence
    assert bool(advised) is not whole.scores.meaning.acceptable
    assert page == f"report: {whole.directory / 'report.html'}"
    assert command == f"next:   fairbits gate {whole.directory / 'scores.json'} --max-changed {SUGGESTED:g}"
    data = json.loads(json.dumps(run_data(whole)))
    assert data["report"] == str(whole.page)
    assert data["headline"]["worst"]["quantized"]["language"] in small["languages"]
