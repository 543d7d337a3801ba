"""The content of a report: every number is the one that was measured."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbits.auditing.audit_file import AUDIT
from fairbits.core.errors import InputError
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.meaning import SIGNIFICANT
from fairbits.evaluation.scores import Scores
from fairbits.reports.content import Report, check_name, content, report_format
from fairbits.reports.headline import origin
from fairbits.reports.sources import RUN, SWEEP, Method, Sources

KINDS = {"audit": AUDIT, "sweep": SWEEP, "run": RUN}
METHODS = ("gptq", "gptq:mix=english", "rtn")
SCALES = {f"{measure}_{unit}": {"measure": measure, "unit": unit} for measure in MEASURES for unit in UNITS}
CHANGED, FIRST = "changed_of_100", "divergence_bits_per_byte"


@pytest.fixture
def harmed(sources: Sources) -> Callable[..., Sources]:
    """Returns the function that makes scores in which given languages are damaged five times as much as others."""

    def harmed(*, after: str = "", before: str = "") -> Sources:
        def of(code: str, seed: int) -> Scores:
            documents = sources.after.documents
            noise = np.random.default_rng(seed).normal(1, 0.1, len(documents.lang))
            added = np.where(documents.lang == code, 1.0, 0.2) * noise * documents.bytes / 100
            return replace(
                sources.after, documents=replace(documents, nll_quantized=documents.nll_reference + added, kl=added)
            )

        return Sources((Method("new", of(after, 1)), Method("old", of(before, 2))))

    return harmed


def test_every_number_of_a_language_is_that_of_its_scores(report_content, sources) -> None:
    assert [method["name"] for method in report_content["methods"]] == list(METHODS)
    assert report_content["units"] == [CHANGED, *SCALES]
    for row in report_content["languages"]:
        code = row["code"]
        in_language = sources.after.documents.lang == code
        assert row["documents"] == in_language.sum()
        assert row["tokens"] == sources.after.documents.tokens[in_language].sum()
        for cost, method in zip(row["methods"], sources.methods, strict=True):
            for scale, kind in SCALES.items():
                assert cost["damage"][scale] == method.scores.frame(**kind).by_language()[code].to_dict()
            changed = method.scores.flips[code].transform(lambda share: 100 * share)
            assert cost["damage"][CHANGED] == changed.to_dict()
            assert cost["kl"] == method.scores.kl[code].to_dict()
            assert cost["flips"] == method.scores.flips[code].to_dict()
            assert cost["added_words"] == method.scores.added_words[code].to_dict()
            assert cost.items() >= asdict(method.scores.percentiles[code]).items()
            assert cost["kl_p50"] < cost["kl_p95"] < cost["kl_p99"] < cost["kl_p99_9"]
            assert cost["margin_p1"] < cost["margin_p50"]
            assert cost["relative_perplexity"] == method.scores.relative_perplexity[code].to_dict()
    for scale, kind in SCALES.items():
        contrast = sources.after.contrast(sources.before, **kind)
        assert {row["code"]: row["p_holm"][scale] for row in report_content["languages"]} == contrast.p_holm
        for row in report_content["languages"]:
            assert row["difference"][scale] == contrast.differences[row["code"]].to_dict()
    values = [row["methods"][0]["damage"][CHANGED]["value"] for row in report_content["languages"]]
    assert values == sorted(values, reverse=True)


def test_languages_are_described(report_content) -> None:
    hebrew = next(row for row in report_content["languages"] if row["code"] == "heb_Hebr")
    assert (hebrew["name"], hebrew["autonym"], hebrew["script"]) == ("Hebrew", "עברית", "Hebr")
    assert (hebrew["right_to_left"], hebrew["family"]) == (True, "Afro-Asiatic")


def test_the_headline_is_the_disparity_of_the_first_two_methods(report_content, sources) -> None:
    for side, scores in (("quantized", sources.after), ("baseline", sources.before)):
        expected = scores.disparity().as_data()
        for name in ("worst", "mean", "gap"):
            assert report_content["headline"][name][side] == expected[name]
        code, changed = scores.changed_frame.worst()
        worst = report_content["headline"]["changed"]["worst"][side]
        assert (worst["language"], worst["value"]) == (code, pytest.approx(100 * changed.value))
        assert report_content["headline"]["size"][side] == scores.quantized.size_bytes
    assert report_content["headline"]["size"]["reference"] == sources.after.reference.size_bytes


def test_verdicts_are_those_of_every_scale(harmed) -> None:
    """They need not agree: documents weigh otherwise in another unit."""
    report_content = content(harmed(before="heb_Hebr", after="swh_Latn"))
    verdicts = {row["code"]: row["verdict"] for row in report_content["languages"]}
    assert verdicts["heb_Hebr"] == dict.fromkeys(SCALES, "less") | {CHANGED: None}
    assert set(verdicts["swh_Latn"].values()) == {"more", None}
    for name, verdict in (("better", "less"), ("worse", "more")):
        assert set(report_content["headline"][name]) == {code for code in verdicts if verdicts[code][FIRST] == verdict}
    for row in report_content["languages"]:
        for scale in SCALES:
            sign = {"less": -1, "more": 1, None: 0}[row["verdict"][scale]]
            assert sign == np.sign(row["difference"][scale]["value"]) * (row["p_holm"][scale] < SIGNIFICANT)


def test_damage_by_loss_alone_changes_no_headline(harmed, sources) -> None:
    """The headline goes by the divergence; what the loss says stands next to it."""
    harmed_sources = harmed(before="heb_Hebr")
    loss = [replace(method.scores.documents, kl=sources.after.documents.kl) for method in harmed_sources.methods]
    methods = tuple(
        replace(method, scores=replace(method.scores, documents=documents))
        for method, documents in zip(harmed_sources.methods, loss, strict=True)
    )
    report_content = content(replace(harmed_sources, methods=methods))
    assert (report_content["headline"]["better"], report_content["headline"]["worse"]) == ([], [])
    hebrew = next(row for row in report_content["languages"] if row["code"] == "heb_Hebr")
    assert (hebrew["verdict"][FIRST], hebrew["verdict"]["loss_bits_per_byte"]) == (None, "less")


def test_significant_help_is_said(harmed) -> None:
    headline = content(harmed(before="heb_Hebr"))["headline"]
    assert headline["better"] == ["heb_Hebr"]
    assert headline["worse"] == []
    assert headline["sentences"][1:] == [
        "new against old, same size: 1 of 4 languages is closer to the reference model with new, none further away."
    ]


def test_significant_harm_is_said(harmed) -> None:
    headline = content(harmed(after="heb_Hebr"))["headline"]
    assert (headline["better"], headline["worse"]) == ([], ["heb_Hebr"])
    assert headline["sentences"][1:] == [
        "new against old, same size: none of 4 languages are closer to the reference model with new, "
        "1 further away (Hebrew)."
    ]


def test_the_first_sentence_is_what_the_scores_mean(report_content, sources) -> None:
    headline = report_content["headline"]
    assert headline["sentences"][0] == headline["meaning"]["sentence"] == sources.after.meaning.sentence
    assert headline["sentences"][1].startswith("gptq on an equal mix against gptq on English, same size: ")
    assert "→" not in "".join(headline["sentences"])
    acceptable = replace(sources.after.documents, flips=np.zeros_like(sources.after.documents.flips))
    spared = replace(sources, methods=(Method("gptq", replace(sources.after, documents=acceptable)),))
    assert content(spared)["headline"]["advice"] is None
    lost = replace(sources.after.documents, flips=np.floor(0.9 * sources.after.documents.tokens))
    harmed = replace(sources, methods=(Method("gptq", replace(sources.after, documents=lost)),))
    assert content(harmed)["headline"]["advice"] == "--policy fair, --group 32, --bits 8"


def test_a_path_is_not_in_the_comparison(sources) -> None:
    target = sources.after.quantized.target
    sentences = content(Sources((Method(target, sources.after), *sources.methods[1:2])))["headline"]["sentences"]
    assert sentences[1].startswith("This model against gptq on English, same size: ")
    assert " closer to the reference model with it, " in sentences[1]
    assert target not in "".join(sentences)


def test_how_weights_of_other_tools_are_stored(sources) -> None:
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    report_content = content(Sources((Method("m", sources.after),), config=config))
    assert origin(report_content) == "4 bits per weight, groups of 128, format awq"
    codes = {"type": "float", "num_bits": 8, "strategy": "channel"}
    inputs = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": codes, "input_activations": inputs}}
    status = {"quantization_status": "compressed", "format": "float-quantized"}
    settings = {"quant_method": "compressed-tensors", "config_groups": groups, **status}
    report_content = content(Sources((Method("m", sources.after),), config={"quantization_config": settings}))
    assert origin(report_content) == (
        "8 bits per weight (floating point), one scale per channel, format compressed-tensors, activations in 8 bits"
    )


def test_a_larger_result_says_why(sources) -> None:
    size = sources.after.reference.size_bytes
    note = "the result, 2 MB, is larger than the model, 1 MB: the embedding is not quantized"
    large = replace(sources.after, quantized=replace(sources.after.quantized, size_bytes=2 * size))
    plan = replace(sources.plan, notes=(note,))
    sizes = content(Sources((Method("gptq", large),), plan=plan))["headline"]["size"]
    assert (sizes["quantized"], sizes["why"]) == (2 * size, "the embedding is not quantized")


def test_scores_alone_give_a_report(sources) -> None:
    report_content = content(Sources((Method("gptq", sources.after),)))
    absent = ("blocks", "patterns", "causes", "prediction", "checklist", "certificate", "allocation", "curves")
    assert all(report_content[name] is None for name in absent)
    assert report_content["headline"]["worst"]["baseline"] is None
    assert len(report_content["headline"]["sentences"]) == 1
    assert all(
        row[name] is None for row in report_content["languages"] for name in ("difference", "verdict", "predicted")
    )
    assert json.loads(Report(report_content).json()) == report_content


def test_text_that_is_not_parallel_has_no_sections(sources) -> None:
    scores = replace(sources.after, setting=replace(sources.after.setting, parallel=False))
    report_content = content(Sources((Method("gptq", scores),)))
    scales = [name for name, kind in SCALES.items() if kind["unit"] != "nats_per_section"]
    assert len(scales) == 4
    shown = list(report_content["languages"][0]["methods"][0]["damage"])
    assert report_content["units"] == shown == [CHANGED, *scales]


def test_provenance_names_models_text_files_and_versions(report_content, sources) -> None:
    provenance = report_content["provenance"]
    assert [model["name"] for model in provenance["models"]] == ["reference", *METHODS]
    assert provenance["models"][1]["fingerprint"] == sources.after.quantized.fingerprint
    assert provenance["evaluation"]["documents"] == len(sources.after.documents.lang)
    assert provenance["evaluation"]["hashes"] == sources.after.setting.hashes
    assert (provenance["calibration"]["budget"], provenance["calibration"]["sequence"]) == (64, 64)
    assert provenance["run"] == {"bits": 3, "group": "channel"}
    assert set(provenance["files"]) >= {"run", "scores", "audit", "sweep", "plan", "scores of rtn"}
    assert {"fairbits", "Python", "torch"} <= set(provenance["versions"])


def test_every_note_is_there_once(report_content, sources) -> None:
    texts = [note["text"] for note in report_content["notes"]]
    assert len(texts) == len(set(texts))
    expected = {note for method in sources.methods for note in method.scores.notes} | set(sources.plan.notes)
    expected |= {note for result in sources.plan.results for note in result.notes} | set(sources.sweep.notes)
    assert set(texts) >= expected | {"a note of the run"}
    assert {"from": "run", "text": "a note of the run"} in report_content["notes"]


def nodes(data: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yields where every part of some JSON lies."""
    yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from nodes(value, *path, key)


