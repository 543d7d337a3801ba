"""Own thresholds, calibration language, gateway layers, bounds: their rules, and a small run of each."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.all_experiments import run_experiment
from fairbits_research.experiments.bounds_experiment import (
    BY_BLOCK,
    DAMAGE,
    PROVED,
    REVISED,
    THEOREM,
    Case,
    exactly,
    revised,
)
from fairbits_research.experiments.gateway_layers import (
    GatewayTrials,
    best_if_additive,
    both_ends_lead,
    count_wider_gaps,
    gateway_answer,
    language_damages,
    sets_to_try,
)
from fairbits_research.experiments.laboratory import Laboratory, Setting, language_values
from fairbits_research.experiments.own_calibration import (
    EQUAL,
    Calibrated,
    Copies,
    each_from_own_copy,
    home_advantage,
    is_reduced,
)
from fairbits_research.experiments.result import Answer, all_of

LANGUAGES = ("eng_Latn", "fra_Latn", "heb_Hebr", "hin_Deva")
SHARES = (0.6, 0.2, 0.1, 0.1)
DOCUMENTS = 12
SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}


def frame_of(*damage: float, noise: float = 0.0, seed: int = 0) -> LanguageFrame:
    """Returns a frame in which the languages have these damages, in documents of 100 bytes."""
    codes = LANGUAGES[: len(damage)]
    lang, document = np.repeat(codes, DOCUMENTS), np.tile(np.arange(DOCUMENTS), len(codes))
    drawn = np.random.default_rng(seed).normal(scale=noise, size=len(lang)) if noise else np.zeros(len(lang))
    bits = 100 * (np.repeat(damage, DOCUMENTS) + drawn)
    return LanguageFrame(lang, document, values=bits, weights=np.full(len(lang), 100.0), resamples=500)


@pytest.fixture
def laboratory(saved, monkeypatch, tmp_path_factory) -> Callable[..., Laboratory]:
    """Returns the function that gives a laboratory with a small random model of so many blocks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))

    def laboratory(blocks: int, **settings: object) -> Laboratory:
        config = t.LlamaConfig(**SIZE, **TOKENS, num_hidden_layers=blocks, initializer_range=0.2)
        model = str(saved(t.LlamaForCausalLM(config)).target)
        shares = dict(zip(LANGUAGES, SHARES, strict=True))
        usual = {"languages": LANGUAGES, "tokens": 256, "calibration": 64, "sequence": 64, "shares": shares}
        return Laboratory(Setting(model=model, **{**usual, **settings}))

    return laboratory


def test_own_copies_take_every_language_from_its_own_frame() -> None:
    frame = each_from_own_copy({"eng_Latn": frame_of(1.0, 9.0), "fra_Latn": frame_of(9.0, 2.0)})
    assert language_values(frame).tolist() == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(
    ("difference", "answer"),
    [
        (Estimate(-0.2, -0.3, -0.1, 40), Answer.SUPPORTED),
        (Estimate(-0.01, -0.02, -0.005, 40), Answer.SUPPORTED),
        (Estimate(0.2, 0.1, 0.3, 40), Answer.NOT_SUPPORTED),
        (Estimate(0.0, -0.1, 0.1, 40), Answer.NOT_SUPPORTED),
        (Estimate(0.0, -0.3, 0.1, 40), Answer.UNDECIDED),
    ],
)
def test_a_reduction_is_seen_excluded_or_open(difference: Estimate, answer: Answer) -> None:
    assert is_reduced(difference, 1.0) is answer


def test_own_copies_that_even_languages_out_reduce_the_gap() -> None:
    shared, separate = frame_of(0.1, 0.2, 0.5, noise=0.02), frame_of(0.1, 0.15, 0.2, noise=0.02)
    assert Copies(separate, {"shared copy": shared}).answer is Answer.SUPPORTED
    assert Copies(shared, {"shared copy": separate}).answer is Answer.NOT_SUPPORTED


def test_the_home_advantage_is_free_of_effects_of_rows_and_columns() -> None:
    rng = np.random.default_rng(0)
    even = rng.normal(size=(6, 1)) + rng.normal(size=6)
    assert home_advantage(even) == pytest.approx((0.0, 1.0), abs=1e-12)
    advantage, p = home_advantage(even - np.eye(6))
    assert advantage == pytest.approx(-1.0)
    assert p == pytest.approx(1 / 720), "of all exchanges only one has as much"
    assert home_advantage(np.eye(9) + 0.0)[1] < 1e-4, "drawn exchanges"


