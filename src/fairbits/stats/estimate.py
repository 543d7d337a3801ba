"""A number with its interval: what every statistic of fairbits returns."""

from dataclasses import asdict, dataclass

from fairbits.checks import in_range, whole
from fairbits.errors import InputError


@dataclass(frozen=True)
class Estimate:
    """A point estimate, its confidence interval [low, high] and the number of units n behind it.

    >>> print(Estimate(0.0321, 0.0288, 0.0359, 40))
    0.0321 [0.0288, 0.0359] (n=40)
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Checks that the numbers are finite and ordered."""
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, in_range(name, getattr(self, name)))
        object.__setattr__(self, "n", whole("n", self.n, least=1))
        object.__setattr__(self, "confidence", in_range("confidence", self.confidence, above=0, below=1))
        if self.low > self.high:
            raise InputError(f"low is {self.low:g} and high is {self.high:g}; low must be at most high")

    def __str__(self) -> str:
        """Returns value, interval and n with three significant digits or four decimals, whichever is more."""
        value, low, high = (_short(number) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] (n={self.n})"

    def excludes(self, x: float) -> bool:
        """Returns whether x lies outside the closed interval.

        >>> Estimate(0.03, 0.01, 0.05, 40).excludes(0.0)
        True
        """
        point = in_range("x", x)
        return point < self.low or point > self.high

    def to_dict(self) -> dict[str, float | int]:
        """Returns the fields as plain numbers, ready for JSON."""
        return asdict(self)


def _short(number: float) -> str:
    return f"{number:.4f}" if number == 0 or abs(number) >= 0.001 else f"{number:.3g}"
