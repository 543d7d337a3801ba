"""The record of LA-ACIQ: the square law, tables, figure and file."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from fairbits.core.errors import InputError
from fairbits.core.table import render_tables
from fairbits.kurtosis.clipping_record import ClippedLanguage, ClippedLayer, LanguageClipping, square_law
from fairbits.stats.intervals import Estimate

CODES = ("eng_Latn", "fra_Latn", "heb_Hebr", "hin_Deva", "swh_Latn")


def language(kappa: float, excess: float) -> ClippedLanguage:
    estimate = Estimate(kappa, kappa - 1, kappa + 1, 9)
    relative = Estimate(excess, 0.9 * excess, 1.1 * excess, 9)
    alpha = estimate.transform(lambda k: 2.5 + 0.3 * np.log1p(max(k, 0.0)))
    return ClippedLanguage(estimate, estimate, 1.0, alpha, 4.0, 1.0 + excess, 1.1 + excess, 1.0, relative, relative)


def languages(kappas: list[float], excess: list[float]) -> dict[str, ClippedLanguage]:
    return {code: language(*pair) for code, pair in zip(CODES, zip(kappas, excess, strict=True), strict=False)}


def record(by_language: dict[str, ClippedLanguage]) -> LanguageClipping:
    codes = tuple(by_language)
    layer = ClippedLayer(
        *("model.layers.0.mlp.down_proj.weight", 0, "mlp_down", 1.0, 3.0, 4.0),
        *(dict.fromkeys(codes, value) for value in (0.5, 30.0, 0.4)),
    )
    other = replace(layer, name="model.layers.1.mlp.down_proj.weight", block=1)
    return LanguageClipping(
        target="model",
        fingerprint="0" * 64,
        corpus="udhr",
        hashes=dict.fromkeys(codes, "1" * 64),
        tokens=512,
        sequence=512,
        seed=0,
        bits=4,
        weights=1000,
        sigma=1.0,
        kappa=79.0,
        alpha_shared=3.8,
        alpha_mixture=4.0,
        languages=by_language,
        law=square_law(by_language, 79.0),
        layers=(layer, other),
        notes=("a note",),
    )


KAPPAS = [20.0, 30.0, 40.0, 50.0, 60.0]
NOISE = [1.02, 0.98, 1.01, 0.99, 1.0]


@pytest.mark.parametrize(
    ("kappas", "excess", "verdict"),
    [
        (KAPPAS, [1e-3 * (k - 79) ** 2 * e for k, e in zip(KAPPAS, NOISE, strict=True)], "agrees"),
        (KAPPAS, [1e-3 * abs(k - 79) ** 3 * e for k, e in zip(KAPPAS, NOISE, strict=True)], "fails"),
        (KAPPAS, [0.1 * e for e in NOISE], "fails"),
        (KAPPAS, [1.0, 9.0, 0.5, 0.2, 3.0], "undecided"),
        ([44.0, 44.1, 44.2, 44.3, 44.4], [0.1, 0.3, 0.1, 0.2, 0.15], "cannot be tested"),
        ([44.0, 44.1, 44.2, 44.3, 44.4], [0.1, 0.2, 0.3, 0.4, 0.5], "fails"),  # 2 % expected, fivefold seen
        (KAPPAS[:3], [1.0, 2.0, 3.0], "cannot be tested"),
        ([44.0] * 5, [0.1, 0.2, 0.3, 0.2, 0.1], "cannot be tested"),
        (KAPPAS, [0.0] * 5, "cannot be tested"),
    ],
)
def test_the_square_law_is_judged_by_its_slope(kappas, excess, verdict) -> None:
    law = square_law(languages(kappas, excess), 79.0)
    assert law.verdict == verdict
    words = {"agrees": "agrees with", "fails": "fails on", "undecided": "is undecided"}
    assert words.get(verdict, "cannot be tested") in law.sentence


def test_the_numbers_of_the_law_are_stated() -> None:
    exact = [1e-3 * (k - 79) ** 2 for k in KAPPAS]
    law = square_law(languages(KAPPAS, exact), 79.0)
    assert law.slope.value == pytest.approx(2.0)
    assert law.correlation.value == pytest.approx(1.0)
    assert law.excess_ratio == pytest.approx((59 / 19) ** 2)
    assert "is 19 to 59, so Δε should differ by a factor of 9.64; it differs by 9.64" in law.sentence


def test_a_file_keeps_everything_and_is_checked(tmp_path) -> None:
    here = record(languages(KAPPAS, [0.1, 0.2, 0.3, 0.4, 0.5]))
    unbounded = replace(here.languages["eng_Latn"], excess=Estimate.without_interval(0.1, 2))
    here = replace(here, languages={**here.languages, "eng_Latn": unbounded})
    here.save(tmp_path / "laaciq.json")
    again = LanguageClipping.load(tmp_path / "laaciq.json")
    assert again.as_data() == here.as_data()
    assert again.languages == dict(here.languages)
    assert (again.law, again.layers) == (here.law, here.layers)
    text = (tmp_path / "laaciq.json").read_text("utf-8")
    (tmp_path / "bad.json").write_text(text.replace('"bits": 4', '"bits": 40'))
    with pytest.raises(InputError, match="bits is 40"):
        LanguageClipping.load(tmp_path / "bad.json")


def test_tables_fit_a_terminal_of_100_columns() -> None:
    here = record(languages(KAPPAS, [0.1, 0.2, 0.3, 0.4, 0.5]))
    console = Console(file=io.StringIO(), width=100, emoji=False)
    console.print(render_tables(here.tables(details=True)))
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 100
    text = " ".join(console.file.getvalue().split())
    assert "…" not in text
    assert "κ 79.0. One α for all languages, σ·f(κ): 3.8000 σ." in text
    assert "in 0 of 5 languages" in text
    row = next(line for line in lines if line.startswith("Hebrew"))
    assert row.split()[1:5] == ["heb_Hebr", "40.00", "(39.0–41.0)", "40.0"]
    assert "0.mlp.down_proj" in text, "without what all names share"
    assert len(here.tables()) == 3
    assert "0.mlp" not in " ".join(table.text() for table in here.tables())


def test_a_figure_and_a_data_frame_have_every_language() -> None:
    here = record(languages(KAPPAS, [0.1, 0.2, 0.3, 0.4, 0.5]))
    figure = here.plot()
    assert [trace["name"] for trace in figure.data] == ["Prop. 1", "exact", "shared"]
    assert figure.data[1]["x"] == [4.0] * 5
    pytest.importorskip("pandas")
    frame = here.to_pandas()
    assert list(frame.index) == list(CODES)
    assert frame.loc["heb_Hebr", "kappa_weighted_high"] == 41.0
