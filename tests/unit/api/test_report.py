"""The report of a run's directory, and of files that are named."""

import json
import shutil
from pathlib import Path

import pytest

import fairbits
from fairbits.api.report import named_methods, report, run_sources
from fairbits.core.errors import InputError
from fairbits.evaluation.scores import Scores
from fairbits.reports.content import content


def copied(run: Path, to: Path) -> Path:
    """Returns a copy of a run without the weights of its model."""
    return Path(shutil.copytree(run, to, ignore=shutil.ignore_patterns("*.safetensors", "tokenizer*")))


def record(run: Path, baselines: object) -> None:
    """Puts baselines into the record of a run."""
    data = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(data | {"baselines": baselines}))


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return copied(finished_run, tmp_path / "run")


def test_a_directory_and_its_files_give_the_same_numbers(finished_run: Path) -> None:
    whole = report(finished_run).content
    named = fairbits.report(
        finished_run / "scores.json",
        against=[finished_run / "baselines" / "gptq-mix-english.json", finished_run / "baselines" / "rtn.json"],
        audit=finished_run / "audit.json",
        plan=finished_run / "model" / "plan.json",
        sweep=finished_run / "sweep.json",
    ).content
    for part in ("languages", "blocks", "patterns", "causes", "checklist", "certificate", "allocation", "curves"):
        assert whole[part] == named[part]
    assert whole["headline"]["worst"] == named["headline"]["worst"]
    assert named["methods"] == whole["methods"]


def test_groups_of_languages_are_in_every_form(finished_run: Path) -> None:
    assert report(finished_run).content["groups"] is None
    assert "Groups of languages" not in report(finished_run).markdown() + report(finished_run).html()
    scores = Scores.load(finished_run / "scores.json")
    first, *others = scores.languages
    grouped = report(finished_run, groups={"high": [first], "low": others})
    damage = scores.with_groups({"high": [first], "low": others}).group_damage()
    high, low = grouped.content["groups"]["groups"]
    assert (high["languages"], high["methods"][0]["divergence_bits_per_byte"]["ratio"]) == ([first], None)
    assert low["methods"][0]["divergence_bits_per_byte"]["mean"] == damage.means["low"].to_dict()
    ratio = low["methods"][0]["divergence_bits_per_byte"]["ratio"]
    assert ratio == (damage.ratios["low"].to_dict() if damage.ratios else None)
    assert len(low["methods"]) == len(grouped.content["methods"])
    shown = f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else damage.no_ratio
    assert shown in grouped.markdown()
    assert 'id="groups"' in grouped.html()
    with pytest.raises(InputError, match="has no languages"):
        report(finished_run, groups={"high": [], "low": others})


def test_the_same_run_gives_the_same_bytes(finished_run: Path) -> None:
    first, second = report(finished_run), report(finished_run)
    assert [first.render(form) for form in ("html", "md", "json")] == [
        second.render(form) for form in ("html", "md", "json")
    ]


def test_what_a_run_did_not_measure_is_left_out(run: Path) -> None:
    (run / "audit.json").unlink()
    (run / "sweep.json").unlink()
    (run / "model" / "plan.json").unlink()
    report_content = report(run).content
    assert [report_content[part] for part in ("blocks", "curves", "allocation", "prediction")] == [None] * 4
    assert set(report_content["provenance"]["files"]) == {
        "run",
        "scores",
        "scores of gptq:mix=english",
        "scores of rtn",
    }


@pytest.mark.parametrize(
    ("gone", "problem"),
    [
        ("run.json", "has no run.json; a report needs a finished run"),
        ("scores.json", "has no scores.json"),
        ("baselines/rtn.json", "names the scores 'baselines/rtn.json', which is not a file in that directory"),
    ],
)
def test_a_run_that_is_not_finished_is_refused(run: Path, gone: str, problem: str) -> None:
    (run / gone).unlink()
    with pytest.raises(InputError, match=problem):
        report(run)


@pytest.mark.parametrize("baselines", [3, {}, [3], [{"name": "rtn"}], [{"name": "rtn", "scores": "\x00"}], None])
def test_a_damaged_record_of_a_run_is_refused(run: Path, baselines: object) -> None:
    record(run, baselines)
    with pytest.raises(InputError, match=r"baselines|not a file in that directory"):
        report(run)


@pytest.mark.parametrize("name", ["../outside.json", "/dev/zero", "baselines", "link.json", "x" * 5000, "absolute"])
def test_a_record_names_no_file_outside(run: Path, name: str) -> None:
    outside = run.parent / "outside.json"
    shutil.copy(run / "baselines" / "rtn.json", outside)
    (run / "link.json").symlink_to(outside)
    record(run, [{"name": "rtn", "scores": str(outside) if name == "absolute" else name}])
    with pytest.raises(
        InputError, match=r"not a file in that directory|must be the name of a file in the directory of the run"
    ):
        report(run)


def test_versions_of_the_run_are_shown_where_they_are_others(run: Path) -> None:
    here = content(run_sources(run))["provenance"]["versions"]
    assert "measured with" not in here
    data = json.loads((run / "run.json").read_text())
    odd = {"versions": here | {"numpy": "<b>1.0" + "0" * 99, "torch threads": "2", "unknown": "3"}}
    (run / "run.json").write_text(json.dumps(data | odd))
    versions = content(run_sources(run))["provenance"]["versions"]
    assert versions == here | {"measured with": f"numpy <b>1.0{'0' * 34}, torch threads 2"}


def names(*files: Path) -> list[str]:
    return [method.name for method in named_methods([Scores.load(file) for file in files], None)]


def test_files_are_called_as_their_policies(finished_run: Path, run: Path) -> None:
    gptq, rtn, english = (
        finished_run / name for name in ("scores.json", "baselines/rtn.json", "baselines/gptq-mix-english.json")
    )
    assert names(gptq, rtn, english) == ["gptq", "rtn", "gptq:mix=english"]
    target = Scores.load(rtn).quantized.target
    assert names(gptq, rtn, rtn) == ["gptq", target, target]  # one name for two would tell nothing
    bench = run / "bench.json"
    reference = Scores.load(gptq).reference.target
    for recorded_target, called in (
        (f"{reference}, protect:k=2, 3 bits", "protect:k=2"),
        ("protect:k=2, 3 bits", "protect:k=2, 3 bits"),  # not of a bench
        ("x" * 5000, "x" * 5000),
    ):
        data = json.loads(rtn.read_text())
        data["quantized"]["target"] = recorded_target
        bench.write_text(json.dumps(data))
        assert names(gptq, bench) == ["gptq", called]


@pytest.mark.parametrize("odd", [{"fingerprint": "0" * 64}, {"size_bytes": 1}, {"schema": "x"}, {"settings": 3}])
def test_a_plan_of_something_else_names_nothing(run: Path, odd: dict) -> None:
    data = json.loads((run / "scores.json").read_text())
    data["quantized"]["target"] = str(run / "model")
    (run / "scores.json").write_text(json.dumps(data))
    plan = json.loads((run / "model" / "plan.json").read_text())
    (run / "model" / "plan.json").write_text(json.dumps(plan | odd))
    assert names(run / "scores.json") == [str(run / "model")]


def test_a_directory_is_given_alone(run: Path) -> None:
    with pytest.raises(InputError, match="give no other files"):
        report(run, audit=run / "audit.json")
