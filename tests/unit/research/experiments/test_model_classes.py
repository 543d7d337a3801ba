"""Experiments on small models of classes in which no outliers can be inserted, and which blocks count."""

from collections.abc import Callable

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.all_experiments import run_experiment
from fairbits_research.experiments.laboratory import Laboratory, Setting, knob_kappa
from fairbits_research.research_command import parse_insertion

CODES = ("arb_Arab", "eng_Latn", "fra_Latn", "hin_Deva")
KAPPA = np.array([0.8, 4.1, 8.6, 1, 0.4, 0.4, 0.5, 0.5, 0.6, 0.9, 1.4, 1.4])
BLOOM = np.where(np.isin(np.arange(24), [5, 21, 22]), 150.0, 3.0)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = udhr(CODES)
    splits = (whole.calibration, whole.evaluation)
    parts = [{code: tuple(text[:40] for text in texts[-6:]) for code, texts in split.items()} for split in splits]
    return Corpus("beginnings", *parts, parallel=True)


@pytest.fixture
def laboratory(reading_model: Callable[[str], Checkpoint], corpus: Corpus) -> Callable[..., Laboratory]:
    def laboratory(family: str, **settings: object) -> Laboratory:
        small = {"text": corpus, "tokens": 64, "calibration": 64, "sequence": 32, "device": "cpu"}
        return Laboratory(Setting(reading_model(family).target, **{**small, **settings}))

    return laboratory


@pytest.mark.parametrize(
    ("family", "layer", "words"),
    [
        ("gpt2", 1, "of a decoder, which is no model like mT5"),
        ("mt5", 3, "the decoder's outlier blocks, in an encoder–decoder model as mT5 is"),
        ("xlmr", 1, "of an encoder, which is no model like mT5"),
    ],
)
def test_correlations_measure_the_named_blocks_of_every_class(laboratory, family: str, layer: int, words: str) -> None:
    here = laboratory(family, outlier_layers=(layer,))
    result = run_experiment("correlations", here)
    lab = here.lab()
    share = lab.pattern("block", "norm").fraction((layer,))
    main = {row[0]: row for row in result.tables[0].rows}
    assert {code: float(main[code][1].split()[0]) for code in CODES} == pytest.approx(
        {code: share[code].value for code in CODES}, abs=6e-5
    )
    assert result.design.startswith(f"Outlier blocks: {layer} (κ {lab.kappa[layer]:.3g}); named by the user. ")
    settings = result.subject.settings
    assert settings["outlier_layers"] == [layer]
    assert settings["outlier_rule"] == "named"
    assert settings["outliers"] == {str(layer): pytest.approx(lab.kappa[layer])}
    (attention,) = (judgement for judgement in result.judgements if judgement.claim == "001-10")
    assert words in attention.because


def test_the_encoder_has_no_say_on_the_decoders_attention(laboratory) -> None:
    result = run_experiment("correlations", laboratory("mt5", outlier_layers=(0,)))
    (attention,) = (judgement for judgement in result.judgements if judgement.claim == "001-10")
    assert attention.because.startswith("no outlier block lies in the decoder")


@pytest.mark.parametrize("family", ["gpt2", "xlmr"])
def test_bounds_run_without_a_knob_and_say_so(laboratory, family: str) -> None:
    result = run_experiment("bounds", laboratory(family, outlier_layers=(1,)))
    assert {row[0] for row in result.tables[0].rows} == {"unchanged"}
    assert "exact rescaling is known for bloom" in result.notes[0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["bit-threshold", "layer-ablation", "outliers", "training-data", "null-controls"])
def test_other_experiments_run_on_an_encoder_decoder(laboratory, name: str) -> None:
    shares = dict(zip(CODES, (0.1, 0.5, 0.3, 0.1), strict=True))
    result = run_experiment(name, laboratory("mt5", outlier_layers=(2,), shares=shares))
    assert result.as_bytes()


def test_what_to_do_without_outlier_blocks_is_said_first(laboratory) -> None:
    here = laboratory("gpt2")
    with pytest.raises(
        InputError, match=r"too few to tell.*--outlier-layers .*--outlier-kappa 3.*--insert-outliers 0:"
    ):
        run_experiment("correlations", here)
    assert "trial" not in vars(here.lab()), "no model was loaded"
    with pytest.raises(InputError, match="all 2 blocks"):
        run_experiment("correlations", laboratory("gpt2", outlier_layers=(0, 1)))


def test_insertion_is_refused_where_it_is_not_exact(laboratory) -> None:
    with pytest.raises(InputError, match=r"outliers cannot be inserted: .*'gpt2'.*leave out --insert-outliers"):
        laboratory("gpt2", insert_outliers={1: 100.0}).lab()


def test_too_few_languages_for_a_correlation_are_refused(reading_model) -> None:
    few = Setting(reading_model("gpt2").target, languages=("eng", "fra"), outlier_layers=(1,))
    with pytest.raises(InputError, match="name at least 4"):
        run_experiment("correlations", Laboratory(few))


def test_outlier_blocks_are_named_above_a_cut_off_or_found_by_a_rule() -> None:
    chosen = [
        Setting(**setting).outliers(kappa)
        for setting, kappa in (
            ({}, BLOOM),
            ({}, KAPPA),
            ({"outlier_kappa": 4.0}, KAPPA),
            ({"outlier_layers": (7, 3)}, KAPPA),
            ({"insert_outliers": {3: 125.0, 7: 148.0}}, np.where(np.isin(np.arange(12), [3, 7]), 130.0, KAPPA)),
            ({"insert_outliers": {3: 2.0}}, KAPPA),
        )
    ]
    assert [(outliers.rule, outliers.blocks) for outliers in chosen] == [
        ("research_notes", (5, 21, 22)),
        ("robust", (2,)),
        ("threshold", (1, 2)),
        ("named", (3, 7)),
        ("research_notes", (3, 7)),
        ("inserted", (3,)),
    ]


def test_settings_are_recorded_as_json_has_them() -> None:
    setting = Setting(outlier_layers=(5, 21), insert_outliers={7: 148.0, 3: 125.0})
    assert setting.recorded == {
        "group": "channel",
        "sequence": 512,
        "calibration": 2048,
        "outlier_layers": [5, 21],
        "insert_outliers": {"3": 125.0, "7": 148.0},
    }
    assert set(Setting().recorded) == {"group", "sequence", "calibration"}, "as in results of before"


def test_a_knob_takes_what_was_inserted_along() -> None:
    laboratory = Laboratory(Setting(insert_outliers={3: 125.0}, languages=("eng", "fra")))
    assert laboratory.model == "embedded:tiny?outliers=3:125"
    assert laboratory.with_outliers({7: 148.0}) == "embedded:tiny?outliers=3:125,7:148"
    assert laboratory.knob({2: 1.0})[1].startswith("No outliers were inserted: ")
    assert knob_kappa(12) == {3: 125.0, 7: 148.0}


@pytest.mark.parametrize("text", ["3", "3:x", "3:125;7:148", "", "-1:5"])
def test_an_insertion_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="BLOCK:KAPPA"):
        parse_insertion(text)
