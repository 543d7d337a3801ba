"""How much text decides: against the normal approximation, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import fairbits
from fairbits.api.power import MOST_TOKENS, AmountTrial, Power, power
from fairbits.core.errors import InputError
from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.gate import gate
from fairbits.evaluation.measurement import BOUND, Measurement
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity

TOKENS, BYTES = 100, 400
NORMAL = stats.norm.ppf((np.arange(20) + 0.5) / 20)  # a sample of 20 whose spread is known


def pilot(damage: dict[str, float], *, relative_sd: float = 0.3, changed: float = 0.1, documents: int = 20) -> Scores:
    """Returns scores in which the KL of documents in bits per byte has exactly this mean and relative spread."""
    size = len(damage) * documents
    ones, spread = np.ones(size), np.resize(NORMAL / NORMAL.std(), size)
    kl = np.repeat(list(damage.values()), documents) * (1 + relative_sd * spread) * BYTES * math.log(2)
    table = DocumentScores(
        lang=np.repeat(list(damage), documents),
        document=np.arange(size),
        tokens=TOKENS * ones,
        bytes=BYTES * ones,
        nll_reference=400 * ones,
        nll_quantized=400 + kl,
        kl=kl,
        flips=np.random.default_rng(0).binomial(TOKENS, changed, size).astype(float),
    )
    question = EvaluationSetting(
        "causal", "drawn", "evaluation", False, dict.fromkeys(damage, "0" * 64), documents * TOKENS, 512, 0
    )
    models = Identity("small", "f" * 64, 1000), Identity("large", "e" * 64, 4000)
    return Scores(*models, question, tuple(damage), table, dict.fromkeys(damage, TokenPercentiles(*[0.25] * 6)))


ONE_IS_WORST = {"heb_Hebr": 0.02, "eng_Latn": 0.002, "fin_Latn": 0.003}
BINOMIAL = pilot(dict.fromkeys(("eng_Latn", "fin_Latn"), 0.01))


def test_a_language_whose_text_ended_does_not_make_the_pilot_smaller() -> None:
    """What is recommended is what `evaluate --tokens` takes: the others get so many tokens."""
    long = pilot(dict.fromkeys(("eng_Latn", "fin_Latn"), 0.01), documents=40)
    rows = np.flatnonzero((long.documents.lang == "fin_Latn") | (np.arange(80) < 8))
    fewer = {name: column[rows] for name, column in long.documents.columns().items()}
    answer = power(replace(long, documents=DocumentScores(**fewer)), max_changed=50, expected=10, releases=50)
    assert (answer.pilot_tokens, answer.pilot_documents, answer.short) == (4000, 8, ("eng_Latn",))
    assert "had less text, so more tokens need more text: eng_Latn" in answer.tables()[0].text()
    assert power(BINOMIAL, max_changed=50, expected=10, releases=50).short == ()


def needed(relative_sd: float, expected: float) -> float:
    """Returns the documents whose mean of `expected` is surely below a limit of 1 in 80 of 100 cases, if normal."""
    reach = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    return (reach * expected * relative_sd / (1 - expected)) ** 2


@pytest.mark.parametrize("expected", [0.85, 0.9])
def test_the_amount_is_the_one_of_the_normal_approximation(expected: float) -> None:
    found_amount = power(pilot(ONE_IS_WORST), max_worst=0.01, expected=expected * 0.01, releases=100)
    assert found_amount
    last = found_amount.trials[-1]
    assert last.tokens == last.documents * TOKENS
    assert max(20, needed(0.3, expected) * 0.75) <= last.documents <= max(20, 2.2 * needed(0.3, expected))
    assert last.false_pass_share.low <= 0.05
    assert (
        f"{last.tokens:,} tokens per language decide: of 100 simulated releases at the limit" in found_amount.sentence
    )


def test_with_more_text_there_are_fewer_misses_and_with_more_spread_there_are_more() -> None:
    def misses(tokens: int, **settings: float) -> float:
        scores = pilot(ONE_IS_WORST, **settings)
        return power(scores, max_worst=0.01, expected=0.008, tokens=tokens, releases=100).trials[-1].miss_share.value

    shares = [misses(tokens) for tokens in (500, 1000, 2000, 4000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5 > 0.2 > shares[-1]
    assert misses(2000, relative_sd=0.45) > shares[2] + 0.1


def test_changed_tokens_that_vary_as_tosses_of_a_coin_do() -> None:
    """Two languages at 8 of 100, limit 10: the normal approximation of both passing at once."""
    answer = power(BINOMIAL, max_changed=10, expected=8, releases=100)
    reach = 1.96 + stats.norm.ppf(math.sqrt(0.8))
    tokens = (reach / 0.02) ** 2 * 0.08 * 0.92
    assert tokens / 2 <= answer.trials[-1].tokens <= 2.5 * tokens
    assert (answer.unit, answer.languages, answer.pilot_tokens) == ("of 100", 2, 2000)


def test_a_limit_that_is_too_near_is_named() -> None:
    answer = power(BINOMIAL, max_changed=10, expected=9.99, releases=50)
    assert not answer
    assert answer.sentence.startswith(f"No amount up to {MOST_TOKENS:,} tokens per language decides, because 9.99 is")
    assert answer.as_data()["tokens"] is None
    amounts = [trial.tokens for trial in answer.trials]
    assert amounts == [2000 * 2**i for i in range(len(amounts))]
    assert amounts[-1] <= MOST_TOKENS < 2 * amounts[-1]


def test_one_amount_that_does_not_decide() -> None:
    answer = power(BINOMIAL, max_changed=10, expected=9, tokens=1000, releases=50)
    assert len(answer.trials) == 1
    assert answer.sentence.startswith("1,000 tokens per language do not decide: of 50 simulated releases")


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again, other = (
        power(BINOMIAL, max_changed=10, expected=8, tokens=4000, releases=50, seed=seed) for seed in (0, 0, 1)
    )
    assert first.as_data() == again.as_data() != other.as_data()


def test_how_it_is_shown() -> None:
    trial = AmountTrial(
        20, 2000, releases=400, false_passes=12, misses=48, undecided_at_limit=380, undecided_at_expected=40
    )
    answer = Power("small", 10, 5, None, 2, 20, 2000, (), (trial,), searched=True, seed=0)
    assert answer.sentence == (
        "2,000 tokens per language decide: of 400 simulated releases at the limit, 3 % pass; of 400 at 5 of 100, "
        "88 % pass."
    )
    (table,) = answer.tables()
    assert "3 % (1.7–5.2)" in table.text()
    frame = answer.to_pandas()
    assert (frame.index.tolist(), frame["misses"].tolist()) == ([2000], [0.12])
    assert answer.as_data()["trials"][0]["false_pass_share"]["value"] == 0.03


def bound(scores: Scores) -> Scores:
    covered = dict.fromkeys(scores.languages, 0.9)
    return replace(scores, percentiles={}, measurement=Measurement("vLLM", BOUND, top=20, covered=covered))


@pytest.mark.parametrize(
    ("scores", "settings", "message"),
    [
        (BINOMIAL, {}, "there is no limit; give either --max-changed, such as 10, or --max-worst"),
        (BINOMIAL, {"max_changed": 10, "max_worst": 1}, "there is more than one limit"),
        (BINOMIAL, {"max_changed": 10, "expected": 10}, "the expected value is 10 and the limit is 10; no amount"),
        (BINOMIAL, {"max_changed": 10, "expected": 0}, "the expected value is 0; it must be finite, above 0"),
        (BINOMIAL, {"max_changed": 0}, "max_changed is 0"),
        (BINOMIAL, {"max_changed": 100}, "max_changed is 100"),
        (BINOMIAL, {"max_worst": 0}, "the limit of the worst language is 0"),
        (BINOMIAL, {"max_changed": 10, "releases": 10}, "releases is 10; it must be 50 or more"),
        (BINOMIAL, {"max_changed": 10, "tokens": 100}, "100 tokens are 1 document of this kind; an interval needs at"),
        (BINOMIAL, {"max_worst": 1, "measure": "kl"}, "measure is 'kl'; it must be one of divergence, loss"),
        (
            pilot(ONE_IS_WORST, documents=4),
            {"max_worst": 1},
            "no interval for eng_Latn .4 documents; an interval needs",
        ),
        (bound(BINOMIAL), {"max_worst": 1}, "is a lower bound, and no amount of text lets a gate pass on it"),
        ("none.json", {"max_worst": 1}, "none.json"),
    ],
)
def test_refusals(scores: Scores | str, settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        power(scores, **settings)


def test_bounds_from_servers_have_a_limit_on_the_loss_and_a_gate_that_cannot_pass_on_kl() -> None:
    scores = bound(BINOMIAL)
    assert gate(scores, max_worst=99).checks[0].outcome == "undecided"
    assert power(scores, max_worst=0.02, measure="loss", tokens=2000, releases=50).measure == "loss"


def test_without_loss_nothing_can_be_scaled() -> None:
    table = replace(BINOMIAL.documents, nll_quantized=BINOMIAL.documents.nll_reference - BINOMIAL.documents.kl)
    with pytest.raises(InputError, match="no language of the pilot has lost anything"):
        power(replace(BINOMIAL, documents=table), max_worst=1, measure="loss")


def test_it_is_public() -> None:
    assert fairbits.power is power