def test_a_damaged_part_is_refused_or_harmless(sources, finished_run) -> None:
    """Wherever a number, a list or an object is replaced by HTML or by nothing, the rest is shown or one line said."""
    rng, refused, alone = np.random.default_rng(0), 0, replace(sources, methods=sources.methods[:1])
    for name in ("audit", "sweep", "run"):
        data = json.loads((finished_run / f"{name}.json").read_text())
        places = [path for path in nodes(data) if path]
        for i in rng.choice(len(places), size=min(len(places), 120), replace=False):
            for odd in ("<img src=x onerror=alert(1)>", None, 7, [], {}):
                bad = copy.deepcopy(data)
                target = bad
                for key in places[i][:-1]:
                    target = target[key]
                target[places[i][-1]] = odd
                refused += shown_or_refused(alone, name, bad)
    assert refused > 100


def shown_or_refused(sources: Sources, name: str, data: Any) -> bool:
    from fairbits.reports import content as module
    from fairbits.reports import figures

    codes = sources.after.languages
    try:
        replaced = replace(sources, **{name: KINDS[name].parse(data, source=name)})
        shown = {
            "audit": lambda: [
                *(make(replaced.audit) for make in (figures.blocks, figures.checklist, figures.certificate)),
                *(make(replaced.audit, codes) for make in (figures.patterns, figures.causes)),
            ],
            "sweep": lambda: figures.curves(replaced.sweep, codes),
            "run": lambda: module._provenance(replaced),
        }[name]()
        json.dumps([shown, module._notes(replaced)], allow_nan=False)
    except InputError:
        return True
    return False


