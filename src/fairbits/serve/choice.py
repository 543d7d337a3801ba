"""A row: one choice of a request, from when it waits until it is told how it ended."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import perf_counter

from fairbits.overlays.model import Choice
from fairbits.serve.request import Sampling


@dataclass(frozen=True)
class Piece:
    """Text that is added to a choice; `finish_reason` comes with the last."""

    text: str
    finish_reason: str | None = None


@dataclass(frozen=True)
class Failure:
    """A row that could not be decoded, for a reason that is not its client's."""


@dataclass(eq=False)
class Row:
    """One choice of a request. The thread that decodes writes `tokens`; `cancelled` may be set from any.

    `tell`      is given pieces as they come if `streamed`, else one with all the text; from another thread
    """

    prompt: tuple[int, ...]
    choice: Choice
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    streamed: bool
    tell: Callable[[Piece | Failure], None]
    tokens: int = 0
    cancelled: bool = False
    arrived: float = field(default_factory=perf_counter)

    @property
    def kind(self) -> Hashable:
        """What rows must share to be decoded together; one with a seed is drawn alone, to come out the same again."""
        overlay, sampling = self.choice.overlay, self.sampling
        if sampling.temperature == 0:
            return (overlay,)
        if sampling.seed is not None:
            return (overlay, id(self))
        return (overlay, sampling.temperature, sampling.top_p)