@pytest.mark.parametrize(
    ("hub", "answer"),
    [((0.1, 0.6), Answer.SUPPORTED), ((0.1, 0.2), Answer.NOT_SUPPORTED), ((0.2, 0.3), Answer.NOT_SUPPORTED)],
)
def test_calibration_on_one_language_hurts_or_not(hub: tuple[float, float], answer: Answer) -> None:
    frames = {"eng_Latn": frame_of(*hub, noise=0.01, seed=1), EQUAL: frame_of(0.2, 0.3, noise=0.01)}
    assert Calibrated(frames, "eng_Latn").answer is answer


def test_calibration_on_one_language_may_be_open() -> None:
    frames = {"eng_Latn": frame_of(0.2, 0.4, noise=0.5, seed=1), EQUAL: frame_of(0.2, 0.3, noise=0.5)}
    assert Calibrated(frames, "eng_Latn").answer is Answer.UNDECIDED


def trials_of(*, ends: float, blocks: int = 6) -> GatewayTrials:
    """Returns trials in which keeping an end takes `ends` of the damage of the second language, any other block 1."""
    sets = tuple(combinations(range(blocks), 3))
    frames = {(): frame_of(1.0, 20.0)}
    for i, kept_blocks in enumerate(sets):
        kept = sum(ends if block in (0, blocks - 1) else 1.0 for block in kept_blocks)
        frames[kept_blocks] = frame_of(1.0, 20.0 - kept + 1e-6 * i)
    return GatewayTrials(blocks, frames, sets)


@pytest.mark.parametrize(("ends", "answer"), [(2.0, Answer.SUPPORTED), (0.5, Answer.NOT_SUPPORTED)])
def test_both_ends_lead_where_they_do_most(ends: float, answer: Answer) -> None:
    assert gateway_answer(list(both_ends_lead(trials_of(ends=ends)).values())) is answer


def test_rankings_that_disagree_leave_it_open() -> None:
    trials = trials_of(ends=2.0)
    odd = trials.halves[1]
    for blocks in trials.sets:
        if trials.both_ends(blocks):
            values_now = trials.frames[blocks].values.copy()
            values_now[odd] += 1000
            trials.frames[blocks] = _with(trials.frames[blocks], values_now)
    assert gateway_answer(list(both_ends_lead(trials).values())) is Answer.UNDECIDED


def _with(frame: LanguageFrame, numbers: np.ndarray) -> LanguageFrame:
    return LanguageFrame(frame.lang, frame.document, values=numbers, weights=frame.weights, resamples=500)


def test_a_choice_is_judged_on_documents_that_did_not_make_it() -> None:
    """Two sets, each good on one half: chosen there, it is judged on the other, where it is bad."""
    good, bad = frame_of(0.0, 0.0), frame_of(1.0, 1.0)
    even = good.document % 2 == 0
    frames = {
        (): bad,
        (0, 1, 2): _with(good, np.where(even, good.values, bad.values)),
        (1, 2, 3): _with(good, np.where(even, bad.values, good.values)),
    }
    trials = GatewayTrials(4, frames, ((0, 1, 2), (1, 2, 3)))
    assert language_values(trials.cross_validate(lambda rows: trials.rank_sets("worst", rows)[0])).tolist() == [
        1.0,
        1.0,
    ]
    assert language_damages(frames[0, 1, 2], trials.halves[0]).tolist() == [0.0, 0.0]


def test_keeping_blocks_can_widen_the_gap() -> None:
    frames = {(): frame_of(1.0, 2.0), (0, 1, 2): frame_of(0.1, 1.9), (1, 2, 3): frame_of(1.0, 1.5)}
    assert count_wider_gaps(GatewayTrials(4, frames, ((0, 1, 2), (1, 2, 3)))) == 1


def test_a_half_without_a_language_is_refused() -> None:
    frame = frame_of(1.0, 2.0)
    with pytest.raises(InputError, match="eng_Latn has too few documents"):
        language_damages(frame, frame.lang == "fra_Latn")


def test_a_sample_of_sets_holds_all_with_both_ends_and_the_chosen() -> None:
    sets = sets_to_try(24, seed=0, also=[(3, 4, 5)])
    assert sum({0, 23} <= set(blocks) for blocks in sets) == 22
    assert (3, 4, 5) in sets
    assert 220 <= len(sets) <= 243
    assert sets == sets_to_try(24, seed=0, also=[(3, 4, 5)])


def test_minimax_keeps_what_hurts_the_worst_language() -> None:
    alone = np.array([[5.0, 1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 0.1, 3.0, 3.0]])
    assert best_if_additive(alone) == (0, 1, 3)


