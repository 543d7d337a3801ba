"""One model on the declaration in the languages that it knows: quantized on one text after another, and its KL each."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import published
from bench import Bench, Setting
from fairbits import Checkpoint
from fairbits.api.make_plan import plan as make_plan
from fairbits.core.units import bits
from fairbits.forward.statistics import document_losses
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.device import resolve_device
from fairbits.models.embedded import LANGUAGES
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr, udhr_languages
from fairbits.text.text_request import TextRequest

ALL_TOKENS = 10**6
"""More calibration tokens than a language of the declaration has: all of its text is used."""
KNOWN = 2.0
"""A language is known if its text costs at most this many times the bits of the median of CORE."""
CORE = ("deu_Latn", "fra_Latn", "ita_Latn", "por_Latn", "rus_Cyrl", "spa_Latn", "zho_Hans")
"""Languages that every multilingual model knows; English is not among them, as some models recite it."""
SCREENED_TOKENS = 400


@dataclass
class Results:
    """The KL of every document after each calibration, next to what identifies model, setting and documents."""

    model: str
    setting: str
    known: dict[str, float]
    text: list[str] = field(default_factory=list)
    lang: list[str] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Returns what was saved."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Writes everything."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))


class Trial:
    """A model with its answers before quantization; `run` quantizes by GPTQ and adds the KL to the results."""

    def __init__(self, model: str, setting: str, texts: Mapping[str, Corpus], *, tokens: int, device: str) -> None:
        """Evaluates the reference model on about `tokens` of every text and language."""
        self.setting, self.device = Setting.of(setting), device
        self.corpus = texts["declaration"]
        request = TextRequest("evaluation", tokens, 512)
        self.bench = Bench(path_of(model), self.corpus, texts, request=request, device=device)

    def run(self, results: Results, name: str, corpus: Corpus, *, tokens: int = ALL_TOKENS, **facts: Any) -> None:
        """Adds the KL of every document after GPTQ with equal weights on the calibration split of `corpus`.

        About `tokens` of every language are read.
        """
        start = time.perf_counter()
        given = {"bits": self.setting.bits, "group": self.setting.group, "device": self.device}
        given |= {"tokens": tokens, "seed": facts.get("seed", 0)}
        plan = make_plan(self.bench.checkpoint, policy="gptq", text=corpus, **given)
        self.bench.corpus = corpus
        scores, found = self.bench.run(plan, name)
        parts = {text: each.documents for text, each in scores.items()}
        results.text = [text for text, each in parts.items() for _ in each.lang]
        results.lang = [code for each in parts.values() for code in each.lang.tolist()]
        results.document = [number for each in parts.values() for number in each.document.tolist()]
        results.tokens = [count for each in parts.values() for count in each.tokens.tolist()]
        results.sets[name] = {
            **facts,
            "languages": list(plan.languages),
            "calibration_tokens": sum(found["calibration_tokens"].values()),
            "kl": [float(f"{value:.6g}") for each in parts.values() for value in each.kl],
            "seconds": round(time.perf_counter() - start, 2),
        }

    def close(self) -> None:
        """Removes temporary files."""
        self.bench.close()


def path_of(model: str) -> str | Path:
    """Returns the file of a published model, or whatever else names a model."""
    known = published.MODELS.get(model)
    return model if known is None else known.path


def known_languages(model: str, *, most: int, device: str) -> dict[str, float]:
    """Returns the languages that a model knows, the best known first, with the bits that their text costs.

    The declaration is parallel, so the bits of the same sections can be compared between languages and scripts. They
    are given relative to the median of CORE. The languages of an embedded model are those that it was trained on.
    """
    checkpoint = Checkpoint(path_of(model))
    if model.startswith("embedded:"):
        return dict.fromkeys(LANGUAGES[model.partition(":")[2].partition("?")[0]], 1.0)
    cost = section_bits(checkpoint, [language.code for language in udhr_languages()], device=device)
    usual = float(np.median([cost[code] for code in CORE]))
    relative = {code: value / usual for code, value in sorted(cost.items(), key=lambda each: each[1])}
    return dict(list({code: round(r, 4) for code, r in relative.items() if r <= KNOWN}.items())[:most])


def section_bits(checkpoint: Checkpoint, languages: Iterable[str], *, device: str) -> Mapping[str, float]:
    """Returns the bits that a few evaluation sections cost in every language."""
    corpus = udhr(languages)
    text = tokenize_corpus(checkpoint, corpus, request=TextRequest("evaluation", SCREENED_TOKENS, 512))
    nll, _ = document_losses(checkpoint.load(device=resolve_device(device)), text)
    totals = np.bincount(text.language_of, bits(nll), len(text.languages))
    return dict(zip(text.languages, totals.tolist(), strict=True))
