"""Units: losses in nats and bits, sizes in bytes, and how both are written."""

import math
from typing import TypeVar

from fairbits.core.array_checks import Floats

UNITS = ("bits_per_byte", "nats_per_token", "nats_per_section")  # a section is a document that all languages have
MEASURES = ("divergence", "loss")  # from the reference model's predictions, or the added loss
MEASURE_LABELS = {"divergence": "divergence", "loss": "added loss"}  # how measures are written for people
LEAST_DOCUMENTS = 5  # documents that a language needs for a confidence interval
NEW_TOKENS = 64  # that a model writes for each prompt, at most, unless another number is given
UNIT_LABELS = {unit: unit.replace("_", " ") for unit in UNITS}  # how units are written for people

NATS_PER_BIT = math.log(2)
KB, MB, GB = 10**3, 10**6, 10**9  # bytes, as sizes of files are given
MIB, GIB = 2**20, 2**30  # bytes, as limits of memory are given

T = TypeVar("T", float, Floats)


def bits(nats: T) -> T:
    """Returns nats in bits."""
    return nats / NATS_PER_BIT


def bits_per_byte(nats: T, size_bytes: T) -> T:
    """Returns the bits per byte of texts that cost these nats and have these bytes."""
    return nats / size_bytes / NATS_PER_BIT


def megabytes(size_bytes: float, *, decimals: int = 1) -> str:
    """Returns a size in megabytes; a small one has two significant digits."""
    size = size_bytes / MB
    return f"{size:,.{decimals}f} MB" if size >= 10**-decimals else f"{size:.2g} MB"


def gigabytes(size_bytes: float) -> str:
    """Returns a size in gigabytes, such as "0.01 GB" or "64 GB"."""
    return f"{size_bytes / GB:.2f} GB" if size_bytes < GB else f"{size_bytes / GB:.3g} GB"


def readable_size(size_bytes: float) -> str:
    """Returns a size in the largest unit of which it has at least one."""
    for unit, least in (("GB", GB), ("MB", MB), ("kB", KB)):
        if size_bytes >= least:
            count = size_bytes / least
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
    return f"{size_bytes:.0f} bytes"
