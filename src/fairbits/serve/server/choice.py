"""A choice of a request, from when it waits until its end is reported."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import perf_counter

from fairbits.serve.overlays.adaptive_model import Choice
from fairbits.serve.server.request import Sampling


@dataclass(frozen=True)
class TextChunk:
    """Text that is added to a choice; `finish_reason` comes with the last chunk."""

    text: str
    finish_reason: str | None = None


@dataclass(frozen=True)
class Failure:
    """A choice that could not be decoded, for a reason that is not its client's: `stopping` is one of them."""

    stopping: bool = False


@dataclass(eq=False)
class PendingChoice:
    """One choice of a request. The decoding thread writes `tokens`; any thread may set `cancelled`.

    `prompt`  the tokens of the prompt
    `served`  the language and overlay that serve it
    `stops`   the strings that end it
    `emit`    receives chunks as they come if `stream`, else one chunk with all the text; called by another thread
    """

    prompt: tuple[int, ...]
    served: Choice
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    stream: bool
    emit: Callable[[TextChunk | Failure], None]
    tokens: int = 0
    cancelled: bool = False
    arrived_at: float = field(default_factory=perf_counter)

    @property
    def batch_key(self) -> Hashable:
        """What choices must share to be decoded together; one with a seed is decoded alone, to be reproducible."""
        overlay, sampling = self.served.overlay, self.sampling
        if sampling.temperature == 0:
            return (overlay,)
        if sampling.seed is not None:
            return (overlay, id(self))
        return (overlay, sampling.temperature, sampling.top_p)
