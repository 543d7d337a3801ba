"""OverlayBuilder: makes overlays of a base from calibration text, and evaluates them on held-out text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.measure.passes.text import NO_LABEL, Text
from fairbits.measure.scores.reference import Reference
from fairbits.overlays.base_model import OverlayBase
from fairbits.overlays.clusters import importance_patterns
from fairbits.overlays.forms import Candidate, candidates
from fairbits.overlays.overlay import BASE, Form, Overlay
from fairbits.overlays.selection import patches_within
from fairbits.overlays.sensitivity import sensitivity
from fairbits.overlays.switch import Switch
from fairbits.progress import Progress
from fairbits.quantize.learning.model_distillation import Teacher
from fairbits.units import bits

APART = 3
"""One in this many documents of a language is held out."""
Cluster = tuple[str, ...]


class OverlayBuilder:
    """A base, and how the model it was made from answered the calibration text.

    Between two calls no overlay lies over the base.
    """

    def __init__(
        self, overlay_base: OverlayBase, reference: Reference, *, seed: int = 0, progress: Progress | None = None
    ) -> None:
        self.overlay_base, self.text, self._seed = overlay_base, reference.text, seed
        self._tell = progress or (lambda _stage, _done, _total: None)
        self._teacher = Teacher(reference, overlay_base.model, device=str(overlay_base.model.device))
        self._apart = kept_apart(self.text)
        self._sensitivity: dict[str, dict[str, Tensor]] = {}

    def patterns(self) -> dict[str, Floats]:
        """Returns the importance pattern of every language."""
        self._tell("computing importance patterns", 0, 1)
        return importance_patterns(self.overlay_base, self._fitting(self.text.languages))

    def candidates(self, cluster: Cluster, form: Form) -> list[Candidate]:
        """Returns every linear map of the base in a form that suits the languages of a cluster, which count alike."""
        each = [self._sensitivity_of(code) for code in cluster]
        mean = {name: torch.stack([own[name] for own in each]).mean(0) for name in each[0]}
        found, total = [], len(self.overlay_base.schemes)
        for candidate in candidates(self.overlay_base, self._fitting(cluster), mean, form=form):
            found.append(candidate)
            self._tell(f"choosing {form} rows for {', '.join(cluster):.40}", len(found), total)
        return found

    def overlay(self, name: str, cluster: Cluster, found: Sequence[Candidate], budget: float | None) -> Overlay:
        """Returns the overlay of a cluster that takes at most this share of the bytes of the base; None: all rows."""
        limit = None if budget is None else budget * self.overlay_base.size_bytes
        return Overlay(name, cluster, patches_within(found, limit))

    def damage(self, languages: Iterable[str], overlay: Overlay | None = None) -> dict[str, float]:
        """Returns KL from the original model on held-out text, in bits per byte of each language."""
        wanted = set(languages)
        windows = [i for i, window in enumerate(self.text.windows) if self._is(window.document, wanted, apart=True)]
        switch = Switch(self.overlay_base.model, () if overlay is None else (overlay,))
        switch.to(BASE if overlay is None else overlay.name)
        try:
            with np.errstate(invalid="ignore"):  # languages that are not evaluated have no tokens
                nats = self._teacher.damage(windows) * self._tokens_per_byte(windows)
        finally:
            switch.to(BASE)
        return {code: bits(float(nats[i])) for i, code in enumerate(self.text.languages) if code in wanted}

    def _sensitivity_of(self, code: str) -> dict[str, Tensor]:
        if code not in self._sensitivity:
            self._tell(f"computing sensitivities for {code}", len(self._sensitivity), len(self.text.languages))
            self._sensitivity[code] = sensitivity(self.overlay_base, self._fitting((code,)), seed=self._seed)
        return self._sensitivity[code]

    def _fitting(self, languages: Iterable[str]) -> Text:
        """Returns the text of some languages that overlays are made for."""
        wanted = set(languages)
        windows = (window for window in self.text.windows if self._is(window.document, wanted, apart=False))
        return replace(self.text, windows=tuple(windows))

    def _is(self, document: int, languages: set[str], *, apart: bool) -> bool:
        return str(self.text.lang[document]) in languages and (document in self._apart) == apart

    def _tokens_per_byte(self, windows: Sequence[int]) -> Floats:
        """Returns the predicted tokens per byte of each language in these windows."""
        count, chosen = len(self.text.languages), [self.text.windows[i] for i in windows]
        tokens, size, language_of = np.zeros(count), np.zeros(count), self.text.language_of
        for window in chosen:
            tokens[language_of[window.document]] += sum(label != NO_LABEL for label in window.main.labels)
        for document in {window.document for window in chosen}:
            size[language_of[document]] += self.text.size_bytes[document]
        ratio: Floats = tokens / np.maximum(size, 1)
        return ratio


def kept_apart(text: Text) -> frozenset[int]:
    """Returns every third document of each language."""
    documents: dict[str, list[int]] = {code: [] for code in text.languages}
    for document in sorted({window.document for window in text.windows}):
        documents[str(text.lang[document])].append(document)
    few = sorted(code for code, own in documents.items() if len(own) < APART)
    if few:
        raise InputError(
            f"the calibration text has {len(documents[few[0]])} document(s) in {few[0]}; overlays are made for some "
            f"and judged by others, and need {APART} of every language: give more text, or more --tokens"
        )
    return frozenset(own[i] for own in documents.values() for i in range(APART - 1, len(own), APART))


def best_count(damages: Mapping[int, Mapping[str, float]], *, spare: float) -> int:
    """Returns the fewest clusters whose worst damage is within `spare` of the least.

    >>> best_count({1: {"a": 0.3}, 2: {"a": 0.2}, 4: {"a": 0.199}}, spare=0.02)
    2
    """
    worst = {count: max(each.values()) for count, each in damages.items()}
    return min(count for count, value in worst.items() if value <= min(worst.values()) * (1 + spare))
