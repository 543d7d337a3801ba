"""Progress: how long-running functions report how far they are, and which stage of how many that is."""

from collections.abc import Callable, Sequence

Progress = Callable[[str, float, float], None]
"""Called with the stage, how much of it is done, and how much there is: 0 if that is not known yet.

A stage is reported the moment it begins, with nothing done.
"""
BYTES = "byte"
READING, ROUNDING = "reading text", "rounding blocks"
REFERENCE, QUANTIZED = "evaluating the reference model", "evaluating the quantized model"
WRITING = "writing text"
WEIGHTS, SAVING = "writing weights", "saving the reference"
ASKING, COMPARING = "asking the server", "comparing the answers with the reference"
SIMULATING = "simulating releases"
UNITS = {
    READING: "token",
    "reading weights": BYTES,
    WEIGHTS: BYTES,
    SAVING: BYTES,
    ROUNDING: "block",
    "trying language weights": "block",
    "measuring blocks": "trial",
    "measuring sets of blocks": "trial",
    "evaluating": "window",
    REFERENCE: "window",
    QUANTIZED: "window",
    WRITING: "token",
    ASKING: "request",
    COMPARING: "token",
    "recording activations": "window",
    "computing thresholds": "layer",
    "learning": "step",
    "cutting samples": "language",
    SIMULATING: "release",
}
"""What the stages count."""


class StageName(str):
    """The name of a stage, as in "stage 2 of 5: rounding blocks"; `later` times as much work is still to come."""

    later: float | None = None

    @classmethod
    def after(cls, prefix: str, stage: str, later: float | None = None) -> "StageName":
        """Returns the name of a stage with words before it."""
        name = cls(f"{prefix}: {stage}")
        name.later = getattr(stage, "later", None) if later is None else later
        return name


def unit_of(stage: str) -> str | None:
    """Returns what a stage counts; None if it has no unit.

    >>> unit_of("stage 2 of 3: learning, heb_Hebr is worst at 0.0123 nats")
    'step'
    """
    return UNITS.get(stage.rpartition(": ")[2].partition(", ")[0])


def begin(progress: Progress | None, stage: str) -> None:
    """Reports a stage of which nothing is done yet, before anything that takes time."""
    if progress is not None:
        progress(stage, 0, 0)


def within(progress: Progress | None, prefix: str) -> Progress | None:
    """Returns progress whose stages begin with `prefix`, as in "gptq, 4 bits: rounding blocks"."""
    if progress is None:
        return None
    return lambda stage, done, total: progress(StageName.after(prefix, stage), done, total)


def part(progress: Progress | None, stage: str, *, number: int, count: int) -> Progress | None:
    """Returns the progress of one of `count` equal rounds, reported as a part of `stage`; the first is number 0."""
    if progress is None:
        return None

    def show(_stage: str, done: float, total: float) -> None:
        if total or not number:  # else the beginning of a later round, which would undo what is shown
            progress(stage, number * total + done, count * total)

    return show


class NumberedProgress:
    """Progress of a job whose stages are known: each gets its number and, if their costs are known, what follows it.

    `stages` are pairs of the name that is reported and a cost in any unit, None if it is not known. What is reported
    in between, such as the reading of weights, belongs to the stage before it. `stage` is what was reported last,
    without its number.
    """

    def __init__(self, progress: Progress | None, stages: Sequence[tuple[str, float | None]] = ()) -> None:
        self.stage = ""
        self._progress, self._stages, self._number = progress, stages, -1

    def __call__(self, stage: str, done: float, total: float) -> None:
        begins, self.stage = stage != self.stage, stage
        if self._progress is None:
            return
        if begins:
            self._number = next((i for i in range(self._number + 1, len(self._stages)) if self._is(i)), self._number)
        if self._number < 0 or len(self._stages) == 1:
            self._progress(stage, done, total)
            return
        costs = [cost for _, cost in self._stages[self._number :] if cost is not None]
        complete = len(costs) == len(self._stages) - self._number
        later = sum(costs[1:]) / costs[0] if complete and costs[0] and self._is(self._number) else None
        name = StageName.after(f"stage {self._number + 1} of {len(self._stages)}", stage, later)
        self._progress(name, done, total)

    def _is(self, number: int) -> bool:
        name = self._stages[number][0]
        return self.stage == name or self.stage.startswith(f"{name}, ")
