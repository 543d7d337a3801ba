"""benchmarks/real.py from measuring to pages, on a part of the embedded model."""

import csv
import re
from pathlib import Path

import pytest

import published
import real
from fairbits.models import embedded
from real_tables import BEGIN, END
from real_texts import Texts

FEW = (
    *("--models", "embedded:tiny", "--text", "declaration", "--evaluation", "declaration"),
    *("--languages", "eng,heb", "--evaluation-languages", "eng,heb,fra"),
    *("--settings", "4:128", "--seeds", "0", "--tokens", "64", "--evaluation-tokens", "128", "--sequence", "64"),
    *("--policies", "gptq", "rtn", "fair:block_steps=1:model_steps=0", "--device", "cpu"),
)


@pytest.fixture
def pages(tmp_path: Path) -> tuple[Path, Path]:
    """Returns a page and a readme that have markers and a sentence on both sides of them."""
    files = tmp_path / "page.md", tmp_path / "readme.md"
    for file in files:
        file.write_text(f"Before.\n\n{BEGIN}\n{END}\n\nAfter.\n")
    return files


@pytest.mark.long
def test_from_measuring_to_pages(tmp_path: Path, pages: tuple[Path, Path], monkeypatch, capsys, outer_blocks) -> None:
    monkeypatch.setattr(embedded, "ASSETS", outer_blocks(2).directory.parent)
    out = tmp_path / "scores"
    run = ["run", *FEW, "--out", str(out)]
    real.main([*run, "--budget", "0"])
    assert "0 of 3 done" in capsys.readouterr().out.splitlines()[-1]
    real.main(run)
    assert "3 of 3 done" in capsys.readouterr().out.splitlines()[-1]
    assert len(list(out.rglob("declaration.json"))) == 3
    real.main(run)
    assert "3 of 3 done before" in capsys.readouterr().out
    page, readme = pages
    real.main(["tables", "--out", str(out), "--page", str(page), "--readme", str(readme)])
    written = page.read_text()
    assert written.startswith(f"Before.\n\n{BEGIN}\n")
    assert written.endswith(f"{END}\n\nAfter.\n")
    assert (
        len(re.findall(r"\| GPTQ, equal mix \| [\d,]+ \| 1 \| 0\.\d", written)) == 2
    )  # languages with and without text
    assert "| embedded_tiny, worst |" in readme.read_text()
    rows = list(csv.DictReader((tmp_path / "assets/real-models.csv").read_text().splitlines()))
    assert len(rows) == 3 * 3 * 2 * 2  # policies, languages, measures, units
    assert {row["language"] for row in rows} == {"eng_Latn", "fra_Latn", "heb_Hebr"}  # French is not calibrated on
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    assert "Hebrew" in (tmp_path / "assets/real-models.svg").read_text()


def test_scores_with_other_settings_are_measured_again() -> None:
    item = real.Item("embedded:tiny", "4:128", "gptq", 0)
    usual, other = (real.Run(real.parse(["run", *FEW, "--tokens", tokens])) for tokens in ("64", "128"))
    assert usual.settings(item) != other.settings(item)


def test_a_policy_may_read_all_text() -> None:
    usual, all_text = (real.Item("embedded:tiny", "4:128", policy, 0) for policy in ("gptq", "gptq@all"))
    assert usual.variant.policy == all_text.variant.policy == "gptq"
    assert usual.tokens(560) == 560 < all_text.tokens(560)
    assert (usual.has_seeds, all_text.has_seeds) == (True, False)


def test_the_most_important_come_first_and_what_samples_no_text_has_one_seed() -> None:
    options = real.parse(["run", "--models", "a", "b", "--policies", "gptq", "rtn", "--seeds", "0", "1"])
    items = [(item.setting, item.seed, item.model, item.policy) for item in real.items_of(options)]
    assert items[:6] == [
        ("4:128", 0, "a", "gptq"),
        ("4:128", 0, "a", "rtn"),
        ("4:128", 0, "b", "gptq"),
        ("4:128", 0, "b", "rtn"),
        ("4:128", 1, "a", "gptq"),
        ("4:128", 1, "b", "gptq"),
    ]
    assert items[6][:2] == ("3:128", 0)
    assert len(items) == len(set(items)) == 3 * 2 * 3


def test_another_text_is_evaluated_on_as_a_whole_and_in_more_languages(tmp_path: Path) -> None:
    for code in ("eng", "fra"):
        (tmp_path / f"{code}.txt").write_text("".join(f"{code}, line {i}.\n" for i in range(40)))
    options = ["--text", str(tmp_path), "--evaluation", str(tmp_path), "declaration", "--languages", "eng"]
    texts = Texts.of(real.parse(["run", *options, "--evaluation-languages", "fra,eng,amh"]))
    corpus, declaration = texts.evaluation[tmp_path.name], texts.evaluation["declaration"]
    assert list(texts.calibration.calibration) == ["eng_Latn"]
    assert list(corpus.evaluation) == ["fra_Latn", "eng_Latn"]
    assert list(declaration.evaluation) == ["fra_Latn", "eng_Latn", "amh_Ethi"]
    assert {len(sections) for sections in declaration.evaluation.values()} == {30}  # Amharic has no preamble
    assert not any(declaration.calibration.values())


def test_a_file_with_another_hash_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = published.MODELS["smollm2-135m"]
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="delete the file and fetch it again"):
        published.fetch(model)
