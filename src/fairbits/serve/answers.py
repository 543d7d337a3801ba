"""The answers of the server as OpenAI's clients read them, with what fairbits adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fairbits.overlays.model import Choice
from fairbits.overlays.overlay import BASE
from fairbits.serve.choice import Row

if TYPE_CHECKING:
    from fairbits.overlays.model import AdaptiveModel

UNKNOWN = "unknown"
"""What stands for a language that is not known in headers and counters."""


@dataclass(frozen=True)
class Answer:
    """The frame of one answer: its id, and the rows whose text it gives."""

    model: str
    rows: Sequence[Row]
    id: str
    created: int

    @classmethod
    def of(cls, model: str, rows: Sequence[Row]) -> "Answer":
        """Returns the frame of a new answer."""
        return cls(model, rows, f"cmpl-{uuid4().hex}", int(time()))

    @property
    def headers(self) -> dict[str, str]:
        """Which language and overlay serve each choice, in the order of the choices."""
        choices = [row.choice for row in self.rows]
        return {
            "X-Fairbits-Language": ", ".join(map(code_of, choices)),
            "X-Fairbits-Overlay": ", ".join(choice.overlay for choice in choices),
        }

    def data(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Returns the object with some choices."""
        frame = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**frame, "choices": list(choices), **more}

    def choice(self, place: int, text: str, reason: str | None) -> dict[str, Any]:
        """Returns one choice, or a part of it; with its end comes what served it."""
        data = {"index": place, "text": text, "finish_reason": reason, "logprobs": None}
        return data if reason is None else {**data, "fairbits": _served(self.rows[place].choice)}

    def usage(self, n: int) -> dict[str, int]:
        """Returns how many tokens were read and made; a prompt with several choices is counted once."""
        read = sum(len(row.prompt) for row in self.rows[::n])
        made = sum(row.tokens for row in self.rows)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def code_of(choice: Choice) -> str:
    """Returns the code of the language of a choice."""
    return UNKNOWN if choice.language is None else choice.language.code


def model_data(model: "AdaptiveModel", name: str, created: int) -> dict[str, Any]:
    """Returns what there is to know of the model that is served."""
    served = model.overlays.languages if model.overlays else {}
    languages = [{"code": each.code, "name": each.name, "overlay": served[each.code]} for each in model.languages]
    own = {"languages": languages, "overlays": [each for each in model.names if each != BASE]}
    return {"id": name, "object": "model", "created": created, "owned_by": "fairbits", "fairbits": own}


def _served(choice: Choice) -> dict[str, Any]:
    return {
        "language": None if choice.language is None else choice.language.code,
        "confidence": choice.confidence,
        "overlay": choice.overlay,
        "reason": choice.reason,
    }
