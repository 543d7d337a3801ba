"""The experiments that correlate traits of languages: what is chosen, and how it is judged."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from fairbits.auditing.record import HEADLINE
from fairbits.core.errors import InputError
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.included_texts import udhr, udhr_languages
from fairbits_research.experiments import language_traits
from fairbits_research.experiments.laboratory import Laboratory, Setting, language_values
from fairbits_research.experiments.language_traits import LanguageTraits, combine_languages
from fairbits_research.experiments.mediation_experiment import (
    Chain,
    TokenizationEffect,
    fit_chain,
    judge_chain,
    mean_over_languages,
)
from fairbits_research.experiments.result import Answer, all_of
from fairbits_research.experiments.trait_correlation import correlate, correlation_tables, has_sign, languages_needed
from fairbits_research.experiments.trait_experiments import (
    _judge_listed,
    _judge_mt5,
    is_fivefold,
    judge_proxy,
    judge_spread,
    judge_survival,
    times_as_much,
)
from fairbits_research.research_command import _tables

DOCUMENTS = 6
CODES = tuple(language.code for language in udhr_languages())
YES, NO, OPEN = Answer.SUPPORTED, Answer.NOT_SUPPORTED, Answer.UNDECIDED


def about(value: float, reach: float = 0.1) -> Estimate:
    return Estimate(value, value - reach, value + reach, 40)


def frame(level: dict[str, float], spread: float = 0.01) -> LanguageFrame:
    """One number per language, with a little noise over its documents."""
    rng = np.random.default_rng(0)
    lang, document = np.repeat(list(level), DOCUMENTS), np.tile(np.arange(DOCUMENTS), len(level))
    noise = rng.normal(0, spread, len(lang))
    return LanguageFrame(
        lang, document, values=np.repeat(list(level.values()), DOCUMENTS) + noise, weights=np.ones(len(lang))
    )


def traits(a: np.ndarray, damage: np.ndarray, *, lost: np.ndarray, quality: np.ndarray | None = None) -> LanguageTraits:
    """Traits of as many languages as there are numbers, with shares that rise with `a`."""
    codes = tuple(sorted(CODES[: len(a)]))
    rng = np.random.default_rng(1)
    measured = {name: frame(dict(zip(codes, x, strict=True)), 1e-4) for name, x in (("D", damage), ("lost", lost))}
    return LanguageTraits(
        among="own",
        languages=codes,
        damage={"nearest, 3 bits": measured["D"]},
        dropout=measured["lost"],
        outlier_share=frame(dict(zip(codes, a, strict=True)), 1e-4),
        kappa_frame=frame(dict(zip(codes, 100 * a, strict=True)), 1e-4),
        activation={HEADLINE: a, ("mlp", "norm"): a**2},
        kappa={HEADLINE: 100 * a, ("mlp", "norm"): 90 * a},
        attention=a,
        base_bits=rng.uniform(1, 2, len(a)),
        bytes_per_token=rng.uniform(3, 4, len(a)),
        quality=rng.uniform(0.3, 1, len(a)) if quality is None else quality,
        proxies={},
        shares=np.exp(20 * a + rng.normal(0, 0.05, len(a))),
    )


def example(sign: float = 1.0, n: int = 40) -> LanguageTraits:
    """Languages of which those with more outlier activation bear dropped columns better, and lose less."""
    rng = np.random.default_rng(2)
    a = rng.uniform(0.1, 0.2, n)
    lost = 1 - sign * 4 * (a - 0.15) + rng.normal(0, 0.02, n)
    return traits(a, 0.3 * lost + rng.normal(0, 0.005, n), lost=lost)


class TestTraitCorrelation:
    def test_a_sign_holds_fails_or_is_open(self) -> None:
        assert [has_sign(about(r, reach), -1) for r, reach in ((-0.6, 0.2), (0.1, 0.2), (-0.3, 0.4))] == [YES, NO, OPEN]
        assert [has_sign(about(r, reach), 1) for r, reach in ((0.6, 0.2), (-0.1, 0.2), (0.3, 0.4))] == [YES, NO, OPEN]

    def test_few_languages_decide_nothing(self) -> None:
        assert has_sign(Estimate(1.0, 1.0, 1.0, 5), 1) is OPEN

    def test_one_part_that_fails_is_enough(self) -> None:
        assert all_of([YES, YES]) is YES
        assert all_of([YES, OPEN]) is OPEN
        assert all_of([OPEN, NO, YES]) is NO

    def test_what_is_held_fixed_must_vary_and_leave_languages(self) -> None:
        rng = np.random.default_rng(0)
        x, y, z = rng.normal(size=(3, 12))
        correlation = correlate(("x", x), ("y", y), among="own", covariates={"z": z, "constant": np.ones(12)})
        assert correlation.covariates == ("z",)
        assert correlate(("x", x[:6]), ("y", y[:6]), among="own", covariates={"z": z[:6]}).partial is None

    def test_a_common_cause_disappears_when_it_is_held_fixed(self) -> None:
        rng = np.random.default_rng(0)
        cause = rng.normal(size=60)
        x, y = cause + 0.3 * rng.normal(size=(2, 60))
        correlation = correlate(("x", x), ("y", y), among="many", covariates={"cause": cause})
        assert correlation.r.low > 0.5
        assert correlation.partial is not None
        assert not correlation.partial.estimate.excludes(0.0)

    def test_the_table_adjusts_for_all_its_rows(self) -> None:
        rng = np.random.default_rng(0)
        correlations = [
            correlate((f"x{i}", rng.normal(size=12)), ("y", rng.normal(size=12)), among="own") for i in range(5)
        ]
        table, checks = correlation_tables("correlations", correlations)
        p, adjusted = (
            np.array([float(row[table.columns.index(name)]) for row in table.rows]) for name in ("p", "p, Holm")
        )
        assert adjusted.min() == pytest.approx(min(1.0, 5 * p.min()), rel=1e-3)
        assert table.title == "correlations, with y"
        assert [row[:2] for row in table.rows] == [("12 own", f"x{i}") for i in range(5)]
        assert [row[3:] for row in checks.rows] == [("–", "–")] * 5, "nothing was held fixed"

    def test_only_what_is_open_needs_more_languages(self) -> None:
        assert "r(a)" not in languages_needed({"r(a)": about(0.5), "r(b)": about(0.3, 0.4)})
        assert "85" in languages_needed({"r(b)": about(0.3, 0.4)})


class TestManyLanguages:
    def test_every_script_and_family_has_its_turn(self) -> None:
        chosen = language_traits.draw_languages(CODES, 60, seed=0)
        assert len(set(chosen)) == 60
        strata = {(language.script, language.family) for language in udhr_languages()}
        covered = {(language.script, language.family) for language in udhr_languages() if language.code in chosen}
        assert len(covered) == min(60, len(strata))
        assert chosen != language_traits.draw_languages(CODES, 60, seed=1)

    def test_named_languages_and_own_text_are_all_there_is(self) -> None:
        assert language_traits.many_languages(Laboratory(Setting(text=udhr(["eng", "fra"])))) is None
        assert language_traits.many_languages(Laboratory(Setting("./model", languages=["eng", "fra"]))) is None

    def test_others_are_drawn_from_those_the_model_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screening = language_traits.LanguageScreening(dict.fromkeys(CODES[:150], 0.5) | dict.fromkeys(CODES[150:], 2.0))
        monkeypatch.setattr(language_traits, "screen_languages", lambda *_: screening)
        drawn = language_traits.many_languages(Laboratory(Setting(tokens=4096)))
        assert drawn is not None
        asked = drawn[0].setting
        assert len(asked.languages or ()) == language_traits.MOST_LANGUAGES
        assert set(asked.languages or ()) <= set(CODES[:150])
        assert asked.tokens == language_traits.TOKENS_OF_MANY

    def test_the_next_ones_fill_up_and_it_is_said(self) -> None:
        loss = dict(zip(CODES[:100], np.linspace(0.9, 1.9, 100).tolist(), strict=True))
        screening = language_traits.LanguageScreening(loss)
        assert len(screening.known) == 10
        assert screening.choose(0) == sorted(CODES[:60])
        assert "10 of the 100" in screening.note()
        assert "50 next best" in screening.note()

    def test_a_model_knows_its_own_language_and_not_a_foreign_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        few = udhr(["eng_Latn", "fra_Latn", "aar_Latn"])
        monkeypatch.setattr(language_traits, "udhr", lambda: few)
        language_traits._screen.cache_clear()
        screening = language_traits.screen_languages("embedded:tiny", 64, 0, "cpu")
        language_traits._screen.cache_clear()
        assert set(screening.known) == {"eng_Latn", "fra_Latn"}


def test_without_damage_there_is_no_redundancy() -> None:
    whole = example()
    lost = np.where(np.arange(40) < 3, -0.5, 0.5)
    some = replace(whole, dropout=frame(dict(zip(whole.languages, lost, strict=True)))).with_redundancy()
    assert some.languages == whole.languages[3:]


def test_some_of_the_languages_keep_their_traits() -> None:
    whole = example()
    codes = whole.languages[3:20:2]
    some = whole.restrict(codes, "known")
    at = [whole.languages.index(code) for code in codes]
    assert some.languages == codes == some.damage["nearest, 3 bits"].languages
    assert np.array_equal(some.a, whole.a[at])
    assert some.robustness == pytest.approx(whole.robustness[at])


class TestCorrelations:
    def test_fivefold_has_three_answers(self) -> None:
        assert [is_fivefold(Estimate(4, low, high, 9)) for low, high in ((2, 6), (2, 4.5), (0.5, 6))] == [YES, NO, OPEN]

    def test_the_ratio_is_that_of_the_two_languages(self) -> None:
        damage = frame({"arb_Arab": 1.0, "eng_Latn": 0.2, "fra_Latn": 0.5})
        times = times_as_much(damage, "arb_Arab", "eng_Latn")
        assert times is not None
        assert times.low < 5 < times.high
        assert times_as_much(damage, "arb_Arab", "heb_Hebr") is None
        assert times_as_much(frame({"arb_Arab": 1.0, "eng_Latn": 0.0}), "arb_Arab", "eng_Latn") is None

    @pytest.mark.parametrize(("more", "answer"), [(0.1, YES), (-0.1, NO), (0.014, OPEN)])
    def test_the_listed_rows_are_contrasted(self, more: float, answer: Answer) -> None:
        share = frame({"arb_Arab": 0.2, "eng_Latn": 0.2 + more, "fra_Latn": 0.2 + more, "hin_Deva": 0.2}, 0.02)
        assert _judge_listed(share).answer is answer

    def test_nothing_is_said_without_the_languages(self) -> None:
        assert _judge_listed(frame({"eng_Latn": 0.2, "fra_Latn": 0.1})) is None
        assert combine_languages(frame({"eng_Latn": 0.2, "fra_Latn": 0.1}), {"heb_Hebr": 1.0}) is None

    def test_attention_has_three_answers(self) -> None:
        estimates = about(-0.8), about(0.0), about(-0.5), None
        assert [_judge_mt5(estimate, ("decoder",) * 4).answer for estimate in estimates] == [YES, NO, OPEN, OPEN]

    @pytest.mark.parametrize(
        ("stacks", "words"),
        [
            (("encoder", "decoder"), "the decoder's outlier blocks, in an encoder–decoder model as mT5 is"),
            (("encoder",), "of an encoder, which is no model like mT5"),
            (("decoder",), "of a decoder, which is no model like mT5"),
        ],
    )
    def test_attention_says_in_which_kind_of_model(self, stacks: tuple[str, ...], words: str) -> None:
        assert words in _judge_mt5(about(-0.8), stacks).because

    def test_the_table_of_the_research_notes_is_ordered_by_damage(self) -> None:
        whole = example(n=12)
        table = whole.main_table("nearest, 3 bits")
        assert table.columns == ("language", "ā_outlier", "κ_eff", "D, nearest, 3 bits, bits/byte")
        damage = [float(row[3].split()[0]) for row in table.rows]
        assert damage == sorted(damage)
        assert sorted(row[0] for row in table.rows) == list(whole.languages)

    def test_traits_are_in_narrow_tables(self) -> None:
        tables = example(n=12).tables()
        assert [table.title.split(" of ")[0] for table in tables] == [
            *("Activation", "Effective kurtosis", "Damage in bits per byte", "Redundancy", "Text")
        ]
        assert max(len(table.columns) for table in tables) <= 8
        assert tables[1].columns == ("language", "κ_eff", "κ_eff, MLP norm")

    def test_tables_can_be_read_at_100_columns(self) -> None:
        """No number or interval is cut or broken over lines."""
        whole = example(n=12)
        damage = whole.damage["nearest, 3 bits"]
        pairs = [
            correlate(x, (name, language_values(damage)), among="known", covariates=whole.log_share)
            for x in whole.other_measures().items()
            for name in ("nearest, 3 bits", "exact clip, 4 bits")
        ]
        tables = *whole.tables(), whole.main_table("nearest, 3 bits"), *correlation_tables("Correlations", pairs)
        for table in tables:
            console = Console(file=io.StringIO(), width=100)
            console.print(*_tables(table))
            text = console.file.getvalue()
            assert max(map(cell_len, text.splitlines())) <= 100
            assert "…" not in text
            numbers = {cell for row in table.rows for cell in row if str(cell)[0] in "-0123456789"}
            assert {cell for cell in numbers if str(cell) not in text} == set()

    def test_without_outlier_blocks_there_is_no_share(self) -> None:
        none = replace(example(), outlier_share=None, activation={}, attention=None)
        with pytest.raises(InputError, match="--outlier-layers"):
            _ = none.a
        assert judge_proxy(none) is judge_survival(none) is None
        assert "ā_outlier" not in {column for table in none.tables() for column in table.columns}


class TestTrainingData:
    def test_spread_and_cause_are_both_needed(self) -> None:
        wide, narrow = about(0.08, 0.01), about(0.01, 0.005)
        assert judge_spread(wide, about(0.6)).answer is YES
        assert judge_spread(narrow, about(0.6)).answer is NO
        assert judge_spread(wide, about(-0.6)).answer is NO
        assert judge_spread(wide, about(0.2, 0.4)).answer is OPEN


class TestRedundancy:
    def test_a_true_proxy_is_seen_and_a_false_one_too(self) -> None:
        assert judge_proxy(example()).answer is YES
        assert judge_proxy(example(-1.0)).answer is NO
        assert judge_proxy(example(n=5)).answer is OPEN

    def test_survival_needs_both_links_and_the_shares(self) -> None:
        assert judge_survival(example()).answer is YES
        assert judge_survival(example(-1.0)).answer is NO
        assert judge_survival(replace(example(), shares=None)) is None


def chain_of(p: float, effect: Estimate, power: float) -> Chain:
    return Chain(SimpleNamespace(chain=effect), "families", {}, {"T and R given A": p, "T and D given R": 0.9}, power)  # type: ignore[arg-type]


def moved_by(damage: float, lost: float, activation: float, base: float = 1.1) -> TokenizationEffect:
    D, lost_too = (frame(dict.fromkeys(("eng_Latn", "heb_Hebr"), value)) for value in (damage, lost))
    return TokenizationEffect(D, lost_too, about(activation, 0.05), 0.25, base)


class TestMediation:
    AGREES = moved_by(0.5, 0.5, -0.2)

    def test_the_chain_has_three_answers(self) -> None:
        effect, none = about(0.5), about(0.0)
        assert judge_chain(chain_of(0.5, effect, 0.9), self.AGREES) is YES
        assert judge_chain(chain_of(0.01, effect, 0.9), self.AGREES) is NO
        assert judge_chain(chain_of(0.5, effect, 0.9), moved_by(0.5, 0.5, 0.2)) is NO
        assert judge_chain(chain_of(0.5, effect, 0.9), moved_by(0.5, -0.5, -0.2)) is NO
        assert judge_chain(chain_of(0.5, none, 0.9), self.AGREES) is OPEN
        assert judge_chain(chain_of(0.5, effect, 0.5), self.AGREES) is OPEN
        assert judge_chain(chain_of(0.5, effect, 0.9), moved_by(0.0, 0.0, 0.0)) is OPEN

    def test_foreign_text_decides_nothing(self) -> None:
        assert judge_chain(chain_of(0.5, about(0.5), 0.9), moved_by(0.5, 0.5, -0.2, base=2.0)) is OPEN
        assert judge_chain(chain_of(0.5, about(0.5), 0.9), moved_by(0.5, -0.5, -0.2, base=2.0)) is OPEN

    def test_a_way_beside_the_chain_contradicts_it(self) -> None:
        rng = np.random.default_rng(3)
        n = 60
        T = rng.uniform(0.3, 1, n)
        a = 0.1 + 0.1 * T + rng.normal(0, 0.01, n)
        lost = 1 / (1 + 4 * a + rng.normal(0, 0.02, n))
        direct = 0.5 * lost - 0.3 * T + rng.normal(0, 0.01, n)
        alone = 0.5 * lost + rng.normal(0, 0.01, n)
        fits = {
            way: fit_chain(measured, seed=0, mediator=dict(zip(measured.languages, a.tolist(), strict=True)))
            for way, measured in (
                (way, traits(a, D, lost=lost, quality=T)) for way, D in (("beside", direct), ("alone", alone))
            )
        }
        assert fits["beside"].p["T and D given R"] < 0.01
        assert min(fits["alone"].p.values()) > 0.05
        assert fits["alone"].fit.chain.low > 0

    def test_few_languages_are_refused(self) -> None:
        with pytest.raises(InputError, match="name at least 12"):
            fit_chain(example(n=8), seed=0, mediator=dict.fromkeys(example(n=8).languages, 0.5))

    def test_languages_without_a_mediator_are_left_out(self) -> None:
        whole = example(n=30)
        some = dict(zip(whole.languages[1:], whole.a[1:].tolist(), strict=True))
        assert fit_chain(whole, seed=0, mediator=some).fit.chain.n == 29

    def test_the_mean_over_languages_has_an_interval(self) -> None:
        mean = mean_over_languages(np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.3]))
        assert mean.value == pytest.approx(0.2)
        assert 0 < mean.low < 0.2 < mean.high < 0.4
