"""outliers, bit-threshold and layer-ablation: choices, rules, and whole runs on made-up damage."""

from collections.abc import Callable
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import outliers_above_threshold
from fairbits.kurtosis.patterns import Pattern
from fairbits.stats.crossing import CriticalBits
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments import bit_threshold, layer_ablation
from fairbits_research.experiments import outliers_experiment as outliers
from fairbits_research.experiments.gaps import LanguageGap, documents_for
from fairbits_research.experiments.laboratory import Laboratory, ModelLab
from fairbits_research.experiments.result import Answer, ExperimentSubject, Result

LANGUAGES, DOCUMENTS = 6, 12
YES, NO, OPEN = Answer.SUPPORTED, Answer.NOT_SUPPORTED, Answer.UNDECIDED
KAPPA = np.array([0.8, 4.1, 8.6, 1, 0.4, 0.4, 0.5, 0.5, 0.6, 0.9, 1.4, 1.4])


def made_up(gap: float, noise: float = 0.02) -> LanguageFrame:
    """Languages whose damage is evenly spread over `gap`, the same noise in every frame."""
    lang = np.repeat([f"l{i}" for i in range(LANGUAGES)], DOCUMENTS)
    drawn = np.random.default_rng(0).normal(0, noise, LANGUAGES * DOCUMENTS)
    damage = np.repeat(np.linspace(0.001, 0.001 + gap, LANGUAGES), DOCUMENTS) + drawn * gap
    document = np.tile(np.arange(DOCUMENTS), LANGUAGES)
    return LanguageFrame(lang, document, values=damage, weights=np.ones(len(lang)), resamples=400)


def estimate(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 20)


class FakeLab:
    """A lab whose gap is a function of max κ, the widths of its blocks, and the quantizer."""

    outlier_text = ModelLab.outlier_text

    def __init__(self, kappa: np.ndarray, gap: Callable[..., float]) -> None:
        self.kappa, self.n_blocks, self._gap = kappa, len(kappa), gap
        self.setting = SimpleNamespace(seed=0)
        self.outliers = outliers_above_threshold(kappa)

    def pattern(self, _kind: str, _measure: str) -> Pattern:
        lang = np.repeat([f"l{i}" for i in range(LANGUAGES)], DOCUMENTS)
        sums = np.random.default_rng(1).uniform(1, 2, (len(lang), self.n_blocks))
        return Pattern(lang, np.tile(np.arange(DOCUMENTS), LANGUAGES), sums=sums, tokens=np.ones_like(sums))

    def rounding_damage(self, bits, *, clip="absmax"):
        widths = [bits] * self.n_blocks if isinstance(bits, int) else bits
        block_widths = widths if isinstance(widths, dict) else dict(enumerate(widths))
        return made_up(self._gap(self.kappa, block_widths, clip))

    def policy_damage(self, policy, bits):
        return made_up(self._gap(self.kappa, dict.fromkeys(range(self.n_blocks), bits), policy))

    def report(self, _, done, total):
        assert done < total


class FakeLaboratory:
    """A laboratory of a model without outlier blocks unless its κ exceeds 100; a knob that is exact unless said so."""

    knob = Laboratory.knob
    require_outliers = Laboratory.require_outliers
    outlier_settings = Laboratory.outlier_settings

    def __init__(self, gap: Callable[..., float], kappa: np.ndarray = KAPPA, *, exact: bool = True) -> None:
        self.setting = SimpleNamespace(model="plain", seed=0, insert_outliers=None)
        self.model, self._exact = "plain", exact
        self._gap, self._kappa = gap, {"plain": kappa}

    @property
    def outliers(self):
        return self.lab().outliers.blocks

    def lab(self, model=None):
        return FakeLab(self._kappa[model or "plain"], self._gap)

    def with_outliers(self, kappa):
        if not self._exact:
            raise InputError("exact rescaling is not known")
        changed = self._kappa["plain"].copy()
        changed[list(kappa)] = list(kappa.values())
        self._kappa[str(kappa)] = changed
        return str(kappa)

    def report(self, _, done, total):
        assert done < total

    def subject(self, **settings):
        return ExperimentSubject("plain", "0" * 64, "made up", LANGUAGES, DOCUMENTS, 0, (0,), settings)


def round_trip(result: Result, tmp_path) -> None:
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json").verdict == result.verdict


def test_gap_comparisons_are_paired() -> None:
    narrow, wide = LanguageGap.of(made_up(0.1)), LanguageGap.of(made_up(0.2))
    rise, fall = wide.minus(narrow), narrow.reduction_from(wide)
    assert rise.low > 0
    assert rise.value == pytest.approx(0.1, abs=0.01)
    assert fall is not None
    assert [fall.low, fall.high] == pytest.approx([50, 50])  # both vary alike, so nothing is left of it
    assert narrow.minus(narrow).value == 0
    assert LanguageGap.of(made_up(0.1)).reduction_from(LanguageGap(estimate(0, 0.1), narrow.draws)) is None


