"""AdaptiveModel: a quantized base that switches to the overlay of each request's language, stated or detected."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fairbits.core.checks import in_range, instance, sequence, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.generation import Continuation, Prompt, Settings, generate_batch, settings_for
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.serve.overlays.activations import ActivationQuantizer
from fairbits.serve.overlays.overlay_files import BASE, Overlays
from fairbits.serve.overlays.switch import Switch
from fairbits.text.catalog import Language
from fairbits.text.detect import Detector, alike_languages
from fairbits.text.documents import encodable
from fairbits.text.language_codes import find_language, language_from_code

LOOKED_AT = 1000
"""Characters from the first letter on that are used to detect a language: more take time and change nothing."""
CONFIDENCE = 0.5  # a detected language with a lower probability than this, among those served, is ignored
BATCH = 16  # the largest number of prompts in a batch


@dataclass(frozen=True)
class Choice:
    """Which overlay serves a text, and why: "asked", "detected", "unsure" (below the confidence) or "undetectable"."""

    language: Language | None
    confidence: float | None
    overlay: str
    reason: str

    def as_data(self) -> dict[str, Any]:
        return {**vars(self), "language": self.language and self.language.code}


@dataclass(frozen=True)
class Completion:
    """The continuation of a prompt; `finish_reason` is "stop" if the model ended it, and "length" if it was cut off."""

    text: str
    choice: Choice
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str

    def as_data(self) -> dict[str, Any]:
        rest = {name: value for name, value in vars(self).items() if name not in ("text", "choice")}
        return {"text": self.text, **self.choice.as_data(), **rest}


class AdaptiveModel:
    """A quantized base that switches to the overlay of each request's language. Safe to share between threads.

    The model belongs to whoever is inside `using`, and must stay on the device where it was loaded.
    """

    def __init__(
        self,
        base: str | Path | Checkpoint,
        overlays: str | Path | Overlays | None = None,
        *,
        confidence: float = CONFIDENCE,
        device: str = AUTO,
        dtype: torch.dtype = torch.float32,
        trust_remote_code: bool = False,
    ) -> None:
        in_range("confidence", confidence, least=0.0, most=1.0)
        device = resolve_device(device)
        checkpoint = base if isinstance(base, Checkpoint) else Checkpoint(base, trust_remote_code=trust_remote_code)
        self.checkpoint = checkpoint
        self.overlays = _overlays_for(overlays, checkpoint)
        served = self.overlays.languages if self.overlays else {}
        self.languages = tuple(map(language_from_code, served))
        self._overlay = dict(zip((language.code for language in self.languages), served.values(), strict=True))
        self._confidence, self._alike = confidence, alike_languages(self.languages)
        self._detector = Detector(self._alike) if len(self._alike) > 1 else None
        self.tokenizer: PreTrainedTokenizerBase = self.checkpoint.tokenizer()
        self.model: PreTrainedModel = self.checkpoint.load(dtype, device=device)
        self._switch = Switch(self.model, self.overlays.overlays if self.overlays else ())
        table = self.overlays.activations if self.overlays else None
        self._inputs = None if table is None else ActivationQuantizer(self.model, table)
        self._lock = threading.RLock()
        self._inside = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (BASE, *(overlay.name for overlay in self.overlays.overlays)) if self.overlays else (BASE,)

    @property
    def now(self) -> str:
        return self._switch.now

    def choose(self, text: str, *, language: str | None = None) -> Choice:
        """Returns the overlay for a text in this language, or in the detected one."""
        instance("text", text, str)
        if language is not None:
            stated = find_language(language, user_codes=self._overlay)
            if stated.code not in self._overlay:
                available = ", ".join(self._overlay) or "none, as there are no overlays"
                raise InputError(f"language is {stated}; it must be one that is served: {available}")
            return Choice(stated, None, self._overlay[stated.code], "asked")
        first = next((i for i, character in enumerate(text) if character.isalpha()), None)
        if first is None or self._detector is None:
            return Choice(None, None, BASE, "undetectable")
        looked_at = text[first : first + LOOKED_AT]
        if not encodable(looked_at):
            raise InputError(f"text is {text!r:.40}; it must be valid Unicode to have a language")
        detected = self._detector.detect(looked_at)
        overlays = {self._overlay[alike.code] for alike in self._alike[detected.language.code]}
        if len(overlays) > 1:  # the detector cannot distinguish them
            return Choice(None, None, BASE, "undetectable")
        if detected.confidence < self._confidence:
            return Choice(detected.language, detected.confidence, BASE, "unsure")
        return Choice(detected.language, detected.confidence, overlays.pop(), "detected")

    @contextmanager
    def using(self, overlay: str) -> Iterator[PreTrainedModel]:
        """Gives the model with an overlay, or the base, to one thread at a time; the overlay then stays active."""
        with self._lock:
            before = self.now
            self._to(overlay)
            self._inside += 1
            try:
                yield self.model
            finally:
                self._inside -= 1
                if self._inside:
                    self._to(before)

    def _to(self, overlay: str) -> None:
        self._switch.to(overlay)
        if self._inputs is not None:
            self._inputs.use(None if overlay == BASE else overlay)

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        language: str | None = None,
        seed: int | None = None,
        batch: int = BATCH,
        progress: Progress | None = None,
        **options: Any,
    ) -> list[Completion]:
        """Returns the completion of every prompt, in the order of the prompts.

        `language` is the language of all prompts; without it each is detected. `options` are options of `generate` in
        transformers. With a `seed`, sampled prompts are continued one at a time, so that none depends on the others.
        """
        texts = (prompts,) if isinstance(prompts, str) else sequence("prompts", prompts)
        whole("batch", batch, least=1)
        if seed is not None:
            whole("seed", seed, least=0)
        settings = settings_for(self.model, self.tokenizer, options, seed=seed)
        tokenized = [self._prompt(i, text, settings) for i, text in enumerate(texts)]
        choices = [self.choose(prompt.text, language=language) for prompt in tokenized]
        now, continued = self.now, dict[int, Continuation]()
        for overlay in sorted(dict.fromkeys(choice.overlay for choice in choices), key=lambda name: name != now):
            served = [prompt for prompt, choice in zip(tokenized, choices, strict=True) if choice.overlay == overlay]
            served.sort(key=lambda prompt: len(prompt.ids))
            most = 1 if settings.alone else batch
            for start in range(0, len(served), most):
                with self.using(overlay) as model:
                    continued |= generate_batch(model, self.tokenizer, served[start : start + most], settings)
                if progress:
                    progress("generating text", len(continued), len(tokenized))
        return [
            Completion(continued[i].text, choice, len(prompt.ids), continued[i].tokens, continued[i].finish_reason)
            for i, (prompt, choice) in enumerate(zip(tokenized, choices, strict=True))
        ]

    def _prompt(self, place: int, text: str, settings: Settings) -> Prompt:
        if not isinstance(text, str) or not text or not encodable(text):
            raise InputError(f"prompts[{place}] is {text!r:.40}; every prompt must be valid Unicode text, not empty")
        # no padding here: it would change the tokenizer's state for other threads
        ids = self.tokenizer(text, verbose=False)["input_ids"]
        if not ids:
            raise InputError(f"prompts[{place}] is {text!r:.40}, which has no token; give text to continue")
        room = self.checkpoint.stated_positions
        if len(ids) + settings.most > room:
            raise InputError(
                f"prompts[{place}] has {len(ids):,} tokens, and up to {settings.most:,} more are requested; "
                f"{self.checkpoint.target} has {room:,} positions: shorten it, or request fewer"
            )
        return Prompt(place, text, tuple(ids))


def _overlays_for(overlays: str | Path | Overlays | None, base: Checkpoint) -> Overlays | None:
    if overlays is None:
        return None
    if not isinstance(overlays, Overlays):
        return Overlays.load(overlays, base)
    if overlays.base != base.fingerprint:
        raise InputError(f"the overlays were made for a base other than {base.target}; give that base")
    return overlays
