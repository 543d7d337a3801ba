"""One model on the declaration in the languages that it knows: quantized on one text after another, and its KL each."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import published
from bench import Bench, Setting
from fairbits.api.make_plan import plan as make_plan
from fairbits.models.embedded import LANGUAGES
from fairbits.text.corpus import Corpus, TextRequest

ALL_TOKENS = 10**6
"""More calibration tokens than a language of the declaration has: all of its text is used."""


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
        settings = {"bits": self.setting.bits, "group": self.setting.group, "device": self.device}
        settings |= {"tokens": tokens, "seed": facts.get("seed", 0)}
        plan = make_plan(self.bench.checkpoint, policy="gptq", text=corpus, **settings)
        self.bench.corpus = corpus
        scores, run_facts = self.bench.run(plan, name)
        parts = {text: text_scores.documents for text, text_scores in scores.items()}
        results.text = [text for text, documents in parts.items() for _ in documents.lang]
        results.lang = [code for documents in parts.values() for code in documents.lang.tolist()]
        results.document = [number for documents in parts.values() for number in documents.document.tolist()]
        results.tokens = [count for documents in parts.values() for count in documents.tokens.tolist()]
        results.sets[name] = {
            **facts,
            "languages": list(plan.languages),
            "calibration_tokens": sum(run_facts["calibration_tokens"].values()),
            "kl": [float(f"{value:.6g}") for documents in parts.values() for value in documents.kl],
            "seconds": round(time.perf_counter() - start, 2),
        }

    def close(self) -> None:
        """Removes temporary files."""
        self.bench.close()


def path_of(model: str) -> str | Path:
    """Returns the file of a published model, or whatever else names a model."""
    published_model = published.MODELS.get(model)
    return model if published_model is None else published_model.path


def known_languages(model: str) -> dict[str, float]:
    """Returns the languages that an embedded model was trained on."""
    return dict.fromkeys(LANGUAGES[model.partition(":")[2].partition("?")[0]], 1.0)
