"""Alignment, probes and the assumptions of theorem 3: on states that were built to show it or not, and small runs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.alignment import alignment, cosines, measure_alignment
from fairbits_research.experiments.document_states import DocumentStates, StateLayer
from fairbits_research.experiments.finer_tokens import finer_text, splits_of, tokens_read
from fairbits_research.experiments.gateway_assumptions import (
    Jackknifed,
    effective_dimension,
    gateway_assumptions,
    language_share,
    layer_profile,
)
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.mediation_experiment import alignment_change
from fairbits_research.experiments.probes import LANGUAGE, SCRIPT, SECTION, held_out_classes, probe_states, probes
from fairbits_research.experiments.result import Answer

CODES = "arb_Arab", "eng_Latn", "fra_Latn", "heb_Hebr", "pes_Arab", "spa_Latn"
SECTIONS, WIDTH = 10, 16


def states(*layers: np.ndarray, codes: tuple[str, ...] = CODES, stack: str = "decoder") -> DocumentStates:
    """States of parallel sections, (languages, sections, width) by layer; the first is before the first block."""
    lang, document = np.repeat(codes, SECTIONS), np.tile(np.arange(SECTIONS), len(codes))
    rows = np.random.default_rng(0).permutation(len(lang))  # any order of documents
    means = tuple(layer.reshape(len(lang), -1)[rows] for layer in layers)
    names = tuple(StateLayer(f"layer {i}", stack, i - 1, "") for i in range(len(layers)))
    places = (np.arange(len(lang)),) * len(layers)
    return DocumentStates(names, lang[rows], document[rows], means, means, places)


def parts(*, language: float, section: float, noise: float, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    """States that are the sum of a part of the language, one of the section, and noise."""
    rng = np.random.default_rng(seed)
    of_language = language * rng.normal(size=(len(CODES), 1, width))
    of_section = section * rng.normal(size=(1, SECTIONS, width))
    return of_language + of_section + noise * rng.normal(size=(len(CODES), SECTIONS, width))


class TestAlignment:
    def test_shared_sections_align_and_noise_does_not(self) -> None:
        shared, noise = parts(language=5, section=1, noise=0.2), parts(language=5, section=0, noise=1)
        measured = measure_alignment(states(noise, shared, noise))
        assert measured.pivot == "eng_Latn"
        assert measured.languages == tuple(code for code in CODES if code != "eng_Latn")
        assert measured.hits[1].mean() == 1
        assert measured.hits[2].mean() < 0.4
        assert measured.best == 1
        scores = measured.scores()
        assert all(score.low > 0 for score in scores.values())
        assert all(abs(score.value) < 0.3 for score in measure_alignment(states(noise, noise)).scores().values())

    def test_centring_removes_where_a_language_lies(self) -> None:
        # one section lies where the other language is: without centring it is nearest to all
        X = parts(language=0, section=1, noise=0.05)
        X[2:] += 8 * X[1, 3]
        measured = measure_alignment(states(X, X))
        assert measured.hits[1].mean() == 1
        assert measured.raw_hits[1].mean() < 0.8

    def test_the_pivot_may_have_other_states(self) -> None:
        X = parts(language=1, section=1, noise=0.1)
        shuffled = X.copy()
        shuffled[1] = X[1, ::-1]
        changed = measure_alignment(states(X, X), states(shuffled, shuffled))
        assert changed.scores()["fra_Latn"].value < measure_alignment(states(X, X)).scores()["fra_Latn"].value

    def test_without_english_the_first_language_is_the_pivot(self) -> None:
        codes = tuple(code.replace("eng", "deu") for code in CODES)
        X = parts(language=1, section=1, noise=0.1)
        assert measure_alignment(states(X, X, codes=codes)).pivot == "arb_Arab"

    def test_rows_of_zeros_have_cosine_zero(self) -> None:
        assert cosines(np.zeros((1, 2, 3)), np.eye(3)[:2]).tolist() == [[[0, 0], [0, 0]]]


class TestProbes:
    def test_what_is_held_out_is_not_seen(self) -> None:
        """Leaving a group out by the formula is leaving it out."""
        rng = np.random.default_rng(0)
        X, labels, groups = rng.normal(size=(24, 5)), np.tile(np.arange(3), 8), np.repeat(np.arange(6), 4)
        predicted = held_out_classes(X, labels, groups)
        scale = (X**2).sum(axis=1).mean()
        for group in range(6):
            seen, unseen = groups != group, groups == group
            kernel = X @ X.T / scale + 10.0
            fit = np.linalg.solve(kernel[np.ix_(seen, seen)] + 1.0 * np.eye(seen.sum()), np.eye(3)[labels[seen]])
            assert np.array_equal(predicted[unseen], (kernel[np.ix_(unseen, seen)] @ fit).argmax(axis=1))

    def test_each_probe_reads_its_property(self) -> None:
        both = probe_states(states(parts(language=2, section=2, noise=0.3, width=200)))
        assert both[LANGUAGE].share(0).value > 0.9
        assert both[SECTION].share(0).value > 0.9
        assert both[LANGUAGE].chance == pytest.approx(1 / 6)
        assert both[SECTION].chance == pytest.approx(1 / SECTIONS)
        noise = probe_states(states(parts(language=0, section=0, noise=1, width=200)))
        assert noise[LANGUAGE].share(0).low < 1 / 6 < 0.5 > noise[SECTION].share(0).value

    def test_scripts_are_read_in_languages_that_were_held_out(self) -> None:
        X = parts(language=0.3, section=0.3, noise=0.3)
        X[[0, 4], :, :8] += 6  # Arabic script
        probed = probe_states(states(X))[SCRIPT]
        assert probed.languages == ("arb_Arab", "eng_Latn", "fra_Latn", "pes_Arab", "spa_Latn")
        assert probed.chance == pytest.approx(3 / 5)
        assert probed.share(0).value > 0.9
        one_script = tuple(f"{code[:3]}_Latn" for code in ("deu", "eng", "fra", "ita", "por", "spa"))
        assert SCRIPT not in probe_states(states(X, codes=one_script))

    def test_a_direction_of_one_language_does_not_help_another(self) -> None:
        """The section is written along another axis in each language, so no probe of other languages reads it."""
        rng = np.random.default_rng(0)
        X = rng.normal(size=(len(CODES), SECTIONS, 200))
        assert probe_states(states(X))[SECTION].share(0).value < 0.35


class TestLayerProfile:
    def test_the_share_between_languages_is_that_of_the_parts(self) -> None:
        X = parts(language=2, section=1, noise=1, width=4000)
        assert language_share(X).value == pytest.approx(4 / 6, abs=0.1)
        alone = parts(language=0, section=1, noise=1, width=4000)
        assert language_share(alone).value < 0.1

    def test_leaving_a_section_out_is_computing_without_it(self) -> None:
        X = parts(language=1, section=1, noise=1)
        scaled = (X - X.mean(axis=(0, 1))) / X.std(axis=(0, 1))
        some = np.delete(scaled, 3, axis=1)
        means = some.mean(axis=1)
        between = some.shape[1] * ((means - means.mean(axis=0)) ** 2).sum()
        total = ((some - some.mean(axis=(0, 1))) ** 2).sum()
        assert language_share(X).without[3] == pytest.approx(between / total)

    def test_the_effective_dimension_counts_directions(self) -> None:
        rng = np.random.default_rng(0)
        sections = np.repeat(np.arange(40), 20)
        X = rng.normal(size=(800, 64)) * np.array([1.0] * 8 + [0.0] * 56)
        measured = effective_dimension(X, sections)
        assert measured.estimate.low < 8 < measured.estimate.high
        few = effective_dimension(rng.normal(size=(60, 64)), np.repeat(np.arange(20), 3))
        assert few.estimate.low < 64 < few.estimate.high  # few tokens do not make it smaller

    @pytest.mark.parametrize(("narrow", "answer"), [(4, Answer.SUPPORTED), (1, Answer.NOT_SUPPORTED)])
    def test_the_bottleneck_and_the_ends_are_found(self, narrow: int, answer: Answer) -> None:
        rng = np.random.default_rng(0)
        layers = []
        for block in range(8):
            thin = block == narrow
            X = parts(language=3 if block in (0, 7) else 0.3, section=0.1, noise=1, seed=block, width=64)
            layers.append(X[..., :3] @ rng.normal(size=(3, 64)) if thin else X)
        profile = layer_profile(states(layers[0], *layers))
        assert profile.bottleneck()[0] is answer
        assert {name: end for name, (end, _) in profile.end_answers().items()} == {
            "first": Answer.SUPPORTED,
            "last": Answer.SUPPORTED,
        }
        flat = layer_profile(states(layers[2], *[layers[2]] * 8))
        assert all(end is Answer.UNDECIDED for end, _ in flat.end_answers().values())

    def test_differences_keep_what_layers_share(self) -> None:
        common = np.random.default_rng(0).normal(size=12)
        first, second = Jackknifed(2.0, 2 + common), Jackknifed(1.0, 1 + common)
        assert first.minus(second).estimate.low == pytest.approx(1)


def beginnings(languages: tuple[str, ...], size: int = 40) -> Corpus:
    whole = udhr(languages)
    texts = [
        {code: tuple(text[:size] for text in texts[-6:]) for code, texts in split.items()}
        for split in (whole.calibration, whole.evaluation)
    ]
    return Corpus("beginnings", *texts, parallel=True)


SMALL = Setting(tokens=64, calibration=64, text=beginnings(CODES), device="cpu")


class TestSmallRuns:
    pytestmark = pytest.mark.usefixtures("four_block_embedded")

    def test_alignment_has_every_language_and_layer(self) -> None:
        result = alignment(Laboratory(SMALL))
        assert [row[0] for row in result.tables[0].rows] == [code for code in CODES if code != "eng_Latn"]
        assert [row[0] for row in result.tables[2].rows] == ["embedding", *(f"block {i}" for i in range(4))]
        assert result.as_bytes()

    def test_few_languages_are_refused(self) -> None:
        with pytest.raises(InputError, match="name at least 5"):
            alignment(Laboratory(replace(SMALL, text=beginnings(("eng", "fra")))))

    @pytest.mark.long
    def test_probes_are_fitted_before_and_after(self) -> None:
        result = probes(Laboratory(SMALL))
        assert [row[0] for row in result.tables[0].rows] == [LANGUAGE, SCRIPT, SECTION]
        assert len(result.tables[-1].rows) == 5
        assert result.as_bytes()

    @pytest.mark.long
    def test_assumptions_are_answered_one_by_one(self) -> None:
        result = gateway_assumptions(Laboratory(replace(SMALL, shares=dict.fromkeys(CODES, 0.1) | {"eng_Latn": 0.5})))
        assert [judgement.claim for judgement in result.judgements] == ["004-21"]
        answers = dict(result.tables[0].rows)
        assert set(answers) >= {"the first block", "the last block", "the bottleneck", "less redundant", "less sure"}
        assert "training share" in result.design
        assert result.as_bytes()


@pytest.mark.parametrize("family", ["xlmr", "mt5"])
def test_other_classes_are_aligned_and_respond_to_finer_tokens(
    reading_model: Callable[[str], Checkpoint], family: str
) -> None:
    text = beginnings(CODES, 120)
    laboratory = Laboratory(replace(SMALL, model=str(reading_model(family).target), text=text, sequence=48))
    result = alignment(laboratory)
    stacks = {"encoder", "decoder"} if family == "mt5" else {"block"}
    assert {str(row[0]).split()[0] for row in result.tables[2].rows} - {"embedding"} == stacks
    change = alignment_change(laboratory.lab())
    assert set(change) == set(CODES) - {"eng_Latn"}
    assert all(change.values())


class TestFinerText:
    @pytest.mark.parametrize("family", ["xlmr", "mt5"])
    def test_what_is_predicted_stays(self, reading_model: Callable[[str], Checkpoint], family: str) -> None:
        setting = replace(
            SMALL, model=str(reading_model(family).target), text=beginnings(("eng", "fra"), 150), sequence=48
        )
        lab = Laboratory(setting).lab()
        finer = finer_text(lab, lab.text)
        for before, after in zip(lab.text.windows, finer.windows, strict=True):
            assert [x for x in after.main.labels if x >= 0] == [x for x in before.main.labels if x >= 0]
            assert len(after.main.ids) == len(after.main.text) == len(after.main.labels) <= lab.checkpoint.longest_input
        grown = tokens_read(finer.windows) / tokens_read(lab.text.windows) - 1
        assert 0.01 < grown < 0.06

    def test_pieces_of_words_keep_their_mark(self) -> None:
        class WordPiece:
            all_special_ids = (0,)

            class backend_tokenizer:  # noqa: N801
                class model:  # noqa: N801
                    continuing_subword_prefix = "##"

            def get_vocab(self) -> dict[str, int]:
                return {"[CLS]": 0, "play": 1, "ing": 2, "##ing": 3, "playing": 4, "##i": 5, "##ng": 6}

        splits = splits_of(WordPiece())
        assert splits(4) == [(1, 3)]
        assert splits(3) == [(5, 6)]
