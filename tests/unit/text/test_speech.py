"""Directories of speech: what is read, how it is split, and what is refused."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from fairbits.core.errors import InputError
from fairbits.text.reading import read_corpus
from fairbits.text.sound import Clip

RATE = 16000


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    wavfile.write(file, rate, samples)
    return file.getvalue()


TONE = np.sin(np.arange(RATE) * 2 * np.pi * 440 / RATE) / 2
SOUND = wav((TONE * 32767).astype(np.int16))


def samples_of(directory: Path, content: bytes, rate: int = RATE) -> np.ndarray:
    (directory / "a.wav").write_bytes(content)
    return Clip.find(directory / "a.wav", "here").samples(rate)


def make(directory: Path, *rows: dict[str, object] | str, content: bytes = SOUND, lang: str = "eng") -> Path:
    """Returns a directory with clips 0.wav to 4.wav in one language, and these rows in place of those for them."""
    folder = directory / lang
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(5):
        (folder / f"{i}.wav").write_bytes(content)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    usual = [json.dumps({"file_name": f"{i}.wav", "text": f"Clip {i}."}) for i in range(5)]
    (folder / "metadata.jsonl").write_text("\n".join(lines or usual) + "\n", encoding="utf-8")
    return directory


def test_clips_stay_with_their_transcripts(speech: Path) -> None:
    corpus = read_corpus(speech)
    assert list(corpus.calibration) == ["eng_Latn", "fra_Latn", "quy_Latn"]
    named = [json.loads(line) for line in (speech / "eng" / "metadata.jsonl").read_text().splitlines()]
    files = {row["text"]: row["file_name"] for row in named}
    for split in ("calibration", "evaluation"):
        texts = corpus.split(split)["eng_Latn"]
        assert len(texts) == 6
        assert [clip.path.name for clip in corpus.language_clips("eng_Latn", split)] == [files[text] for text in texts]
    one = corpus.restrict(["fra"])
    assert one.language_clips("fra_Latn", "calibration") == corpus.language_clips("fra_Latn", "calibration")
    assert one.language_clips("eng_Latn", "calibration") == ()
    assert one.hashes["calibration"]["fra_Latn"] == corpus.hashes["calibration"]["fra_Latn"]


def test_a_hash_depends_on_the_sound(tmp_path: Path) -> None:
    one = read_corpus(make(tmp_path / "one")).hashes
    again = read_corpus(make(tmp_path / "again")).hashes
    other = read_corpus(make(tmp_path / "other", content=wav(np.zeros(99, np.int16)))).hashes
    assert one == again
    assert one["evaluation"]["eng_Latn"] != other["evaluation"]["eng_Latn"]


def test_clips_of_one_transcript_are_in_one_split(tmp_path: Path) -> None:
    rows = [{"file_name": f"{i}.wav", "text": "Same." if i < 3 else f"Other {i}."} for i in range(5)]
    corpus = read_corpus(make(tmp_path, *rows))
    counts = [corpus.split(split)["eng_Latn"].count("Same.") for split in ("calibration", "evaluation")]
    assert sorted(counts) == [0, 3]


def test_speech_that_is_split_stays_so_without_transcripts_of_both(tmp_path: Path) -> None:
    make(tmp_path / "calibration")
    make(tmp_path / "evaluation", {"file_name": "2.wav", "text": "clip  2."}, {"file_name": "0.wav", "text": "New."})
    corpus = read_corpus(tmp_path)
    assert corpus.evaluation["eng_Latn"] == ("clip  2.", "New.")
    assert [clip.path.name for clip in corpus.language_clips("eng_Latn", "calibration")] == [
        "0.wav",
        "1.wav",
        "3.wav",
        "4.wav",
    ]
    assert len(corpus.calibration["eng_Latn"]) == 4


def test_csv_and_transcription_are_read(tmp_path: Path) -> None:
    folder = make(tmp_path) / "eng"
    (folder / "metadata.jsonl").unlink()
    lines = ["file_name,speaker,transcription", *(f'{i}.wav,x,"One, {i}"' for i in range(4)), '4.wav,,"two\nlines"']
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    corpus = read_corpus(tmp_path, evaluation_share=0.0)
    assert corpus.calibration["eng_Latn"] == ("One, 0", "One, 1", "One, 2", "One, 3", "two\nlines")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"file_name": "9.wav", "text": "x"}],
            r"metadata\.jsonl:1 names .*9\.wav, which cannot be read \(No such file",
        ),
        ([{"file_name": "../b.wav", "text": "x"}], r"names '\.\./b\.wav', outside of"),
        ([{"file_name": "a/../../b.wav", "text": "x"}], "outside of"),
        ([{"file_name": "..\\b.wav", "text": "x"}], "outside of"),
        ([{"file_name": "/etc/b.wav", "text": "x"}], "outside of"),
        ([{"file_name": "C:\\b.wav", "text": "x"}], "outside of"),
        ([{"file_name": "a.mp3", "text": "x"}], r"a\.mp3, which is not a WAV file; .*ffmpeg -i a\.mp3 -ac 1 -ar 16000"),
        ([{"file_name": 3, "text": "x"}], "has the file_name 3; it must name a WAV file"),
        ([{"text": "x"}], "has the file_name None"),
        ([{"file_name": "0.wav", "text": " \u200b"}], "has an empty transcript"),
        ([{"file_name": "0.wav", "text": 3}], "has the transcript 3; it must be valid Unicode"),
        (
            [{"file_name": "0.wav", "sentence": "x"}],
            "has the columns file_name, sentence; it must have one of text and",
        ),
        ([{"file_name": "0.wav", "text": "x", "transcription": "y"}], "it must have one of text and transcription"),
        ([{"file_name": "0.wav", "text": "x"}] * 2, r"metadata\.jsonl:2 names 0\.wav a second time"),
        (["{"], r"metadata\.jsonl:1 is not JSON .* must be like \{\"file_name\""),
        ([" "], "names no clips"),
    ],
)
def test_rows_that_cannot_be_used_are_named(tmp_path: Path, rows: list[dict[str, object] | str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_corpus(make(tmp_path, *rows))


def test_directories_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match="not aligned between languages"):
        read_corpus(tmp_path, parallel=True)
    with pytest.raises(InputError, match="holds no text in fra_Latn"):
        read_corpus(tmp_path, languages=["fra"])
    (tmp_path / "fra.txt").write_text("Bonjour.\n")
    with pytest.raises(InputError, match=r"holds text \(fra\.txt\) next to directories of speech"):
        read_corpus(tmp_path)
    (tmp_path / "fra.txt").unlink()
    make(tmp_path, lang="en")
    with pytest.raises(InputError, match="are both eng_Latn; each language must have one directory"):
        read_corpus(tmp_path)
    shutil.move(tmp_path / "en", tmp_path / "calibration" / "en")
    with pytest.raises(InputError, match="holds eng/ next to calibration/"):
        read_corpus(tmp_path)
    shutil.rmtree(tmp_path / "calibration")
    (tmp_path / "eng" / "metadata.csv").write_text("file_name,text\n")
    with pytest.raises(InputError, match=r"has metadata\.jsonl and metadata\.csv"):
        read_corpus(tmp_path)


@pytest.mark.parametrize(
    ("samples", "tolerance"),
    [
        ((TONE * 127 + 128).astype(np.uint8), 2e-2),
        ((TONE * 2**15).astype(np.int16), 1e-4),
        ((TONE * 2**31).astype(np.int32), 1e-6),
        (TONE.astype(np.float32), 1e-7),
        (TONE.astype(np.float64), 1e-6),
        (np.stack([TONE * 1.5, TONE * 0.5], axis=1).astype(np.float32), 1e-6),
    ],
    ids=["uint8", "int16", "int32", "float32", "float64", "stereo"],
)
def test_samples_are_scaled_and_mixed(tmp_path: Path, samples: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(samples_of(tmp_path, wav(samples)), TONE, atol=tolerance)


def test_24_bits_are_read(tmp_path: Path) -> None:
    content = bytearray(wav((TONE * 2**31).astype(np.int32)))
    data = np.frombuffer(bytes(content[44:]), np.uint8).reshape(-1, 4)[:, 1:].tobytes()
    content[4:8], content[40:44] = (36 + len(data)).to_bytes(4, "little"), len(data).to_bytes(4, "little")
    content[28:36] = (3 * RATE).to_bytes(4, "little") + (3).to_bytes(2, "little") + (24).to_bytes(2, "little")
    np.testing.assert_allclose(samples_of(tmp_path, bytes(content[:44]) + data), TONE, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_sound_is_resampled(tmp_path: Path, rate: int) -> None:
    tone = np.sin(np.arange(rate) * 2 * np.pi * 440 / rate) / 2
    samples = samples_of(tmp_path, wav(tone.astype(np.float32), rate))
    assert len(samples) == RATE
    np.testing.assert_allclose(samples[800:-800], TONE[800:-800], atol=2e-3)


def changed(at: int, value: bytes, content: bytes = SOUND) -> bytes:
    return content[:at] + value + content[at + len(value) :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SOUND[:1000], "is damaged, or not a WAV file of plain samples .*ffmpeg -i a.wav"),
        (SOUND[:1001], "is damaged"),
        (changed(4, (992).to_bytes(4, "little"), SOUND[:1000]), "956 of 32,000 bytes of samples are there"),
        (SOUND[:30], "is damaged"),
        (b"", "is damaged"),
        (b"ID3" + SOUND, "is damaged"),
        (changed(20, (85).to_bytes(2, "little")), "is damaged"),  # MP3 within WAV
        (changed(34, (12).to_bytes(2, "little")), None),  # 12 bits in containers of 16
        (changed(34, (65).to_bytes(2, "little")), "Unsupported bit depth"),
        (changed(24, (1).to_bytes(4, "little") + (2).to_bytes(4, "little")), "has 1 samples per second"),
        (wav(np.zeros(0, np.int16)), "has no samples"),
        (wav(np.array([0.0, np.nan], np.float32)), "has samples that are NaN or infinite"),
        (wav(np.array([0.0, 1e300])), "has samples that are NaN or infinite"),
        (SOUND + b"junk" + (2).to_bytes(4, "little") + b"ab", None),
    ],
)
def test_damaged_sound_is_refused(tmp_path: Path, content: bytes, message: str | None) -> None:
    if message is None:
        assert len(samples_of(tmp_path, content)) == RATE
        return
    with pytest.raises(InputError, match=message):
        samples_of(tmp_path, content)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    clip = read_corpus(make(tmp_path)).language_clips("eng_Latn", "evaluation")[0]
    clip.path.write_bytes(SOUND + b"more")
    with pytest.raises(InputError, match="has changed since"):
        clip.samples(RATE)
    clip.path.unlink()
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        clip.samples(RATE)


def test_directories_and_huge_files_are_no_clips(tmp_path: Path) -> None:
    (tmp_path / "a.wav").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        Clip.find(tmp_path / "a.wav", "here")
    with (tmp_path / "b.wav").open("wb") as file:
        file.truncate(2**30)  # holes take no space
    with pytest.raises(InputError, match="cut it into shorter ones"):
        Clip.find(tmp_path / "b.wav", "here")
