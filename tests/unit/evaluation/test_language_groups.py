"""Groups of languages: what a user may write, the damage of every group, and the ratio of two."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.gate import gate
from fairbits.evaluation.language_groups import group_damage, read_groups, split_by_share
from fairbits.evaluation.scores import Scores
from fairbits.models.embedded import training_shares

CODES = ("deu_Latn", "eng_Latn", "heb_Hebr", "swh_Latn", "yor_Latn")
DAMAGE = {"eng_Latn": 4.0, "deu_Latn": 6.0, "heb_Hebr": 7.0, "swh_Latn": 10.0, "yor_Latn": 14.0}
GROUPS = "high=eng,deu;low=swh,yor"


def printed(scores: Scores) -> str:
    return "\n".join(table.text() for table in scores.tables())


@pytest.fixture
def scores(draw: Callable[..., Scores]) -> Scores:
    return draw(DAMAGE, noise=2.0).with_groups(GROUPS)


def test_the_same_groups_as_text_mapping_and_file(tmp_path: Path) -> None:
    expected = {"high": ("eng_Latn", "deu_Latn"), "low": ("swh_Latn", "yor_Latn")}
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"high": ["English", "de"], "low": ["swh", "yor"]}))
    for groups in (" high = eng, deu ; low=swh,yor;", {"high": ["eng", "deu"], "low": ["swh", "yor"]}, file):
        assert read_groups(groups, CODES, model="m") == expected
    assert read_groups({"a": ["mine"], "b": ["eng"]}, ("mine", "eng_Latn"), model="m")["a"] == ("mine",)


def test_shares_halve_the_languages_and_leave_the_middle_out(tmp_path: Path) -> None:
    file = tmp_path / "shares.json"
    file.write_text(json.dumps({"eng": 0.5, "de": 0.2, "heb": 0.1, "swh": 0.01, "yor": 0.02, "fra": 0.9}))
    halves = {"high": ("eng_Latn", "deu_Latn"), "low": ("yor_Latn", "swh_Latn")}
    assert read_groups(file, CODES, model="m") == halves
    shares = training_shares("embedded:tiny")
    embedded = read_groups("training", CODES, model="embedded:tiny")
    assert embedded == {name: tuple(codes) for name, codes in split_by_share(shares, CODES).items()}
    assert min(shares[code] for code in embedded["high"]) > max(shares[code] for code in embedded["low"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("high=eng;low=xyzzy", "language 'xyzzy' is unknown"),
        ("high=eng;low=fra", r"fra \(fra_Latn\) is in a group, but not measured; measured: deu_Latn"),
        ("high=eng,deu;low=eng", "eng_Latn is in the groups high and low"),
        ("high=eng,en;low=deu", "eng_Latn is in the group high twice"),
        ("high=eng;low=", "the group low has no languages"),
        ("high=eng,deu", "there is 1 group of languages; give at least 2"),
        ("high=eng;high=deu", "the group 'high' is there twice"),
        ("high=eng;deu", "'deu' is not a group of languages"),
        ("catalog", "does not know the resource level of languages"),
        ("training", "what ./m was trained on is not known"),
        ({"a" * 50: ["eng"], "b": ["deu"]}, "a name has 1 to 40"),
    ],
)
def test_bad_groups_are_explained(groups: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_groups(groups, CODES, model="./m")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "groups.json"
    file.write_text('{"high": "eng", "low": 3}')
    with pytest.raises(InputError, match="neither lists of languages nor one number per language"):
        read_groups(file, CODES, model="m")


def test_means_and_ratios_of_groups(scores: Scores) -> None:
    for measure in ("divergence", "loss"):
        frame, damage = scores.frame(measure=measure), scores.group_damage(measure=measure)
        alone = {code: estimate.value for code, estimate in frame.by_language().items()}
        high, low = (alone["eng_Latn"] + alone["deu_Latn"]) / 2, (alone["swh_Latn"] + alone["yor_Latn"]) / 2
        assert [mean.value for mean in damage.means.values()] == pytest.approx([high, low])
        ratio = damage.ratios["low"]
        assert ratio.value == pytest.approx(low / high)
        assert ratio.low < ratio.value < ratio.high
        assert damage.worst_over_best.low <= ratio.low  # whichever group is worse
        assert list(damage.ratios) == ["low"]


def test_all_languages_as_one_group_have_the_mean_of_the_frame(scores: Scores) -> None:
    frame = scores.frame()
    rest = tuple(code for code in frame.languages if code != "eng_Latn")
    assert group_damage(frame, {"all": rest, "english": ("eng_Latn",)}).means["english"] == frame.language("eng_Latn")
    without = replace(frame, **{n: getattr(frame, n)[frame.lang != "eng_Latn"] for n in FIELDS})
    mean, whole = group_damage(frame, {"all": rest, "e": ("eng_Latn",)}).means["all"], without.mean()
    assert (mean.value, mean.n) == (pytest.approx(whole.value), whole.n)
    assert mean.low == pytest.approx(whole.low, rel=0.02)


FIELDS = ("lang", "document", "values", "weights")


def test_there_is_no_ratio_where_a_damage_may_be_zero(draw: Callable[..., Scores]) -> None:
    scores = draw({"eng_Latn": 0.0, "swh_Latn": 9.0}, noise=3.0).with_groups("high=eng;low=swh")
    damage = scores.group_damage(measure="loss")
    assert (damage.ratios, damage.worst_over_best) == ({}, None)
    assert damage.no_ratio == "the damage of high may be 0"
    assert "No ratio of loss: the damage of high may be 0." in printed(scores)
    (check,) = gate(scores, max_ratio=2, measure="loss").checks
    assert (check.outcome, check.estimate) == ("undecided", None)


def test_a_group_without_intervals_has_a_plain_mean(draw: Callable[..., Scores]) -> None:
    scores = draw({"eng_Latn": 5.0, "deu_Latn": 5.0, "swh_Latn": 9.0}, documents=3)
    damage = scores.with_groups("high=eng,deu;low=swh").group_damage()
    assert not any(mean.bounded for mean in damage.means.values())
    assert damage.no_ratio == "the damage of high has no interval"
    assert damage.left_out == ("eng_Latn", "deu_Latn", "swh_Latn")


def test_groups_are_saved_and_files_without_them_are_read(scores: Scores, tmp_path: Path) -> None:
    scores.save(tmp_path / "scores.json")
    loaded = Scores.load(tmp_path / "scores.json")
    assert loaded.groups == scores.groups
    assert loaded.as_bytes() == scores.as_bytes()
    replace(scores, groups={}).save(tmp_path / "plain.json")
    plain = Scores.load(tmp_path / "plain.json")
    assert "groups" not in json.loads((tmp_path / "plain.json").read_text())
    assert (plain.groups, plain.group_damage(), plain.summary()["groups"]) == ({}, None, None)
    assert "Groups of languages" not in printed(plain)
    summary = scores.summary()["groups"]
    assert summary["languages"]["low"] == ["swh_Latn", "yor_Latn"]
    ratio = scores.group_damage("nats_per_token", measure="loss").ratios["low"]
    assert summary["loss"]["nats_per_token"]["ratios"]["low"] == ratio.to_dict()
    data = json.loads((tmp_path / "scores.json").read_text())
    for groups in ({"high": ["eng_Latn"]}, {"high": ["eng_Latn"], "low": ["fra_Latn"]}):
        (tmp_path / "odd.json").write_text(json.dumps(data | {"groups": groups}))
        with pytest.raises(InputError, match="is damaged"):
            Scores.load(tmp_path / "odd.json")


def test_the_table_shows_groups_ratio_and_who_is_in_none(scores: Scores) -> None:
    shown = printed(scores)
    ratio = scores.group_damage().ratios["low"]
    line = next(line for line in shown.splitlines() if line.strip().startswith("low / high"))
    assert f"{ratio.value:.3f}" in line
    assert "In no group: heb_Hebr." in shown
    three = printed(scores.with_groups("a=eng;b=deu;c=swh,yor"))
    assert all(name in three for name in ("b / a", "c / a", "worst / best"))


def test_a_gate_on_the_ratio_decides_by_its_interval(scores: Scores) -> None:
    ratio = scores.group_damage().worst_over_best
    for limit, outcome in ((ratio.high, "pass"), (ratio.value, "undecided"), (ratio.low - 1e-9, "fail")):
        result = gate(scores, max_ratio=limit)
        (check,) = result.checks
        assert (check.outcome, check.estimate, check.limit) == (outcome, ratio, limit)
        assert "low lost" in result.reason
    turned = gate(scores, max_ratio=1.0, groups="low=swh,yor;high=eng,deu").checks[0]
    assert turned.outcome == "fail"  # the worst group is the worst wherever it stands
    assert "documents per language would decide" in gate(scores, max_ratio=ratio.high * 0.99).reason


def test_a_gate_on_the_ratio_needs_groups_and_a_limit_above_one(scores: Scores) -> None:
    for arguments, message in (
        ({"max_ratio": 0.9}, "at least 1"),
        ({"groups": GROUPS}, "groups are only for a limit on their ratio"),
        ({}, "--max-ratio"),
    ):
        with pytest.raises(InputError, match=message):
            gate(scores, **arguments)
    with pytest.raises(InputError, match="has no groups of languages; name them with --groups"):
        gate(replace(scores, groups={}), max_ratio=2)


def test_a_gate_on_the_ratio_is_undecided_if_a_language_has_no_interval(scores: Scores) -> None:
    documents = scores.documents
    kept = (documents.lang != "yor_Latn") | (documents.document < 3)
    columns = {name: column[kept] for name, column in documents.columns().items()}
    few = replace(scores, documents=replace(documents, **columns))
    (check,) = gate(few, max_ratio=99).checks
    assert check.outcome == "undecided"
    assert check.reason.endswith("there is no interval for yor_Latn")
    assert few.group_damage().means["low"].value == pytest.approx(few.frame().language("swh_Latn").value)


def test_the_interval_of_a_divergence_is_cut_at_zero(draw: Callable[..., Scores]) -> None:
    scores = draw({"eng_Latn": 3.0, "swh_Latn": 2.0, "deu_Latn": 4.0}, documents=6, noise=4.0, seed=4)
    frame = scores.frame()
    uncut = replace(frame, least=-np.inf)
    below = [code for code, estimate in uncut.by_language().items() if estimate.bounded and estimate.low < 0]
    assert below
    assert all(frame.language(code).low == 0 for code in below)
    assert all(frame.language(code).high == uncut.language(code).high for code in frame.languages)
    assert min(frame.worst()[1].low, frame.best()[1].low, frame.mean().low) >= 0
    assert frame.minus(frame).least == -np.inf


def test_the_table_says_that_chance_explains_the_differences(draw: Callable[..., Scores]) -> None:
    alike = draw(dict.fromkeys(("eng_Latn", "heb_Hebr", "hin_Deva"), 5.0), documents=12, noise=4.0)
    hidden = [measure for measure in ("divergence", "loss") if alike.disparity(measure=measure).hidden]
    assert hidden
    assert "chance explains the differences" in " ".join(printed(alike).split())
    apart = draw({"eng_Latn": 2.0, "heb_Hebr": 30.0}, noise=1.0)
    assert "chance explains" not in " ".join(printed(apart).split())