def test_documents_for_a_value_at_the_limit() -> None:
    assert documents_for(Estimate(0.0, -0.1, 0.1, 10)) is None


def test_documents_for_an_interval_without_bounds() -> None:
    assert documents_for(Estimate(0.1, -inf, inf, 10)) is None
    assert documents_for(Estimate(-0.1, -inf, inf, 10)) is None


def test_knob_keeps_what_is_above_the_model() -> None:
    assert outliers.outlier_levels(KAPPA) == [{3: 20.0, 7: 20.0}, {3: 100.0, 7: 100.0}, {3: 500.0, 7: 500.0}]
    assert outliers.outlier_levels(np.array([1.0, 60.0])) == [{0: 100.0, 1: 100.0}, {0: 500.0, 1: 500.0}]
    assert outliers.outlier_levels(np.array([1.0, 600.0])) == []


UP, FLAT, DOWN = estimate(0.1, 0.2), estimate(-0.1, 0.2), estimate(-0.2, -0.1)


@pytest.mark.parametrize(
    ("absmax", "exact", "gptq", "answer"),
    [(UP, UP, UP, YES), (UP, FLAT, DOWN, NO), (FLAT, FLAT, FLAT, NO), (UP, UP, FLAT, OPEN), (FLAT, UP, UP, OPEN)],
)
def test_outliers_are_a_cause_under_every_quantizer(absmax, exact, gptq, answer) -> None:
    rises = {(name, 4): rise for name, rise in zip(outliers.QUANTIZERS, (absmax, exact, gptq), strict=True)}
    assert outliers.is_cause(rises) is answer


def test_one_width_in_doubt_leaves_the_cause_open() -> None:
    rises = {(name, bits): UP if bits == 4 else FLAT for name in outliers.QUANTIZERS for bits in (4, 3)}
    assert outliers.is_cause(rises) is OPEN


def test_ranking_and_no_gap() -> None:
    assert [outliers.widens_with_kappa(s) for s in ([UP, UP], [UP, FLAT], [UP, FLAT, DOWN])] == [YES, OPEN, NO]
    assert [outliers.shows_no_gap(e) for e in (estimate(0, 0.1), estimate(0.01, 0.1))] == [OPEN, NO]


@pytest.mark.parametrize(
    ("width", "move", "answer"),
    [
        (CriticalBits(5.5, 5.2, 5.8), (1.5, 2.5), YES),
        (CriticalBits(5.5, 5.2, 5.8), (0.5, 2.5), OPEN),
        (CriticalBits(5.5, 5.2, 5.8), (-0.1, 0.1), NO),
        (CriticalBits(4.0, 3.8, 4.4), (1.5, 2.5), NO),
        (CriticalBits(6.5, 6.2, 6.9), (1.5, 2.5), NO),
        (CriticalBits(5.0, 3.0, 7.0), (1.5, 2.5), OPEN),
    ],
)
def test_width_set_by_kappa(width, move, answer) -> None:
    assert bit_threshold.is_set_by_kappa(width, estimate(*move), expected=2.0) is answer


@pytest.mark.parametrize(
    ("limits", "answer"), [((40, 60), YES), ((5, 40), YES), ((-5, 40), OPEN), ((-9, 30), NO), ((70, 90), NO)]
)
def test_about_half(limits, answer) -> None:
    assert layer_ablation.falls_by_half(estimate(*limits)) is answer


def test_about_half_of_no_gap_is_open() -> None:
    assert layer_ablation.falls_by_half(None) is OPEN


def test_random_sets_are_different_and_leave_the_outliers_out() -> None:
    sets = layer_ablation.random_sets(12, (3, 7), seed=1)
    assert len(set(sets)) == layer_ablation.DRAWS
    assert (3, 7) not in sets
    assert sets == layer_ablation.random_sets(12, (3, 7), seed=1) != layer_ablation.random_sets(12, (3, 7), seed=2)


def test_outliers_that_widen_the_gap_under_all(tmp_path) -> None:
    result = outliers.outliers(FakeLaboratory(lambda kappa, widths, _: 0.01 * kappa[list(widths)].max() ** 0.5))
    assert {judgement.claim: judgement.answer for judgement in result.judgements} == {"001-02": YES, "001-07": YES}
    assert result.answer is NO  # the blocks of low κ show a gap
    assert [row[2] for row in result.tables[2].rows] == ["1.00"] * 6
    round_trip(result, tmp_path)


def test_outliers_that_matter_under_absmax_only() -> None:
    gap = lambda kappa, _, how: 0.02 * (kappa.max() ** 0.5 if how == "absmax" else 1)  # noqa: E731
    assert outliers.outliers(FakeLaboratory(gap)).judgements[0].answer is NO


