"""Imatrix files: what llama.cpp's loader expects of them, and merging."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.io.imatrix_file import Imatrix, Importance, merge_imatrices, read_imatrix

NAME = "blk.0.ffn_down.weight"


def make_imatrix(value: float, tokens: int, code: str, *, width: int = 4) -> Imatrix:
    entry = Importance(value * np.arange(1.0, width + 1)[None], np.array([tokens]))
    return Imatrix({NAME: entry, "blk.0.attn_q.weight": entry}, (f"help: {code}",), 512, {code: 1.0}, "f" * 64)


def write(path: Path, tensors: dict[str, np.ndarray], kind: str = "imatrix") -> Path:
    writer = gguf.GGUFWriter(path, "x")
    writer.add_type(kind)
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_file_is_what_llama_cpp_loads(tmp_path: Path) -> None:
    make_imatrix(0.5, 1000, "eng_Latn").save(tmp_path / "i.gguf")
    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    entries = {key: field.contents() for key, field in reader.fields.items()}
    assert entries["general.type"] == "imatrix"
    assert "general.architecture" not in entries  # llama-imatrix writes none
    assert entries["imatrix.datasets"] == ["help: eng_Latn"]
    assert (entries["imatrix.chunk_count"], entries["imatrix.chunk_size"]) == (2, 512)
    for key in ("imatrix.chunk_count", "imatrix.chunk_size"):
        assert reader.fields[key].types == [gguf.GGUFValueType.UINT32]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert sorted(tensors) == sorted(
        f"{name}.{part}" for name in (NAME, "blk.0.attn_q.weight") for part in ("in_sum2", "counts")
    )
    sums, counts = tensors[f"{NAME}.in_sum2"], tensors[f"{NAME}.counts"]
    assert sums.tensor_type == counts.tensor_type == gguf.GGMLQuantizationType.F32
    assert sums.shape.tolist() == [4, 1]  # llama.cpp's order: width, matrices
    assert counts.shape.tolist() == [1, 1]
    assert (sums.data / counts.data).tolist() == [[0.5, 1.0, 1.5, 2.0]]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    wanted = make_imatrix(0.5, 1000, "eng_Latn")
    wanted.save(tmp_path / "i.gguf")
    imatrix = read_imatrix(tmp_path / "i.gguf")
    assert imatrix.entries.keys() == wanted.entries.keys()
    np.testing.assert_allclose(imatrix.entries[NAME].mean, wanted.entries[NAME].mean, rtol=1e-7)
    assert replace(imatrix, entries={}).__dict__ == replace(wanted, entries={}).__dict__
    assert imatrix.tokens == 1000


def test_merging_weights_languages_and_not_tokens() -> None:
    merged = merge_imatrices([("e", make_imatrix(1, 3000, "eng_Latn"), 1), ("f", make_imatrix(4, 100, "fra_Latn"), 2)])
    assert merged.entries[NAME].mean[0].tolist() == [3.0, 6.0, 9.0, 12.0]  # (1 + 2 · 4) / 3
    assert merged.entries[NAME].counts.tolist() == [3100]
    assert merged.languages == pytest.approx({"eng_Latn": 1 / 3, "fra_Latn": 2 / 3})
    assert merged.datasets == ("help: eng_Latn", "help: fra_Latn")


def test_merging_in_two_steps_is_merging_at_once() -> None:
    e, f, h = (make_imatrix(value, 10, code) for value, code in ((1, "eng"), (4, "fra"), (7, "heb")))
    at_once = merge_imatrices([("e", e, 1), ("f", f, 2), ("h", h, 3)])
    two_steps = merge_imatrices([("ef", merge_imatrices([("e", e, 1), ("f", f, 2)]), 3), ("h", h, 3)])
    np.testing.assert_allclose(at_once.entries[NAME].mean, two_steps.entries[NAME].mean)
    assert at_once.languages == pytest.approx(two_steps.languages)


def test_an_expert_without_tokens_gets_the_mean_of_the_others() -> None:
    experts = {NAME: Importance(np.array([[1.0, 1.0], [5.0, 5.0]]), np.array([10, 0]))}
    others = {NAME: Importance(np.array([[3.0, 3.0], [2.0, 4.0]]), np.array([10, 10]))}
    merged = merge_imatrices([("a", Imatrix(experts, (), 512), 1), ("b", Imatrix(others, (), 512), 1)])
    assert merged.entries[NAME].mean.tolist() == [[2.0, 2.0], [2.0, 4.0]]
    assert merged.languages == {}


@pytest.mark.parametrize(
    ("other", "weight", "message"),
    [
        (make_imatrix(1, 1, "fra"), 0, "the weight of b is 0"),
        (make_imatrix(1, 1, "fra"), -1, "the weight of b is -1"),
        (make_imatrix(1, 1, "fra"), float("nan"), "the weight of b is nan"),
        (replace(make_imatrix(1, 1, "fra"), fingerprint="e" * 64), 1, "a and b have different fingerprints"),
        (
            replace(make_imatrix(1, 1, "fra"), entries={NAME: make_imatrix(1, 1, "fra").entries[NAME]}),
            1,
            r"b lacks blk\.0\.attn_q",
        ),
        (make_imatrix(1, 1, "fra", width=6), 1, "has 4 values in a and 6 in b"),
    ],
)
def test_files_that_cannot_be_merged(other: Imatrix, weight: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        merge_imatrices([("a", make_imatrix(1, 1, "eng"), 1), ("b", other, weight)])


def test_nothing_to_merge() -> None:
    with pytest.raises(InputError, match="no imatrix was given"):
        merge_imatrices([])


ONES = np.ones((1, 4))


@pytest.mark.parametrize(
    ("tensors", "kind", "message"),
    [
        ({f"{NAME}.in_sum2": ONES, f"{NAME}.counts": ONES[:, :1]}, "model", "but not an imatrix"),
        ({f"{NAME}.in_sum2": ONES}, "imatrix", r"no \.in_sum2 and \.counts that fit each other for blk\.0"),
        ({f"{NAME}.counts": ONES[:, :1]}, "imatrix", "fit each other"),
        ({f"{NAME}.in_sum2": ONES, f"{NAME}.counts": ONES[:, :2]}, "imatrix", "fit each other"),
        ({f"{NAME}.in_sum2": -ONES, f"{NAME}.counts": ONES[:, :1]}, "imatrix", "negative or infinite"),
        ({f"{NAME}.in_sum2": ONES * np.inf, f"{NAME}.counts": ONES[:, :1]}, "imatrix", "negative or infinite"),
        ({"other": ONES}, "imatrix", "no importance of any layer"),
    ],
)
def test_files_that_are_no_imatrix(tensors, kind, message, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_imatrix(write(tmp_path / "i.gguf", tensors, kind))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_file_cut_short(share: float, tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    make_imatrix(0.5, 1000, "eng_Latn").save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"i\.gguf is not a whole GGUF file .* llama-imatrix"):
        read_imatrix(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_imatrix(tmp_path / "nowhere.gguf")
