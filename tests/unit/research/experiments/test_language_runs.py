"""The experiments on traits of languages, on real text: cut into more tokens, and small real runs."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from fairbits.models.embedded import LANGUAGES
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments import language_traits
from fairbits_research.experiments.finer_tokens import MORE_TOKENS, split_tokens, splits_of, with_finer_tokens
from fairbits_research.experiments.laboratory import Laboratory, Setting, language_values
from fairbits_research.experiments.language_traits import measure_traits
from fairbits_research.experiments.mediation_experiment import mediation
from fairbits_research.experiments.result import Answer
from fairbits_research.experiments.trait_experiments import correlations, redundancy, training_data

pytestmark = pytest.mark.usefixtures("four_block_embedded")


def shortened(languages: Iterable[str]) -> Corpus:
    """The declaration, but the beginning of every section only, so that a pass takes no time."""
    whole = udhr(languages)
    parts = [
        {code: tuple(text[:40] for text in texts[-DOCUMENTS:]) for code, texts in split.items()}
        for split in (whole.calibration, whole.evaluation)
    ]
    return Corpus("beginnings", *parts, parallel=True)


DOCUMENTS = 6
OPEN = Answer.UNDECIDED
OWN = "arb_Arab", "eng_Latn", "fra_Latn", "hin_Deva"
SMALL = Setting(tokens=64, calibration=64, text=shortened(OWN), outlier_layers=(1,))


class TestFinerTokens:
    def test_a_quarter_more_tokens_spell_the_same_text(self) -> None:
        lab = Laboratory(SMALL).lab()
        tokenizer = lab.checkpoint.tokenizer()
        ids = tokenizer("All human beings are born free and equal in dignity and rights.", add_special_tokens=False)[
            "input_ids"
        ]
        finer = split_tokens(ids, splits_of(tokenizer), seed=0, more=0.25)
        assert len(finer) == len(ids) + round(0.25 * len(ids))
        assert tokenizer.decode(finer) == tokenizer.decode(ids)
        again, other = (split_tokens(ids, splits_of(tokenizer), seed=seed, more=0.25) for seed in (0, 1))
        assert finer == again != other

    def test_what_cannot_be_split_stays(self) -> None:
        assert split_tokens([1, 2, 3, 4], lambda _: [], seed=0) == [1, 2, 3, 4]

    def test_the_lab_has_the_same_documents_and_bytes(self) -> None:
        lab = Laboratory(SMALL).lab()
        other = with_finer_tokens(lab)
        assert np.array_equal(other.text.size_bytes, lab.text.size_bytes)
        assert np.array_equal(other.text.lang, lab.text.lang)
        tokens = [sum(sum(window.main.text) for window in model_lab.text.windows) for model_lab in (lab, other)]
        assert tokens[1] / tokens[0] == pytest.approx(1 + MORE_TOKENS, abs=0.02)


@pytest.mark.long
def test_a_small_real_run_of_own_languages() -> None:
    laboratory = Laboratory(SMALL)
    result = correlations(laboratory)
    assert {judgement.claim for judgement in result.judgements} == {"000-14", "000-09", "001-10"}
    assert result.figure.series[0].labels == OWN
    assert result.as_bytes()
    shares = dict(zip(OWN, (0.1, 0.5, 0.3, 0.1), strict=True))
    trained = training_data(Laboratory(replace(SMALL, shares=shares)))
    assert {judgement.claim for judgement in trained.judgements} == {"001-19", "002-15", "001-04"}
    assert trained.figure.series[0].x == (0.1, 0.5, 0.3, 0.1)


@pytest.mark.long
def test_a_small_real_run_of_many_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = LANGUAGES["tiny"][:14]
    wide = Laboratory(replace(SMALL, text=shortened(codes)))
    screening = language_traits.LanguageScreening(dict.fromkeys(codes[:13], 0.5) | dict.fromkeys(codes[13:], 1.5))
    monkeypatch.setattr(language_traits, "DRAWS", 2)
    monkeypatch.setattr(language_traits, "many_languages", lambda _: (wide, screening))
    compared = redundancy(Laboratory(SMALL))
    text = [table for table in compared.tables if table.title.startswith("Text of")]
    assert [(table.title, len(table.rows)) for table in text] == [
        *(("Text of own languages", 4), ("Text of many languages", 14), ("Text of known languages", 13))
    ]
    assert compared.answer is OPEN  # four own languages decide nothing
    result = mediation(wide)
    assert [judgement.claim for judgement in result.judgements] == ["004-27"]
    titles = [table.title for table in result.tables]
    assert len(result.tables[0].rows) == 10
    assert sum("A: alignment" in title for title in titles) == 4  # by cosine and by retrieval, many and known
    assert any("% more tokens" in title for title in titles)
    coefficients = next(table for table in result.tables if "as written" in table.title)
    assert coefficients.rows[0][1:4] == ("0.9200", "0.8500", "1.5")
    assert result.as_bytes()


def test_languages_are_known_where_the_model_beats_byte_frequencies() -> None:
    loss = dict.fromkeys(LANGUAGES["tiny"], 0.4) | {"ron_Latn": 0.9, "tam_Taml": 1.2}
    screening = language_traits.LanguageScreening(loss)
    assert set(screening.known) == {*LANGUAGES["tiny"], "ron_Latn"}
    assert set(screening.choose(0)) == set(loss), "fewer than are needed: the next ones are added"
    assert "21 of the 22 languages" in screening.note()
    assert language_traits.byte_entropy(["aaaa"]) == 0
    assert language_traits.byte_entropy(["abcd"]) == 2


@pytest.mark.long
def test_traits_are_those_of_the_outlier_blocks() -> None:
    laboratory = Laboratory(replace(SMALL, outlier_layers=None, insert_outliers={1: 125.0, 2: 148.0}))
    assert laboratory.outliers == (1, 2)
    lab = laboratory.lab()
    traits = measure_traits(lab, "own", dropout=True, treatments=["nearest, 3 bits"])
    share = traits.outlier_frame.by_language()
    assert traits.a == pytest.approx([share[code].value for code in traits.languages])
    audited = lab.pattern("block", "norm")
    assert traits.a == pytest.approx([audited.fraction((1, 2))[code].value for code in traits.languages])
    assert traits.kappa_eff == pytest.approx(
        [audited.kappa_weighted(lab.kappa)[code].value for code in traits.languages]
    )
    assert (language_values(traits.damage["nearest, 3 bits"]) > 0).all()
    assert (traits.kappa_eff > 10).all()
    assert traits.quality[traits.languages.index("eng_Latn")] == 1.0
    assert (traits.robustness > 0).all()