@pytest.mark.parametrize(
    ("actual", "answer"),
    [
        (Estimate(1.0, 0.5, 1.9, 40), Answer.SUPPORTED),
        (Estimate(3.0, 2.5, 4.0, 40), Answer.NOT_SUPPORTED),
        (Estimate(2.5, 1.0, 4.0, 40), Answer.UNDECIDED),
    ],
)
def test_a_bound_holds_is_broken_or_open(actual: Estimate, answer: Answer) -> None:
    case = Case("model", "4 bits", THEOREM, DAMAGE, actual, 2.0)
    assert case.answer is answer
    assert all_of([Answer.SUPPORTED, case.answer]) is answer


def test_a_bound_that_is_attained_holds() -> None:
    assert Case("model", "4 bits", THEOREM, BY_BLOCK, exactly(0.1 + 0.2, 4), 0.3).answer is Answer.SUPPORTED
    assert Case("model", "4 bits", THEOREM, BY_BLOCK, exactly(0.3, 4), 0.0).ratio == "∞"


def test_the_revised_formula_needs_outlier_blocks() -> None:
    share = np.array([[0.2, 0.8], [0.25, 0.75], [0.3, 0.7], [0.4, 0.6]])
    damage = np.array([4.0, 3.0, 2.0, 0.0])
    assert revised(share, np.array([1.0, 2.0]), damage=damage, outliers=()) == {}
    assert revised(share, np.array([1.0, 2.0]), damage=damage, outliers=(0, 1)) == {}, "all activation is in them"
    predictions = revised(share, np.array([160.0, 0.0]), damage=damage, outliers=(0,))
    assert predictions == {(REVISED, DAMAGE): pytest.approx(0.01 * 0.2 * 160)}


@pytest.mark.long
def test_own_thresholds_and_calibration_share_their_copies(laboratory, monkeypatch) -> None:
    monkeypatch.setattr("fairbits_research.experiments.own_calibration.FEW", 2)  # so that 3 bits are all
    codes = LANGUAGES[:3]
    here = laboratory(1, languages=codes)
    steps: list[str] = []
    here.progress = lambda what, *_: steps.append(what)
    thresholds = run_experiment("own-thresholds", here)
    assert [row[:2] for row in thresholds.tables[0].rows[:2]] == [(3, "own copies"), (3, "shared copy")]
    assert thresholds.subject.settings["bits"] == [3]
    assert thresholds.figure.series[0].labels == codes
    calibration = run_experiment("calibration-language", here)
    clip, gptq = calibration.tables[:2]
    assert [row[0] for row in gptq.rows] == [*codes, "equal mix", "proportional mix"]
    diagonal = [clip.rows[i][i + 1] for i in range(3)]
    assert diagonal == pytest.approx(thresholds.figure.series[0].y, abs=1e-4), "the same copies"
    assert np.abs(here.lab().trial.added_nll()).max() == 0
    assert {"copies at 3 bits", "GPTQ on one language"} <= set(steps)


def test_unknown_training_shares_are_explained(laboratory) -> None:
    shares, why = laboratory(1, shares=None).shares_or_note()
    assert shares is None
    assert why.startswith("what ")
    assert laboratory(1).shares_or_note() == (dict(zip(LANGUAGES, SHARES, strict=True)), "")


@pytest.mark.long
def test_gateway_layers_runs(laboratory) -> None:
    here = laboratory(4)
    result = run_experiment("gateway-layers", here)
    lab = here.lab()
    assert np.abs(lab.trial.added_nll()).max() == 0, "everything is restored"
    kept = dict(zip(result.figure.series[0].labels, result.figure.series[0].x, strict=True))
    assert set(kept) == {"{0, 1, 3}", "{0, 2, 3}"}
    assert kept["{0, 2, 3}"] == pytest.approx(language_values(lab.rounding_damage({1: 3})).max())
    assert result.judgements[0].answer is result.answer
    assert result.judgements[0].claim == "004-26"
    with pytest.raises(InputError, match="has 3 blocks"):
        run_experiment("gateway-layers", laboratory(3))


@pytest.mark.long
def test_bounds_runs(laboratory) -> None:
    result = run_experiment("bounds", laboratory(4, tokens=192))
    cases, counts = result.tables
    assert len({row[0] for row in cases.rows}) == 2
    assert {row[1] for row in cases.rows} == {f"{bits} bits, {clip}" for bits in (3, 4) for clip in ("absmax", "exact")}
    proved = [row for row in counts.rows if row[0] in PROVED]
    assert [row[2:] for row in proved] == [(8, 8, 0, 0)] * 2, "what is proved is never broken"
    assert REVISED in {row[2] for row in cases.rows}
