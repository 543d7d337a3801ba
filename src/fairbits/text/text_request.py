"""TextRequest: which text of a corpus a model reads, and how much of it."""

from dataclasses import dataclass
from typing import Any

from fairbits.core.checks import one_of, whole
from fairbits.text.corpus import SPLITS

FEWEST_TOKENS = 16
SHORTEST_WINDOW = 4  # positions without which a window has no room for text


@dataclass(frozen=True)
class TextRequest:
    """The text that one pass over a corpus reads: about `tokens` of each language, in windows of `sequence`."""

    split: str = "calibration"
    tokens: int = 4096
    sequence: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("split", self.split, SPLITS)
        for name, least in (("tokens", FEWEST_TOKENS), ("sequence", SHORTEST_WINDOW), ("seed", 0)):
            # integers of NumPy become Python's, which JSON takes
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))

    @property
    def settings(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "sequence": self.sequence, "seed": self.seed}


DEFAULT_REQUEST = TextRequest()
