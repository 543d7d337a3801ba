"""Progress: how long-running functions report how far they are."""

from collections.abc import Callable

Progress = Callable[[str, float, float], None]  # called with the stage, how much of it is done, and how much there is


def within(progress: Progress | None, prefix: str) -> Progress | None:
    """Returns progress whose stages begin with `prefix`, as in "gptq, 4 bits: rounding blocks"."""
    return None if progress is None else lambda stage, done, total: progress(f"{prefix}: {stage}", done, total)


def part(progress: Progress | None, stage: str, *, number: int, count: int) -> Progress | None:
    """Returns the progress of one of `count` equal rounds, reported as a part of `stage`; the first is number 0."""
    if progress is None:
        return None
    return lambda _stage, done, total: progress(stage, number * total + done, count * total)
