"""The errors that fairbits raises on purpose, and text that is safe to show."""

import re

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (they control a terminal), direction overrides (they disguise text) and unpaired surrogates."""


def printable(text: str) -> str:
    r"""Returns text of strangers on one line, with control characters as \uXXXX, which JSON can decode."""
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def count_of(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 block", "1,200 blocks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


OUT_OF_MEMORY = ("DefaultCPUAllocator: can't allocate", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch says when memory ran out, where its error has no special class."""


class FairbitsError(Exception):
    """A problem the user can act on: what arrived, what must hold, what to do."""

    def __str__(self) -> str:
        return printable(" ".join(line.strip() for line in super().__str__().split("\n")))


class InputError(FairbitsError, ValueError):
    """An argument or a file that cannot be used."""


class AlreadyReportedError(FairbitsError):
    """An error that another process of the same run has reported, or reports now; this one ends in silence."""


class MemoryLimitError(InputError):
    """Work that stopped because memory ran out; what is finished is kept where a command can be resumed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the machine or a device ran out of memory."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY))