def test_blocks_are_compared_where_outliers_cannot_be_inserted(tmp_path) -> None:
    gap = lambda kappa, widths, _: 0.01 * kappa[list(widths)].max() ** 0.5  # noqa: E731
    result = outliers.outliers(FakeLaboratory(gap, exact=False))
    assert result.judgements == ()
    assert "exact rescaling is not known" in result.notes[0]
    assert [row[0] for row in result.tables[0].rows] == list(range(12))
    assert "rank ρ of a block's κ and its gap is 1 [1, 1] (absmax), 1 [1, 1] (exact clip) over 12 blocks" in (
        result.verdict
    )
    assert result.answer is NO, "blocks of low κ show a gap"
    round_trip(result, tmp_path)
    assert "max κ 600" in outliers.outliers(FakeLaboratory(gap, np.append(KAPPA, 600.0))).notes[0]


def test_a_model_without_blocks_of_low_kappa_leaves_that_part_out() -> None:
    result = outliers.outliers(FakeLaboratory(lambda kappa, *_: 0.01 * kappa.max() ** 0.5, KAPPA + 10))
    assert result.verdict.startswith("No block has κ below 5; ")
    assert len(result.tables) == 2


def halving(start: float, per_kappa: Callable[[float, str], float]) -> Callable[..., float]:
    """A gap that is 0.01 at `start` bits plus what κ costs, and half at each bit more."""
    return lambda kappa, widths, how: 0.01 * 2.0 ** (start + per_kappa(kappa.max(), how) - widths[0])


def test_bit_threshold_finds_the_width_and_its_move(tmp_path) -> None:
    result = bit_threshold.bit_threshold(FakeLaboratory(halving(3.6, lambda kappa, _: 1.9 * (kappa > 100))))
    numbers = result.judgements[0].numbers
    assert result.answer is YES
    assert numbers["width_absmax"] == pytest.approx(5.5, abs=0.15)
    assert numbers["move_absmax"] == pytest.approx(1.9, abs=0.05)
    round_trip(result, tmp_path)


def test_bit_threshold_that_the_clip_decides() -> None:
    cost = lambda kappa, how: 1.9 * (kappa > 100) * (how == "absmax")  # noqa: E731
    assert bit_threshold.bit_threshold(FakeLaboratory(halving(3.6, cost))).answer is NO


@pytest.mark.parametrize(("start", "answer"), [(5.5, YES), (4.0, NO), (7.0, NO)])
def test_bit_threshold_takes_a_model_with_outliers_of_its_own(start, answer, tmp_path) -> None:
    """At max κ 164 the research notes expect 5 to 6 bits."""
    result = bit_threshold.bit_threshold(FakeLaboratory(halving(start, lambda *_: 0), KAPPA + 155.4))
    assert result.answer is answer
    numbers = result.judgements[0].numbers
    assert numbers["width_absmax"] == pytest.approx(start, abs=0.15)
    assert numbers["expected_width"] == pytest.approx(6.0)
    assert "max κ 164 of its own" in result.notes[0]
    assert result.verdict.endswith("the documents expect 5.0 to 6.0 bits for this κ.")
    assert {row[0] for row in result.tables[1].rows} == {"unchanged"}
    round_trip(result, tmp_path)


def test_bit_threshold_without_a_knob_measures_the_model() -> None:
    result = bit_threshold.bit_threshold(FakeLaboratory(halving(3.6, lambda *_: 0), exact=False))
    assert "exact rescaling is not known" in result.notes[0]
    assert result.judgements[0].numbers["expected_width"] == pytest.approx(3.99, abs=0.01)
    assert result.answer is YES


@pytest.mark.parametrize(("part", "answer", "rank"), [(0.5, YES, 1), (0.9, NO, 1), (0.1, NO, 1), (-0.2, NO, 13)])
def test_layer_ablation_measures_the_reduction(part, answer, rank, tmp_path) -> None:
    def gap(_, widths, __):
        protected = {block for block, bits in widths.items() if bits == 8}
        return 0.2 * (1 - part if protected == {3, 7} else 0.95 if protected else 1)

    result = layer_ablation.layer_ablation(FakeLaboratory(gap))
    assert result.answer is answer
    assert result.judgements[0].numbers["reduction_absmax"] == pytest.approx(100 * part, abs=1)
    assert f"place {rank} (absmax)" in result.verdict
    round_trip(result, tmp_path)


def test_layer_ablation_takes_the_outlier_blocks_of_the_model() -> None:
    kappa = KAPPA.copy()
    kappa[[5, 6, 9]] = 150
    model, blocks = layer_ablation.with_outlier_blocks(FakeLaboratory(lambda *_: 0.1, kappa))
    assert (model, blocks) == ("plain", (5, 6, 9))
    with pytest.raises(InputError, match=r"--outlier-layers 2\), give a lower cut-off"):
        layer_ablation.with_outlier_blocks(FakeLaboratory(lambda *_: 0.1, exact=False))
