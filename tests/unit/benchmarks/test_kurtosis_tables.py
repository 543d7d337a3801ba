"""The tables of κ: what they show of a model, and that the page has a place for them."""

import json

import gguf
import numpy as np
import pytest

import kurtosis_tables

CONDITIONS = [{"name": "C1", "holds": True}, {"name": "C2", "holds": None}, {"name": "C3", "holds": True}]
DATA = {
    "weights": 75_000_000,
    "kappa": [2.0, 8.4, 1.0, 52.0],
    "stacks": ["encoder", "encoder", "decoder", "decoder"],
    "roles": [{"q": 0.4, "down": 4.5}, {"q": 0.1, "down": 29.0}, {"q": 1.0, "cross q": 0.5}, {"q": 0.6, "down": 330.0}],
    "robust_outliers": {"blocks": [3]},
    "research_notes": {"risk": "HIGH", "conditions": CONDITIONS},
}


def test_the_page_has_both_markers_with_tables_between_them() -> None:
    page = kurtosis_tables.PAGE.read_text("utf-8")
    for begin, end in (kurtosis_tables.KAPPA, kurtosis_tables.TEXT):
        assert page.count(begin) == page.count(end) == 1
    begin, end = kurtosis_tables.KAPPA
    between = page.split(begin)[1].split(end)[0]
    assert "| BLOOM-560M: published, not read here | 504 | 164.3 in 22 | HIGH |" in between
    for model in ("embedded:tiny", "Gemma-3-270M", "OPUS-MT English–French"):
        assert f"| {model} |" in between


def test_a_row_names_the_block_the_role_and_the_conditions() -> None:
    (row,) = kurtosis_tables.models_table({"a model": DATA}).rows
    assert row == (
        *("a model", "75 M", "4", "52.0", "decoder 3", "330.0 (down)", "3", "HIGH"),
        *("yes", "–", "yes"),
    )


def test_the_largest_blocks_of_every_stack_are_shown_by_role(monkeypatch) -> None:
    monkeypatch.setattr(kurtosis_tables, "SHOWN", 1)
    text = "\n\n".join(kurtosis_tables.page_lines({"a model": DATA}))
    assert "| 1 | 8.40 | 0.10 | 29.00 |\n| median | 5.20 | 0.25 | 16.75 |" in text
    assert "| 3 | 52.00 | 0.60 | – | 330.00 |\n| median | 26.50 | 0.80 | 0.50 | 330.00 |" in text


def test_only_what_is_between_the_markers_is_replaced(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kurtosis_tables, "OUT", tmp_path)
    page, (begin, end), (other, last) = tmp_path / "page.md", kurtosis_tables.KAPPA, kurtosis_tables.TEXT
    (tmp_path / "embedded-tiny.json").write_text(json.dumps(DATA), "utf-8")
    page.write_text(f"before\n{begin}\nold\n{end}\nbetween\n{other}\nkept\n{last}\nafter\n", "utf-8")
    kurtosis_tables.write(page)
    text = page.read_text("utf-8")
    assert text.startswith(f"before\n{begin}\n\n| model |")
    assert text.endswith(f"\n\n{end}\nbetween\n{other}\nkept\n{last}\nafter\n")
    assert "old" not in text
    page.write_text("no markers\n", "utf-8")
    with pytest.raises(ValueError, match="unpack"):
        kurtosis_tables.write(page)


def test_a_gguf_file_is_read_tensor_by_tensor(tmp_path, write_gguf) -> None:
    tensors = write_gguf(tmp_path / "model.gguf", gguf.LlamaFileType.MOSTLY_Q8_0)
    data = kurtosis_tables.measure_by_tensor(str(tmp_path / "model.gguf"))
    blocks = [
        [values for name, values in tensors.items() if name.startswith(f"blk.{i}.") and values.ndim == 2]
        for i in (0, 1)
    ]
    every = [np.concatenate([values.ravel() for values in block]).astype(np.float64) for block in blocks]
    expected = [np.mean((w - w.mean()) ** 4) / w.var() ** 2 - 3 for w in every]
    assert data["kappa"] == pytest.approx(expected, rel=1e-9)
    assert list(data["roles"][0]) == ["q", "k", "v", "o", "gate", "up", "down"]
    assert data["weights"] == sum(values.size for values in tensors.values())


def test_models_on_text_stand_below_the_numbers_of_the_notes() -> None:
    redundancy = [["high", 4, "1.5 [1, 2]"], ["low", 4, "1 [0.5, 1.5]"], ["high minus low", 8, "0.5 [0, 1]"]]
    tests = [[bits, delta, f"p{bits}", f"o{bits}", "–", "undecided"] for bits in (4, 3) for delta in ("0.1", "b")]
    screened = {
        "robust_outliers": {"blocks": [7]},
        "research_notes": {"conditions": [{"name": "C2", "value": 0.0123, "holds": True}]},
        "r_of_share_and_predicted_damage": {"value": 0.7, "low": 0.01, "high": 0.94},
    }
    ratio = {"tables": [{"rows": redundancy}, {"rows": tests}], "answer": "undecided"}
    notes, row = kurtosis_tables.text_table({"a model": {"screen": screened, "ratio": ratio}}).rows
    assert notes[1:8] == ("5 21 22", "8.3e-05", "-0.83 (measured D)", "3.8", "1.5", "2.4", "4.24")
    assert row[:4] == ("a model", "7", "0.012", "0.70 [0.01, 0.94]")
    assert row[4:] == ("1.5 [1, 2]", "1 [0.5, 1.5]", "p4", "o4", "o3", "undecided")
