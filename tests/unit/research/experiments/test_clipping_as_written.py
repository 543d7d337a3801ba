"""LA-ACIQ as written on a small model: every kind of threshold, own copies, and the verdict."""

from dataclasses import replace

import numpy as np
import pytest

from fairbits.models.scales.scheme import Scheme
from fairbits_research.experiments.clipping_as_written import ACIQ, MEAN, PROPOSITION, THEOREM, WrittenClipping
from fairbits_research.experiments.clipping_as_written import written_clipping as put_on
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, Setting, language_values
from fairbits_research.experiments.result import Answer

CODES = ("eng_Latn", "heb_Hebr", "hin_Deva")


@pytest.fixture(scope="module")
def lab(reading_model) -> ModelLab:
    model = str(reading_model("wide_llama").directory)
    return Laboratory(Setting(model, languages=CODES, tokens=256, calibration=64, sequence=64, device="cpu")).lab()


@pytest.fixture(scope="module")
def written(lab) -> WrittenClipping:
    return put_on(lab)


def damage_with(lab: ModelLab, alpha: float) -> np.ndarray:
    with lab.trial.swapped:
        for block in range(lab.n_blocks):
            lab.replace_rounded(block, Scheme(4, "tensor", alpha, "symmetric"))
        return language_values(lab.damage())


def test_every_language_is_evaluated_with_its_own_threshold(lab, written) -> None:
    own_values = language_values(written.frames[PROPOSITION])
    for i, code in enumerate(lab.languages):
        with_its_alpha = damage_with(lab, written.clipping.languages[code].alpha_written.value)
        assert own_values[i] == pytest.approx(with_its_alpha[i], rel=1e-3, abs=1e-7)
    assert language_values(written.frames[ACIQ]) == pytest.approx(damage_with(lab, written.clipping.alpha_shared))
    assert np.abs(lab.trial.added_nll()).max() == 0, "everything is restored"


def test_tables_have_all_kinds_and_differences_from_aciq(written) -> None:
    damage, differences = written.tables
    assert [row[0] for row in damage.rows] == list(written.frames)
    assert [row[0] for row in differences.rows] == list(written.frames)[1:]
    assert damage.columns[-4:] == ("worst", "mean", "best", "gap")
    by_name = {row[0]: row for row in damage.rows}
    assert by_name[ACIQ][1] == f"{written.clipping.alpha_shared / written.clipping.sigma:.4f}"
    assert by_name[THEOREM][1] == "by tensor"


@pytest.mark.parametrize(
    ("factor", "answer", "words"),
    [(0.1, Answer.SUPPORTED, "holds"), (10.0, Answer.NOT_SUPPORTED, "fails"), (1.0, Answer.UNDECIDED, "is undecided")],
)
def test_the_verdict_follows_the_paired_interval_of_the_gap(written, factor, answer, words) -> None:
    rng, lang = np.random.default_rng(0), np.repeat(CODES, 30)
    values = np.repeat([1.0, 2.0, 5.0], 30) + 0.1 * rng.standard_normal(90)
    base = replace(
        written.frames[ACIQ], lang=lang, document=np.tile(np.arange(30), 3), values=values, weights=np.ones(90)
    )
    frames = {ACIQ: base, MEAN: base, PROPOSITION: replace(base, values=factor * values)}
    verdict = WrittenClipping(written.clipping, frames)
    assert verdict.judgement.answer is answer
    assert verdict.judgement.claim == "002-13"
    assert f"Disparity(LA-ACIQ) < Disparity(ACIQ) {words}." in verdict.sentence
