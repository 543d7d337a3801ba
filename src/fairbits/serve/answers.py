"""The JSON of responses, as OpenAI's clients read it, with what fairbits adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fairbits.overlays.model import Choice
from fairbits.overlays.overlay import BASE
from fairbits.serve.choice import PendingChoice

if TYPE_CHECKING:
    from fairbits.overlays.model import AdaptiveModel

UNKNOWN = "unknown"
"""The language in headers and metrics where it is not known."""


@dataclass(frozen=True)
class CompletionData:
    """The JSON of one response: its id, and the choices whose text it holds."""

    model: str
    choices: Sequence[PendingChoice]
    id: str
    created: int

    @classmethod
    def of(cls, model: str, choices: Sequence[PendingChoice]) -> "CompletionData":
        """Returns the data of a new response."""
        return cls(model, choices, f"cmpl-{uuid4().hex}", int(time()))

    @property
    def headers(self) -> dict[str, str]:
        """The language and overlay that serve each choice, in the order of the choices."""
        served = [choice.served for choice in self.choices]
        return {
            "X-Fairbits-Language": ", ".join(map(language_code, served)),
            "X-Fairbits-Overlay": ", ".join(each.overlay for each in served),
        }

    def body(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Returns the completion object with some choices."""
        frame = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**frame, "choices": list(choices), **more}

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        """Returns one choice, or a part of it; the last part also says what served it."""
        data = {"index": index, "text": text, "finish_reason": reason, "logprobs": None}
        return data if reason is None else {**data, "fairbits": _served_data(self.choices[index].served)}

    def usage(self, n: int) -> dict[str, int]:
        """Returns the tokens that were read and generated; a prompt with several choices counts once."""
        read = sum(len(choice.prompt) for choice in self.choices[::n])
        generated = sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


def language_code(served: Choice) -> str:
    """Returns the code of the language of a choice."""
    return UNKNOWN if served.language is None else served.language.code


def model_data(model: "AdaptiveModel", name: str, created: int) -> dict[str, Any]:
    """Returns the model object of the API."""
    served = model.overlays.languages if model.overlays else {}
    languages = [{"code": each.code, "name": each.name, "overlay": served[each.code]} for each in model.languages]
    own = {"languages": languages, "overlays": [each for each in model.names if each != BASE]}
    return {"id": name, "object": "model", "created": created, "owned_by": "fairbits", "fairbits": own}


def _served_data(served: Choice) -> dict[str, Any]:
    return {
        "language": None if served.language is None else served.language.code,
        "confidence": served.confidence,
        "overlay": served.overlay,
        "reason": served.reason,
    }
