"""Imatrix: the importance of every input channel of a model's layers, in the GGUF file that llama.cpp reads.

The file holds two float32 tensors per layer: `NAME.in_sum2` (matrices, inputs), the sum of x² over the tokens of a
text, and `NAME.counts` (matrices, 1), the number of these tokens. A dense layer is one matrix; a layer of experts is
one per expert. llama-quantize divides the first by the second and weights the rounding error of every column by it.
"""

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.checks import positive
from fairbits.core.errors import InputError
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import Code, Count, Share, check_once, check_record
from fairbits.core.version import __version__
from fairbits.models.io.gguf_file import read_gguf_header

SUMS, COUNTS = ".in_sum2", ".counts"
DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
VERSION, LANGUAGES, SHARES, FINGERPRINT = (  # entries of our own, which llama.cpp ignores
    f"fairbits.{key}" for key in ("version", "languages", "shares", "fingerprint")
)
NAMED = 3
MOST_TOKENS = 2.0**53


@dataclass(frozen=True, eq=False)
class Importance:
    """E[x²] of every input channel of a layer, (matrices, inputs), and the number of tokens behind each matrix."""

    mean: Floats
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Imatrix:
    """The importance of the layers of one model, by llama.cpp's name of their tensors."""

    entries: Mapping[str, Importance]
    datasets: tuple[str, ...]  # names of the texts
    chunk_size: int  # tokens per window of text
    languages: Mapping[str, float] = field(default_factory=dict)  # shares; none in a file of llama-imatrix
    fingerprint: str | None = None  # of the model, if it is known

    @property
    def tokens(self) -> int:
        return max(int(importance.counts.max()) for importance in self.entries.values())

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="imatrix.gguf"): self.to_bytes()})

    def to_bytes(self) -> bytes:
        import gguf

        class Writer(gguf.GGUFWriter):
            def add_architecture(self) -> None:
                """Adds nothing: an imatrix has no entry for it."""

        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "imatrix.gguf"
            writer = Writer(path, "")
            writer.add_type(gguf.GGUFType.IMATRIX)
            writer.add_array(DATASETS, list(self.datasets))
            writer.add_uint32(CHUNK_COUNT, math.ceil(self.tokens / self.chunk_size))
            writer.add_uint32(CHUNK_SIZE, self.chunk_size)
            writer.add_string(VERSION, __version__)
            if self.languages:
                writer.add_array(LANGUAGES, list(self.languages))
                writer.add_array(SHARES, [float(share) for share in self.languages.values()])
            if self.fingerprint is not None:
                writer.add_string(FINGERPRINT, self.fingerprint)
            for name, importance in sorted(self.entries.items()):
                counts = importance.counts[:, None]
                writer.add_tensor(name + SUMS, (importance.mean * counts).astype(np.float32))
                writer.add_tensor(name + COUNTS, counts.astype(np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            return path.read_bytes()


def read_imatrix(path: str | Path) -> Imatrix:
    """Returns the content of an imatrix file in GGUF, ours or one of llama-imatrix."""
    from gguf import GGUFReader

    path = Path(path)
    try:
        read_gguf_header(path)  # checks every length, which the library believes
        reader = GGUFReader(path)
        entries = {key: part.contents() for key, part in reader.fields.items()}
        tensors = {tensor.name: np.array(tensor.data, dtype=np.float64) for tensor in reader.tensors}
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); it must be an imatrix file") from None
    except Exception as problem:  # whatever a damaged file sets off in there
        raise InputError(
            f"{path} is not a whole GGUF file ({type(problem).__name__}: {problem}); it must be an imatrix in GGUF, "
            "which fairbits imatrix and llama-imatrix write (llama-imatrix --in-file OLD.dat -o NEW.gguf converts)"
        ) from None
    if entries.get("general.type") != "imatrix":
        raise InputError(f"{path} is a GGUF file, but not an imatrix; give one that fairbits imatrix has written")
    read = {KEYS[key]: value for key, value in entries.items() if key in KEYS}
    record = check_record(ImatrixEntries, read, source=f"{path} is damaged")
    languages = dict(zip(record.languages, record.shares, strict=True))
    importances = _importances(path, tensors)
    return Imatrix(importances, record.datasets, max(record.chunk_size, 1), languages, record.fingerprint)


@dataclass(frozen=True)
class ImatrixEntries:
    """The entries of an imatrix file that are read, by the names of KEYS; other programs write fewer."""

    datasets: tuple[str, ...] = ()
    chunk_size: Count = 0
    languages: tuple[Code, ...] = ()
    shares: tuple[Share, ...] = ()
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        check_once("languages", self.languages)
        if len(self.shares) != len(self.languages):
            raise InputError(f"{len(self.shares)} shares for {len(self.languages)} languages; each must have one")


KEYS = {key: key.rpartition(".")[2] for key in (DATASETS, CHUNK_SIZE, LANGUAGES, SHARES, FINGERPRINT)}


def _importances(path: Path, tensors: Mapping[str, Floats]) -> dict[str, Importance]:
    names = dict.fromkeys(name.removesuffix(end) for name in tensors for end in (SUMS, COUNTS) if name.endswith(end))
    importances = {}
    for name in names:
        sums, counts = tensors.get(name + SUMS), tensors.get(name + COUNTS)
        if sums is None or counts is None or sums.ndim != 2 or counts.size != len(sums):
            raise InputError(f"{path} has no {SUMS} and {COUNTS} that fit each other for {name}; make the file again")
        if not (np.isfinite(sums).all() and (sums >= 0).all() and np.isfinite(counts).all() and (counts >= 0).all()):
            raise InputError(f"{path} has a negative or infinite number for {name}; make the file again")
        if counts.max(initial=0) > MOST_TOKENS:
            raise InputError(f"{path} counts {counts.max():g} tokens for {name}, more than there can be; make it again")
        whole = np.rint(counts.ravel()).astype(np.int64)
        importances[name] = Importance(sums / np.maximum(whole, 1)[:, None], whole)
    if not importances:
        raise InputError(f"{path} holds no importance of any layer; make the file again")
    return importances


def merge_imatrices(parts: Sequence[tuple[str, Imatrix, float]]) -> Imatrix:
    """Returns the weighted mean of imatrix files of one model, each given with its name and weight.

    E[x²] is Σ w E_i[x²] / Σ w, whatever number of tokens is behind each: so equal weights are an equal mix. An expert
    that one file has no tokens for gets the mean of the others.
    """
    if not parts:
        raise InputError("no imatrix was given; name at least one file to merge")
    weights = [positive(f"the weight of {name}", weight) for name, _, weight in parts]
    _check_same_model([(name, imatrix) for name, imatrix, _ in parts])
    members = [imatrix for _, imatrix, _ in parts]
    entries = {name: _mean([imatrix.entries[name] for imatrix in members], weights) for name in members[0].entries}
    total, languages = sum(weights), dict[str, float]()
    if all(imatrix.languages for imatrix in members):
        for imatrix, weight in zip(members, weights, strict=True):
            for code, share in imatrix.languages.items():
                languages[code] = languages.get(code, 0.0) + share * weight / total
    datasets = tuple(dict.fromkeys(name for imatrix in members for name in imatrix.datasets))
    fingerprint = next((imatrix.fingerprint for imatrix in members if imatrix.fingerprint is not None), None)
    return Imatrix(entries, datasets, members[0].chunk_size, languages, fingerprint)


def _mean(parts: Sequence[Importance], weights: Sequence[float]) -> Importance:
    counts = np.stack([part.counts for part in parts])
    shares = np.array(weights)[:, None] * (counts > 0)
    shares /= np.where(shares.sum(0) > 0, shares.sum(0), 1.0)
    mean: Floats = np.einsum("fm,fmw->mw", shares, np.stack([part.mean for part in parts]))
    return Importance(mean, counts.sum(0))


def _check_same_model(parts: Iterable[tuple[str, Imatrix]]) -> None:
    (first_name, first), *rest = parts
    advice = "only files of the same model can be merged"
    for name, imatrix in rest:
        if None not in (first.fingerprint, imatrix.fingerprint) and first.fingerprint != imatrix.fingerprint:
            raise InputError(f"{first_name} and {name} have different fingerprints, so different models; {advice}")
        lacking = sorted(first.entries.keys() ^ imatrix.entries.keys())
        if lacking:
            without = name if lacking[0] in first.entries else first_name
            more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
            raise InputError(f"{without} lacks {', '.join(lacking[:NAMED])}{more}; {advice}")
        for layer, entry in first.entries.items():
            size, second = entry.mean.size, imatrix.entries[layer].mean.size
            if entry.mean.shape != imatrix.entries[layer].mean.shape:
                raise InputError(f"{layer} has {size:,} values in {first_name} and {second:,} in {name}; {advice}")