def test_json_of_a_report_holds_nothing_that_steers_a_terminal(report_content) -> None:
    hostile = {**report_content, "model": "m\x1b[2J\u202e"}
    text = Report(hostile).json()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert json.loads(text)["model"] == hostile["model"]


def test_a_report_is_written_as_its_name_says(report_content, tmp_path: Path) -> None:
    report = Report(report_content)
    for form in ("html", "md", "json"):
        report.save(tmp_path / f"report.{form}")
        assert (tmp_path / f"report.{form}").read_text(encoding="utf-8") == report.render(form)
    with pytest.raises(InputError, match=r"report\.pdf does not end in \.html, \.md or \.json"):
        report_format("report.pdf")
    assert report_format("Report.HTML") == "html"
    with pytest.raises(InputError, match=r"report\.html would hold json"):
        check_name("report.html", "json")
    with pytest.raises(InputError, match="is not a directory"):
        report.save(tmp_path / "nowhere" / "report.html")


SAVED = Path(__file__).parents[2] / "data" / "records"


def changed(name: str, *keys: str, by: Any) -> dict[str, Any]:
    data = json.loads((SAVED / name).read_text())
    target = data
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = by
    return data


@pytest.mark.parametrize(
    ("keys", "by", "message"),
    [
        (("baselines",), [{"name": "rtn"}], "baselines.0.scores is missing"),
        (("settings",), ["<b>"], "settings is"),
        (("notes",), "none", "notes is 'none'; it must be a valid array"),
        (("versions", "numpy"), 2, "versions.numpy is 2"),
        (("written",), 3, "written is 3"),
    ],
)
def test_a_damaged_record_of_a_run_is_refused(keys: tuple[str, ...], by: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^run.json is damaged: {message}"):
        RUN.parse(changed("run.json", *keys, by=by), source="run.json")


@pytest.mark.parametrize(
    ("keys", "by", "message"),
    [
        (("sizes", "<b>"), 3, "the key sizes.<b> must be a width in bits, 2 to 16"),
        (("sizes", "8"), 3, "gap and sizes differ in '8'"),
        (("critical_width",), {}, "critical_width and damage differ in 'eng_Latn'"),
        (("damage", "eng_Latn", "3", "low"), "<b>", "damage.eng_Latn.3.low is '<b>'; it must be a valid number"),
        (("damage", "eng_Latn", "3", "low"), 1e9, "damage.eng_Latn.3: low is"),
        (("threshold",), "0.01", "threshold is '0.01'"),
        (("fingerprint",), None, "fingerprint is None"),
    ],
)
def test_a_damaged_sweep_is_refused(keys: tuple[str, ...], by: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^sweep.json is damaged: {message}.*fairbits sweep --out"):
        SWEEP.parse(changed("sweep.json", *keys, by=by), source="sweep.json")
