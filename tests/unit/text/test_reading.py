import json
import os
import tracemalloc
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.models.embedded import LANGUAGES
from fairbits.text import lines
from fairbits.text.included_texts import help_text, udhr
from fairbits.text.reading import EMBEDDED, open_corpus, read_corpus

FRA, HEB = "fra_Latn", "heb_Hebr"


def put(directory: Path, **files: str | bytes) -> Path:
    """Writes files, named LANG or LANG_jsonl, into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / (name.replace("_jsonl", ".jsonl") if name.endswith("_jsonl") else f"{name}.txt")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def all_of(corpus, code: str) -> list[str]:
    return sorted(corpus.calibration[code] + corpus.evaluation[code])


def refused(path: Path, **options) -> str:
    with pytest.raises(InputError) as caught:
        read_corpus(path, **options)
    return str(caught.value)


def test_directory_of_text_and_jsonl(tmp_path) -> None:
    put(tmp_path, fr="un\n\n  deux \ntrois\nquatre", heb_jsonl=jsonl({"text": "אחת\nשתיים"}, {"text": "שלוש", "id": 3}))
    corpus = read_corpus(tmp_path)
    assert all_of(corpus, FRA) == ["deux", "quatre", "trois", "un"]
    assert all_of(corpus, HEB) == ["אחת\nשתיים", "שלוש"]
    assert len(corpus.evaluation[FRA]) == 2
    split = "3 of 6 documents are for evaluation, chosen by hash with seed 0, the others for calibration"
    assert corpus.notes == (f"{tmp_path.name}: {split}",)
    assert read_corpus(tmp_path, evaluation_share=1.0).notes == (
        f"{tmp_path.name}: 6 of 6 documents are for evaluation",
    )
    assert read_corpus(tmp_path).hashes == corpus.hashes
    assert any(read_corpus(tmp_path, seed=seed).hashes != corpus.hashes for seed in range(1, 5))


def test_given_split_is_kept_and_deduplicated(tmp_path) -> None:
    put(tmp_path / "calibration", fra="un\ndeux\nTROIS", heb="אחת")
    put(tmp_path / "evaluation", French_jsonl=jsonl({"text": "trois"}))
    corpus = read_corpus(tmp_path)
    assert corpus.calibration == {FRA: ("un", "deux"), HEB: ("אחת",)}
    assert corpus.evaluation == {FRA: ("trois",), HEB: ()}
    assert "1 of 3 calibration documents left out" in corpus.notes[0]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_split_may_lack_the_languages_asked_for(tmp_path, parallel) -> None:
    put(tmp_path / "calibration", fra="un\ndeux")
    put(tmp_path / "evaluation", heb="אחת")
    corpus = read_corpus(tmp_path, languages=["fr"], parallel=parallel)
    assert corpus.evaluation == {FRA: ()}


def test_calibration_alone_is_a_corpus(tmp_path) -> None:
    put(tmp_path / "calibration", fra="un\ndeux")
    assert read_corpus(tmp_path).evaluation == {FRA: ()}


def test_one_jsonl_file(tmp_path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text(jsonl({"lang": "fr", "text": "un"}, {"lang": "he", "text": "אחת"}, {"lang": "fra", "text": "deux"}))
    corpus = read_corpus(path)
    assert all_of(corpus, FRA) == ["deux", "un"]
    assert list(read_corpus(path, languages=["Hebrew"]).calibration) == [HEB]
    path.write_text(
        jsonl(
            {"lang": "fr", "text": "un", "split": "evaluation"}, {"lang": "fr", "text": "deux", "split": "calibration"}
        )
    )
    assert read_corpus(path).evaluation == {FRA: ("un",)}


def test_parallel_lines_stay_aligned_and_blank_ones_go_everywhere(tmp_path) -> None:
    put(tmp_path, fra="f1\n\nf3\nf4\nf5\n", heb="h1\nh2\nh3\n \nh5\n")
    corpus = read_corpus(tmp_path, parallel=True)
    for split in (corpus.calibration, corpus.evaluation):
        assert [text[1] for text in split[FRA]] == [text[1] for text in split[HEB]]
    assert all_of(corpus, FRA) == ["f1", "f3", "f5"]
    assert [note.split("/")[-1] for note in corpus.notes[:-1]] == [
        "fra.txt: blank documents (1: 2) left out in every language",
        "heb.txt: blank documents (1: 4) left out in every language",
    ]


def test_parallel_texts_of_unequal_length_are_refused(tmp_path) -> None:
    put(tmp_path, fra="f1\nf2\n", heb="h1\nh2\nh3\n")
    reason = refused(tmp_path, parallel=True)
    assert f"{tmp_path / 'fra.txt'} 2, {tmp_path / 'heb.txt'} 3" in reason
    put(tmp_path, fra="\n\n\n")
    assert "no line of" in refused(tmp_path, parallel=True)


def test_limit_cuts_and_says_so(tmp_path) -> None:
    put(tmp_path, fra="0123456789\n" * 5 + "last\n", heb="א\n" * 6)
    corpus = read_corpus(tmp_path, limit=25, parallel=True, evaluation_share=0)
    assert len(corpus.calibration[FRA]) == len(corpus.calibration[HEB]) == 3
    assert [note.split("/")[-1] for note in corpus.notes] == [
        "fra.txt: only the first 3 documents are kept (limit 25 bytes)"
    ]


def test_a_large_file_is_not_held_in_memory(tmp_path) -> None:
    with (tmp_path / "fra.txt").open("wb") as file:
        for i in range(1_000):
            file.write(b"%010d " % i * 2_000 + b"\n")  # 22 MB
    tracemalloc.start()
    corpus = read_corpus(tmp_path, limit=500_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 500_000 <= sum(corpus.size(FRA, split) for split in ("calibration", "evaluation")) <= 522_000
    assert peak < 5_000_000


def test_bom_and_line_ends_of_windows(tmp_path) -> None:
    put(tmp_path, fra=b"\xef\xbb\xbfun\r\ndeux\r\n")
    assert all_of(read_corpus(tmp_path), FRA) == ["deux", "un"]


def test_separators_of_unicode_end_no_line(tmp_path) -> None:
    put(tmp_path, fra="un\u2028deux\x85trois\x0cquatre\ncinq")
    assert len(all_of(read_corpus(tmp_path), FRA)) == 2


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"fra": b"un\nd\xe9ux\n"}, "fra.txt is not UTF-8: byte 0xe9 at offset 4 ({}/fra.txt:2)"),
        ({"fra": b"\xef\xbb\xbfun\n\xff"}, "byte 0xff at offset 6"),
        ({"fra": "été".encode("utf-16")}, "iconv -f UTF-16LE -t UTF-8"),
        ({"fra": b"un\nde\0ux"}, "{}/fra.txt:2 has a NUL at byte 5"),
        ({"fra": ""}, "no text in {}/fra.txt; every"),
        ({"fra": "\n \n", "heb": ""}, "no text in {}/fra.txt, {}/heb.txt"),
        ({"frech": "un"}, "{}/frech.txt: language 'frech' is unknown"),
        ({"frech": "un"}, "French (fra_Latn)"),
        ({"fra": "un", "fr_jsonl": jsonl({"text": "un"})}, "{}/fr.jsonl and {}/fra.txt are both fra_Latn"),
        ({"fra_jsonl": jsonl({"text": "un"}, {"txt": "deux"})}, "{}/fra.jsonl:2 has the keys txt; it must have `text`"),
        ({"fra_jsonl": jsonl({"text": 5})}, "{}/fra.jsonl:1 has text of type int"),
        ({"fra_jsonl": jsonl(["un"])}, "{}/fra.jsonl:1 is a list"),
        ({"fra_jsonl": '{"text": "un"'}, "{}/fra.jsonl:1 is not JSON"),
        ({"fra_jsonl": "[" * 100_000}, "{}/fra.jsonl:1 is not JSON"),
        ({"fra_jsonl": "9" * 10_000}, "{}/fra.jsonl:1 is not JSON"),
        ({"fra_jsonl": r'{"text": "\ud800"}'}, "{}/fra.jsonl:1 contains a NUL or an unpaired surrogate"),
        ({"fra_jsonl": r'{"text": "a\u0000"}'}, "{}/fra.jsonl:1 contains a NUL or an unpaired surrogate"),
    ],
)
def test_bad_files_are_named(tmp_path, files, reason) -> None:
    assert reason.replace("{}", str(tmp_path)) in refused(put(tmp_path, **files))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"text": "un"}], ":1 has no language"),
        ([{"lang": 3, "text": "un"}], ":1 has no language"),
        ([{"lang": "fr", "text": "un"}, {"lang": "englsh", "text": "un"}], ":2: language 'englsh' is unknown"),
        ([{"lang": "fr", "text": "un", "split": "test"}], ":1 has split 'test'"),
        ([{"lang": "fr", "text": "un", "split": ""}], ":1 has split ''"),
        ([{"lang": "fr", "text": "un", "split": ["a"]}], ":1 has split ['a']"),
        (
            [{"lang": "fr", "text": "un"}, {"lang": "fr", "text": "un", "split": "evaluation"}],
            ":2 have a split",
        ),
        ([], "holds no text in any language"),
    ],
)
def test_bad_lines_of_one_file_are_named(tmp_path, rows, reason) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text(jsonl(*rows))
    assert reason in refused(path)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES", 1_000)
    put(tmp_path, fra="a" * 999 + "\n" + "b" * 1_001)
    assert "fra.txt:2 is longer than 1,000 bytes" in refused(tmp_path)


def test_mixed_directories(tmp_path) -> None:
    put(tmp_path, fra="un\ndeux")
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / ".hidden.txt").write_text("x")
    assert read_corpus(tmp_path).notes[0] == f"{tmp_path.name}: not read: notes.md"
    put(tmp_path / "evaluation", fra="un")
    assert "holds fra.txt next to evaluation/" in refused(tmp_path)


def test_what_is_no_file(tmp_path) -> None:
    assert "cannot be read (No such file" in refused(tmp_path / "nowhere")
    (tmp_path / "fra.txt").symlink_to(tmp_path / "fra.txt")
    assert "fra.txt cannot be read (Too many levels of symbolic links)" in refused(tmp_path)
    (tmp_path / "fra.txt").unlink()
    os.mkfifo(tmp_path / "fra.txt")
    assert "fra.txt is not a regular file" in refused(tmp_path)
    (tmp_path / "fra.txt").unlink()
    (tmp_path / "fra.txt").mkdir()
    assert "fra.txt is not a regular file" in refused(tmp_path)


def test_nothing_to_read_says_what_was_found(tmp_path) -> None:
    assert "found: nothing" in refused(tmp_path)
    put(tmp_path, fra="un")
    assert "holds no text in heb_Hebr (found: fra.txt)" in refused(tmp_path, languages=["he"])
    assert "holds no text in heb_Hebr (found: fra.txt)" in refused(tmp_path, languages=["he", "fr"])
    assert "give the directory that holds it" in refused(tmp_path / "fra.txt")
    (tmp_path / "fra.txt").rename(tmp_path / "fra.md")
    assert "found: fra.md" in refused(tmp_path)


def test_options_are_checked(tmp_path) -> None:
    put(tmp_path, fra="un")
    assert "limit is 0" in refused(tmp_path, limit=0)
    assert "evaluation_share is 2" in refused(tmp_path, evaluation_share=2)
    assert "seed is -1" in refused(tmp_path, seed=-1)
    assert "twice" in refused(tmp_path, languages=["fr", "fra"])


def test_what_cannot_be_seen_is_blank(tmp_path) -> None:
    put(tmp_path, fra="un\n\u200b\u200f\ufeff\ndeux\u200b\n")
    corpus = read_corpus(tmp_path, evaluation_share=0)
    assert corpus.calibration[FRA] == ("un", "deux\u200b")


def test_only_line_feeds_end_a_line(tmp_path) -> None:
    put(tmp_path, fra="un\u2028deux\x85trois\x0b\x1cquatre\r\ncinq\n")
    (tmp_path / "heb.jsonl").write_text('{"text": "a\u2028b\x85c"}\n{"text": "d"}\n', encoding="utf-8")
    corpus = read_corpus(tmp_path, evaluation_share=0)
    assert corpus.calibration[FRA] == ("un\u2028deux\x85trois\x0b\x1cquatre", "cinq")
    assert corpus.calibration[HEB] == ("a\u2028b\x85c", "d")


def test_what_is_not_read_in_a_given_split_is_named(tmp_path) -> None:
    put(tmp_path / "calibration", fra="un\ndeux")
    put(tmp_path / "evaluation", fra="trois")
    (tmp_path / "calibration" / "swa.txt.gz").write_bytes(b"\x1f\x8b")
    assert read_corpus(tmp_path).notes[0] == f"{tmp_path.name}: not read: calibration/swa.txt.gz"


@pytest.mark.parametrize("name", EMBEDDED)
def test_texts_that_come_with_fairbits_have_names(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = {"declaration": udhr, "help": help_text}[name](["eng", "fin"])
    assert open_corpus(name, ["eng", "fin"]) == expected
    (tmp_path / name).mkdir()
    (tmp_path / name / "fin.txt").write_text("Yksi.\nKaksi.\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"{name} is a text that comes with fairbits, and .* write \./{name} for"):
        open_corpus(name, ["fin"])
    for path in (f"./{name}", Path(name)):  # a path is never the name of a text
        assert open_corpus(path, ["fin"]).size("fin_Latn", "calibration") < 10


def test_an_embedded_model_reads_the_languages_that_it_and_the_text_have() -> None:
    for text in (None, "declaration"):
        assert len(open_corpus(text, None, trained=LANGUAGES["tiny"]).languages) == 20
        with pytest.raises(InputError, match="there is no text to read"):
            open_corpus(text, None)
    assert len(open_corpus("help", None, trained=LANGUAGES["tiny"]).languages) == 12
    assert open_corpus("help", None) == help_text()
    assert [language.code for language in open_corpus("help", ["ell"], trained=LANGUAGES["tiny"]).languages] == [
        "ell_Grek"
    ]
