"""An audit shows a table of languages, and gives a DataFrame and figures of the same numbers."""

from collections.abc import Callable

import pytest

from fairbits.api.audit import audit
from fairbits.auditing.record import Audit
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import Corpus

CORPUS = Corpus(
    "weather",
    {
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(6)],
        "eng": [f"On day {i} the wind came from the north and brought {i} hours of rain." for i in range(6)],
    },
    {},
    parallel=True,
)


@pytest.fixture(scope="module")
def record(reading_model: Callable[[str], Checkpoint]) -> Audit:
    return audit(reading_model("llama"), text=CORPUS, scheme=Scheme(3, 16), tokens=100)


def test_table_and_pandas_are_worst_first(record: Audit) -> None:
    damage = record.predicted.bits_per_byte.by_language()
    order = sorted(damage, key=lambda code: -damage[code].value)
    table = record.to_pandas()
    assert list(table.index) == order
    assert table["predicted_bits_per_byte"].tolist() == [damage[code].value for code in order]
    assert table["trusted"].tolist() == [code in record.trusted for code in order]
    lines = repr(record).splitlines()
    assert "W3 group 16" in lines[0]
    assert [line.split()[0] for line in lines[2:4]] == order
    assert ("?" in lines[-1]) == (len(record.trusted) < 2)
    assert "<table" in record._repr_html_()


def test_figures_of_languages_and_of_blocks(record: Audit) -> None:
    languages, blocks = (record.plot(what).to_dict()["data"][0] for what in ("languages", "blocks"))
    assert languages["text"] == blocks["y"]
    order = [record.predicted.languages.index(code) for code in blocks["y"]]
    assert blocks["z"] == record.predicted.by_block[order].tolist()
    with pytest.raises(InputError, match="what is 'layers'"):
        record.plot("layers")
