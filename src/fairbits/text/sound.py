"""Sound: a WAV file of speech as one channel of samples at the rate that a model wants."""

import hashlib
import io
import os
import stat
import warnings
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fairbits.core.errors import InputError
from fairbits.core.memory import CLIP_BYTES

Samples = NDArray[np.float32]

RATES = range(4_000, 384_001)  # samples per second that a file may have: telephones have 8,000, studios up to 192,000
SUFFIX = ".wav"


@dataclass(frozen=True)
class Clip:
    """A WAV file of speech, with its size and the time of its last change (ns) when it was found."""

    path: Path
    size: int
    changed: int

    @classmethod
    def find(cls, path: Path, where: str) -> "Clip":
        """Returns the clip at a path, which `where` names; its samples are not read yet."""
        if path.suffix.lower() != SUFFIX:
            raise InputError(f"{where} names {path.name}, which is not a WAV file; {_convert(path)}")
        try:
            info = path.stat()
        except OSError as error:
            raise InputError(f"{where} names {path}, which cannot be read ({error.strerror}); add the file") from None
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{where} names {path}, which is not a regular file; sound must come from files")
        if info.st_size > CLIP_BYTES:
            raise InputError(
                f"{path} has {info.st_size:,} bytes; a clip may have {CLIP_BYTES:,}: cut it into shorter ones"
            )
        return cls(path, info.st_size, info.st_mtime_ns)

    @cached_property
    def sha256(self) -> bytes:
        return hashlib.sha256(self._content()).digest()

    def samples(self, rate: int) -> Samples:
        """Returns the sound as one channel at `rate` samples per second: the mean of its channels, within ±1."""
        from scipy.signal import resample_poly

        recorded, sound = _read_wav(self._content(), self.path)
        if recorded == rate:
            return sound
        common = gcd(recorded, rate)
        return np.asarray(resample_poly(sound, rate // common, recorded // common), dtype=np.float32)

    def _content(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                now = os.fstat(file.fileno())
                content = file.read(self.size + 1)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}); add the file again") from None
        if (len(content), now.st_mtime_ns) != (self.size, self.changed):
            raise InputError(f"{self.path} has changed since the corpus was opened; do not change it while it is used")
        return content


def _read_wav(content: bytes, path: Path) -> tuple[int, Samples]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", wavfile.WavFileWarning)
            warnings.filterwarnings("ignore", "Chunk .non-data. not understood", wavfile.WavFileWarning)
            # not from the path: scipy would take as much memory as the header says
            rate, data = wavfile.read(io.BytesIO(content))
        _check_complete(content)
    except Exception as error:  # a damaged header fails in many ways
        raise InputError(f"{path} is damaged, or not a WAV file of plain samples ({error}); {_convert(path)}") from None
    if rate not in RATES:
        raise InputError(
            f"{path} has {rate:,} samples per second; it must have between {RATES[0]:,} and {RATES[-1]:,}: "
            f"{_convert(path)}"
        )
    sound = _scaled(np.asarray(data))
    if sound.ndim > 1:
        sound = sound.mean(1, dtype=np.float32)
    if not sound.size:
        raise InputError(f"{path} has no samples; leave it out, or record it again")
    if not np.isfinite(sound).all():
        raise InputError(f"{path} has samples that are NaN or infinite; leave it out, or record it again")
    return int(rate), sound


def _check_complete(content: bytes) -> None:
    order: Literal["big", "little"] = "big" if content.startswith(b"RIFX") else "little"
    at = 12
    while content[at : at + 4] not in (b"data", b""):
        at += 8 + int.from_bytes(content[at + 4 : at + 8], order) + content[at + 4 if order == "little" else at + 7] % 2
    size = int.from_bytes(content[at + 4 : at + 8], order)
    if at + 8 + size > len(content) and not content.startswith(b"RF64"):
        raise ValueError(f"{len(content) - at - 8:,} of {size:,} bytes of samples are there")


def _scaled(data: NDArray[np.generic]) -> Samples:
    if data.dtype.kind == "f":
        with np.errstate(over="ignore"):  # float64 beyond the range of float32 is refused as infinite
            return data.astype(np.float32)
    if data.dtype.kind == "u":
        return (data.astype(np.float32) - 128.0) / 128.0
    return data.astype(np.float32) / np.float32(2.0 ** (8 * data.dtype.itemsize - 1))


def _convert(path: Path) -> str:
    new = path.with_suffix(SUFFIX) if path.suffix.lower() != SUFFIX else path.with_name(f"{path.stem}-16k{SUFFIX}")
    return f"sound must be in WAV files: ffmpeg -i {path.name} -ac 1 -ar 16000 -c:a pcm_s16le {new.name}"
