import json

import numpy as np
import pytest

from fairbits.api.audit import audit
from fairbits.auditing import cover
from fairbits.auditing.cover import (
    Cover,
    audited_languages,
    choose_facilities,
    cover_languages,
    moment_distances,
    transfer_costs,
)
from fairbits.core.errors import FairbitsError, InputError
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import Corpus

CORPUS = Corpus(
    "weather",
    {
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(6)],
        "eng": [f"On day {i} the wind came from the north and brought {i} hours of rain." for i in range(6)],
        "nld": [f"Op dag {i} kwam de wind uit het noorden en bracht {i} uur regen." for i in range(6)],
    },
    {},
    parallel=True,
)


@pytest.fixture(scope="module")
def saved(reading_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "audit.json"
    checkpoint = reading_model("llama")
    audit(checkpoint, text=CORPUS, scheme=Scheme(3, 16), tokens=200).save(path)
    return path, checkpoint.fingerprint


def test_distances_ignore_the_size_of_activations():
    h = np.random.default_rng(0).gamma(2.0, size=(3, 8))
    distances = moment_distances([h, h[:, :4]])
    np.testing.assert_allclose(distances, moment_distances([h * [[1.0], [10.0], [1e3]], h[:, :4]]))
    np.testing.assert_allclose(distances, distances.T)
    assert (np.diag(distances) == 0).all()
    assert (distances[~np.eye(3, dtype=bool)] > 0).all()


def test_distances_are_means_over_channels_and_inputs():
    h = np.array([[1.0, 3.0], [2.0, 2.0]])
    logs = np.log(h / h.mean(1, keepdims=True))
    expected = ((logs[0] - logs[1]) ** 2).mean()
    assert moment_distances([h])[0, 1] == pytest.approx(expected)
    assert moment_distances([h, np.ones((2, 5))])[0, 1] == pytest.approx(expected / 2)


def test_a_dead_channel_has_a_finite_distance():
    assert np.isfinite(moment_distances([np.array([[0.0, 1.0], [1.0, 1.0]])])).all()


def test_costs_grow_with_the_damage():
    distances = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert transfer_costs(distances, np.array([2.0, 3.0])).tolist() == [[0, 2], [3, 0]]


def test_the_chosen_language_leaves_the_others_least_to_lose(saved):
    path, fingerprint = saved
    audited = audited_languages(path)
    assert sorted(audited) == ["eng_Latn", "heb_Hebr", "nld_Latn"]
    chosen = cover_languages(path, 1, fingerprint=fingerprint)
    alone = {code: cover_languages(path, 1, candidates=[code]) for code in audited}
    means = {code: np.mean(list(single.loss.values())) for code, single in alone.items()}
    assert chosen.languages == (min(means, key=means.__getitem__),)
    assert chosen.loss[chosen.languages[0]] == 0
    assert set(chosen.farthest) == set(audited) - set(chosen.languages)
    assert cover_languages(path, 3).notes == (f"3 of 3 audited languages chosen: {', '.join(audited)}",)


def test_candidates_that_the_audit_lacks_are_named(saved):
    chosen = cover_languages(saved[0], 1, candidates=["eng_Latn", "fra_Latn"])
    assert chosen.languages == ("eng_Latn",)
    assert chosen.notes[1] == "1 languages of the text are not in the audit and were not considered: fra_Latn"


def test_a_long_list_is_cut():
    many = Cover(("a",), {"a": 0.0}, tuple(f"x-{i}" for i in range(12)))
    assert many.notes[1].endswith("x-9 …")
    assert many.notes[1].startswith("12 languages")


def test_what_cannot_be_chosen_is_refused(saved):
    path, _ = saved
    with pytest.raises(InputError, match="2 languages are requested, but only 1 have text and are in"):
        cover_languages(path, 2, candidates=["eng_Latn", "fra_Latn"])
    with pytest.raises(InputError, match="the number of languages is 0; it must be 1 or more"):
        cover_languages(path, 0)
    with pytest.raises(InputError, match="audits a model with other weights"):
        cover_languages(path, 1, fingerprint="another")


def test_an_audit_without_its_second_file_is_refused(saved, tmp_path):
    copy = tmp_path / "audit.json"
    copy.write_text(json.dumps(json.loads(saved[0].read_text())))
    with pytest.raises(InputError, match=r"audit.safetensors, the second file of .* cannot be read"):
        cover_languages(copy, 1)


COST = [[0, 1, 9], [1, 0, 9], [9, 9, 0]]


@pytest.mark.parametrize(
    ("cost", "k", "message"),
    [
        ([1.0, 2.0], 1, "cost"),
        ([[1.0, -1.0]], 1, "cost"),
        ([[1.0, np.nan]], 1, "cost"),
        (np.zeros((0, 2)), 1, "cost holds 0 element"),
        (COST, 0, "k is 0; it must be 1 to 3"),
        (COST, 4, "k is 4; it must be 1 to 3"),
    ],
)
def test_bad_costs_are_refused(cost, k, message):
    with pytest.raises(InputError, match=message):
        choose_facilities(cost, k)


def test_all_candidates_and_costs_of_zero():
    assert choose_facilities(COST, 3).chosen == (0, 1, 2)
    assert choose_facilities(np.zeros((2, 2)), 1).value == 0


def test_a_solver_that_stops_is_an_error(monkeypatch):
    class Stopped:
        status, x, message = 1, None, "time limit reached"

    monkeypatch.setattr(cover, "milp", lambda *_, **__: Stopped)
    with pytest.raises(FairbitsError, match="HiGHS stopped without a solution: time limit"):
        choose_facilities(COST, 1)


def test_a_solver_that_finds_nothing_is_an_error(monkeypatch):
    class Infeasible:
        status, x, message = 2, None, "infeasible"

    monkeypatch.setattr(cover, "milp", lambda *_, **__: Infeasible)
    with pytest.raises(FairbitsError, match="no set although one exists"):
        choose_facilities(COST, 1)
