"""Work: what a stage does, counted in units whose rates can be measured; and the time and memory it takes."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import reduce
from operator import add


@dataclass(frozen=True)
class Work:
    """Counts. Each has a rate of the same name in `Rates`, and a stage takes the sum of count / rate.

    `products`     floating-point operations of matrix products in float32, on the device
    `fast`         the same in the type in which the device learns, bfloat16 on a GPU
    `traffic`      bytes that element-wise operations on activations and weights read and write, on the device
    `calls`        operations that are started, on the device
    `logits`       logits of which a loss or a divergence is computed, on the device
    `clipped`      weights whose scale the exact clip finds
    `columns`      columns that GPTQ rounds one after the other
    `cells`        weights in these columns
    `factors`      floating-point operations of Cholesky factors
    `host`         bytes that the CPU reads and writes in memory: packing, unpacking, sums in float64
    `moved`        bytes that go to the device and back
    `read`         bytes read from the model's files
    `written`      bytes written to the disk
    `hashed`       bytes whose SHA-256 is computed
    `seconds`      what has no rate, such as the report
    """

    products: float = 0.0
    fast: float = 0.0
    traffic: float = 0.0
    calls: float = 0.0
    logits: float = 0.0
    clipped: float = 0.0
    columns: float = 0.0
    cells: float = 0.0
    factors: float = 0.0
    host: float = 0.0
    moved: float = 0.0
    read: float = 0.0
    written: float = 0.0
    hashed: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, times: float) -> "Work":
        return Work(*(getattr(self, each.name) * times for each in fields(self)))


READING, WRITING = ("read", "moved"), ("written", "hashed")
"""Work that other threads do in a stage that reads ahead and writes behind."""


@dataclass(frozen=True)
class Rates:
    """Measured rates: how many of each count of `Work` this machine does in a second."""

    products: float
    fast: float
    traffic: float
    calls: float
    logits: float
    clipped: float
    columns: float
    cells: float
    factors: float
    host: float
    moved: float
    read: float
    written: float
    hashed: float
    seconds: float = 1.0

    def time(self, work: Work, *, overlapping: bool = False) -> float:
        """Returns the seconds that work takes; if reading, computing and writing are `overlapping`, the longest."""
        parts = self.parts(work)
        if not overlapping:
            return sum(parts.values())
        reading, writing = (sum(parts.pop(name, 0.0) for name in names) for names in (READING, WRITING))
        return max(sum(parts.values()), reading, writing)

    def parts(self, work: Work) -> dict[str, float]:
        """Returns the seconds that each kind of work takes; those that take none are left out."""
        counts = {each.name: getattr(work, each.name) for each in fields(work)}
        return {name: count / getattr(self, name) for name, count in counts.items() if count}


@dataclass(frozen=True)
class Held:
    """The most bytes that are held at a time; those on disk are `written` to stay, or `scratch` for the while."""

    gpu: float = 0.0
    ram: float = 0.0
    written: float = 0.0
    scratch: float = 0.0

    def __add__(self, other: "Held") -> "Held":
        """Returns what two things need that are held together."""
        return Held(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __or__(self, other: "Held") -> "Held":
        """Returns what two parts of a stage need that do not run together; what is written adds up."""
        return Held(
            max(self.gpu, other.gpu),
            max(self.ram, other.ram),
            self.written + other.written,
            max(self.scratch, other.scratch),
        )


@dataclass(frozen=True)
class Stage:
    """A part of a job: its name, its work, what it holds, and whether it reads ahead and writes behind."""

    name: str
    work: Work
    held: Held
    overlapping: bool = False


def total(works: Iterable[Work]) -> Work:
    """Returns the sum of all work."""
    return reduce(add, works, Work())
