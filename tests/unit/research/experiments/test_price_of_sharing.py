"""The price of sharing: costs and bounds of made-up inputs, how it is judged, and a small real run."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fairbits.stats.frame import LanguageFrame
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.price_of_sharing import (
    BITS,
    DAMP,
    FLOOR,
    Followed,
    ModelCosts,
    SharedInput,
    input_costs,
    model_costs,
    price_of_sharing,
    shared_inputs,
)
from fairbits_research.experiments.result import Answer
from fairbits_research.theory.sharing import LeastFavourable, feedback_costs, mix_moments

LANGUAGES = 3


def example(seed: int, n: int = 6) -> SharedInput:
    """An input whose languages use its columns differently; text for evaluation differs a little."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(LANGUAGES, n, 2 * n)) * np.exp(rng.normal(size=(LANGUAGES, n, 1)))
    H, other = (
        (root @ root.transpose(0, 2, 1) / root.shape[2]).astype(np.float32)
        for root in (roots, roots + 0.1 * rng.normal(size=roots.shape))
    )
    damage = rng.uniform(0.5, 2.0, (2, LANGUAGES))
    return SharedInput(f"blocks.{seed}.mlp.input", H, other, (damage[0], damage[1]))


def nothing(_what: str, _done: float, _total: float) -> None:
    """Reports nowhere."""


@pytest.fixture(scope="module")
def inputs() -> list[SharedInput]:
    return [example(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def model(inputs) -> ModelCosts:
    return model_costs(inputs, [input_costs(shared_input) for shared_input in inputs], nothing)


class TestCosts:
    def test_no_mix_is_below_the_bounds(self, inputs, model) -> None:
        rng = np.random.default_rng(0)
        for pi in rng.dirichlet(np.ones(LANGUAGES), size=30):
            paid = sum(shared_input.damage[1] * shared_input.least_costs(pi) for shared_input in inputs)
            assert paid.max() >= model.bound.bound * (1 - 1e-9)
            assert (paid / model.alone).max() >= model.price.bound * (1 - 1e-9)
        assert model.bound.reached <= model.bound.bound * 1.011

    def test_the_mix_for_the_worst_language_lowers_its_damage(self, model) -> None:
        assert model.worst.max() < model.equal.max()
        assert model.mix.sum() == pytest.approx(1)
        assert 0 < model.room < 1
        assert model.room == pytest.approx(1 - model.bound.bound / model.equal.max())

    def test_each_input_has_a_price(self, inputs) -> None:
        for one in inputs:
            costs = input_costs(one)
            assert costs.any_code.bound < costs.price.bound <= costs.ratio.max() * 1.2
            alone = [one.costs(pi)[i] for i, pi in enumerate(np.eye(LANGUAGES))]
            assert costs.alone == pytest.approx(alone)

    def test_costs_on_the_calibration_text_contain_the_damping(self) -> None:
        one = example(5)
        pi = np.array([0.2, 0.3, 0.5])
        n = one.columns
        damped = one.calibration + DAMP * np.trace(one.calibration, axis1=1, axis2=2)[:, None, None] / n * np.eye(n)
        expected = feedback_costs(damped, mix_moments(damped, pi), order=one.order)
        assert one.calibration_costs(pi) == pytest.approx(expected, rel=1e-5)


def test_damage_is_in_bits_per_byte_and_sums_the_maps_of_an_input() -> None:
    H = np.stack([np.eye(2), 3 * np.eye(2)]).astype(np.float32)
    measured = SimpleNamespace(
        languages=("a", "b"),
        lang=np.array(["a", "b", "b"]),
        predicted=np.array([10.0, 5.0, 5.0]),
        size_bytes=np.array([40.0, 10.0, 10.0]),
        gradients={"q": np.array([[1.0, 2.0], [3.0, 4.0]]), "k": np.array([[1.0], [1.0]])},
        inputs={"attention": H, "unused": H},
        seen_by={"q": "attention", "k": "attention"},
    )
    (shared_input,) = shared_inputs(measured, measured, {"q": np.array([1.0, 0.5]), "k": np.array([2.0])})
    expected = 0.5 * np.array([1 + 1 + 2, 3 + 2 + 2]) * np.array([10 / 40, 10 / 20]) / np.log(2)
    assert shared_input.damage[0] == pytest.approx(expected)
    assert shared_input.damage[1] == pytest.approx(expected)
    assert shared_input.calibration is H
    assert shared_input.evaluation == pytest.approx(H * (1 + FLOOR))


def frame(levels, *, spread=0.001) -> LanguageFrame:
    rng = np.random.default_rng(1)
    lang, document = np.repeat(["a", "b", "c"], 20), np.tile(np.arange(20), 3)
    return LanguageFrame(lang, document, values=np.repeat(levels, 20) + rng.normal(0, spread, 60), weights=np.ones(60))


class TestAnswer:
    costs = ModelCosts(*(np.ones(LANGUAGES),) * 4, *(LeastFavourable(np.ones(LANGUAGES), 0.5, 0.51),) * 2)

    def test_it_is_measured_where_there_is_room(self) -> None:
        equal = frame([0.1, 0.2, 0.3])
        for other, expected in (
            ([0.15, 0.2, 0.2], Answer.SUPPORTED),
            ([0.1, 0.2, 0.31], Answer.NOT_SUPPORTED),
            ([0.1, 0.2, 0.3], Answer.NOT_SUPPORTED),
        ):
            assert Followed(equal, frame(other), self.costs).answer is expected
        assert Followed(frame([0.1, 0.1, 0.1], spread=1), frame([0.1] * 3, spread=1.3), self.costs).answer is (
            Answer.UNDECIDED
        )

    def test_without_room_nothing_can_help(self) -> None:
        narrow = replace(self.costs, bound=LeastFavourable(np.ones(LANGUAGES), 0.9, 0.91))
        assert Followed(frame([0.1, 0.2, 0.3]), frame([0.1, 0.2, 0.1]), narrow).answer is Answer.NOT_SUPPORTED


@pytest.mark.long
@pytest.mark.usefixtures("two_block_embedded")
def test_a_small_real_run() -> None:
    codes = "amh_Ethi", "eng_Latn", "fra_Latn"
    whole = udhr(codes)
    parts = [
        {code: tuple(text[:60] for text in texts[-6:]) for code, texts in split.items()}
        for split in (whole.calibration, whole.evaluation)
    ]
    result = price_of_sharing(Laboratory(Setting(tokens=64, calibration=64, text=Corpus("short", *parts))))
    worst, languages, layers, check = result.tables
    assert [row[0] for row in languages.rows] == list(codes)
    assert len(layers.rows) == 8
    assert len(check.rows) == 4
    assert max(row[-1] for row in check.rows) < 0.25  # predicted ratios are those of GPTQ
    assert worst.rows[-1][2] <= worst.rows[1][2]
    assert f"{BITS} bits" in check.title
