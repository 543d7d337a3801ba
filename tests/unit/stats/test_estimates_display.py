"""A frame of languages shows a short table, and gives a DataFrame and a figure of the same numbers."""

import numpy as np

from fairbits.stats.frame import LanguageFrame


def drawn(languages: int = 3, documents: int = 20) -> LanguageFrame:
    rng = np.random.default_rng(0)
    lang = np.repeat([f"l{i:02}" for i in range(languages)], documents)
    values = rng.normal(np.repeat(np.arange(languages) + 2.0, documents), 0.5)
    document = np.tile(np.arange(documents), languages)
    return LanguageFrame(lang, document, values=values, weights=np.full(len(lang), 100.0), resamples=200)


def test_the_table_is_short_and_worst_first() -> None:
    frame = drawn()
    lines = repr(frame).splitlines()
    assert lines[0] == "Damage in bits per byte with 95% intervals over documents"
    assert [line.split()[0] for line in lines[2:5]] == ["l02", "l01", "l00"]
    assert f"{frame.by_language()['l02'].value:.4f}" in lines[2]
    assert lines[5].startswith("worst l02 ")
    assert "<table" in frame._repr_html_()
    assert len(repr(drawn(40)).splitlines()) < 16


def test_one_language_and_few_documents() -> None:
    assert "gap" not in repr(drawn(1))
    frame = drawn(2, documents=2)
    assert " – " in repr(frame)
    assert frame.to_pandas()["damage_low"].isna().all()


def test_pandas_and_figure_have_the_numbers_of_the_frame() -> None:
    frame = drawn()
    table, expected = frame.to_pandas(), frame.by_language()
    assert list(table.index) == ["l02", "l01", "l00"]
    for code, row in table.iterrows():
        own = expected[code]
        assert (row.damage, row.damage_low, row.damage_high, row.documents) == (own.value, own.low, own.high, own.n)
    trace = frame.plot().to_dict()["data"][0]
    assert trace["text"] == ["l02", "l01", "l00"]
    assert trace["x"] == table["damage"].tolist()
