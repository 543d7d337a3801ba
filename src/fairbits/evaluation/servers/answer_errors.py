"""What is wrong with an answer of a server; the client of the server adds its address."""

from typing import Any, NoReturn

from fairbits.core.errors import InputError

MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What reading JSON raises that has another form than it should."""


class AnswerError(InputError):
    """An answer that cannot be used: the problem, as in "the server PROBLEM", the remedy, and the address."""

    def __init__(self, problem: str, remedy: str, root: str | None = None) -> None:
        super().__init__(f"the server {'' if root is None else f'at {root} '}{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


class NotOfferedError(AnswerError):
    """The server does not have what was asked for; there may be another way to ask it."""


def refuse(problem: str, remedy: str) -> NoReturn:
    """Raises an error about an answer."""
    raise AnswerError(problem, remedy)


def number(value: object) -> float:
    """Returns a JSON number; anything else, such as the text "-1.5", is a TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} in place of a number")
    return float(value)


def whole_number(value: object) -> int:
    """Returns a JSON integer; anything else is a TypeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r:.40} in place of a whole number")
    return value


def token_id(value: object) -> int:
    """Returns the id of a token; anything else is a TypeError."""
    if whole_number(value) < 0:
        raise TypeError(f"{value!r:.40} in place of the id of a token")
    return whole_number(value)


def array(value: object) -> list[Any]:
    """Returns a JSON array; anything else is a TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.40} in place of an array")
    return value
