"""Scores show a table of languages, and give a DataFrame by language or by document."""

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.scores import Scores


@pytest.fixture
def scores(draw) -> Scores:
    return draw({"heb_Hebr": 9.0, "fin_Latn": 4.0, "eng_Latn": 2.0})


def test_a_short_table_instead_of_arrays(scores: Scores) -> None:
    shown = repr(scores)
    assert "array(" not in shown
    assert any(line.split()[:3] == ["language", "code", "changed,"] for line in shown.splitlines())
    assert all(code in scores._repr_html_() for code in scores.languages)
    assert scores.disparity().worst[0] in next(line for line in shown.splitlines() if "█" * 8 in line)


def test_pandas_by_language_and_by_document(scores: Scores) -> None:
    table, frame = scores.to_pandas(), scores.frame().by_language()
    assert set(table.index) == set(scores.languages)
    assert table["divergence_bits_per_byte"].is_monotonic_decreasing
    for code in scores.languages:
        assert table.loc[code, "divergence_bits_per_byte"] == frame[code].value
        assert table.loc[code, "loss_nats_per_token_low"] == pytest.approx(
            scores.frame("nats_per_token", measure="loss").by_language()[code].low
        )
        assert table.loc[code, "tokens"] == scores.documents.tokens[scores.documents.lang == code].sum()
        assert table.loc[code, "kl_p99"] == scores.percentiles[code].kl_p99
    documents = scores.to_pandas(by="document")
    np.testing.assert_array_equal(documents["kl"], scores.documents.kl)
    assert documents.groupby("lang").size().to_dict() == table["documents"].to_dict()
    with pytest.raises(InputError, match="by is 'token'"):
        scores.to_pandas(by="token")


def test_the_figure_names_its_measure(scores: Scores) -> None:
    figure = scores.plot("nats_per_token", measure="loss").to_dict()
    assert figure["layout"]["title"]["text"] == "Added loss of every language"
    assert figure["layout"]["xaxis"]["title"]["text"] == "nats per token"
    estimates = scores.frame("nats_per_token", measure="loss").by_language()
    assert dict(zip(figure["data"][0]["text"], figure["data"][0]["x"], strict=True)) == {
        code: estimate.value for code, estimate in estimates.items()
    }
