"""Policies on one model and several texts: the bench that runs them, and the directory that keeps their scores."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairbits import Checkpoint
from fairbits.api.quantize import calibration_text
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import Identity
from fairbits.forward.tokenize import count_tokens
from fairbits.models.scales.groups import Codes
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.plan import Plan
from fairbits.text.corpus import Corpus, TextRequest

FACTS = "facts.json"


@dataclass(frozen=True)
class Setting:
    """Bits and group, as in 3:64 or 4:channel."""

    bits: int
    group: int | str

    @classmethod
    def of(cls, text: str) -> "Setting":
        """Returns the setting that a word stands for."""
        bits, group = text.split(":")
        return cls(int(bits), int(group) if group.isdecimal() else group)

    def __str__(self) -> str:
        return f"W{self.bits}, " + (f"groups of {self.group}" if isinstance(self.group, int) else f"per {self.group}")


class Store:
    """Scores in a directory: MODEL/SETTING/POLICY/SEED/TEXT.json, and facts on how they were made next to them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, model: str, setting: str, policy: str, seed: int) -> Path:
        """Returns the directory of a policy and seed."""
        named = re.sub(r"[^\w.-]+", "_", model).strip("_")
        return self.root / named / setting.replace(":", "_") / policy.replace(":", ",") / str(seed)

    def save(self, place: Path, scores: Mapping[str, Scores], facts: Mapping[str, Any]) -> None:
        """Writes the scores of all texts; the facts come last and mark them as complete."""
        place.mkdir(parents=True, exist_ok=True)
        (place / FACTS).unlink(missing_ok=True)
        for text, text_scores in scores.items():
            text_scores.save(place / f"{text}.json")
        (place / FACTS).write_text(json.dumps(facts, ensure_ascii=False))

    def facts(self, place: Path) -> dict[str, Any] | None:
        """Returns the facts on complete scores; None if they are missing or incomplete."""
        file = place / FACTS
        return json.loads(file.read_text()) if file.is_file() else None


class Bench:
    """A model, its answers on several texts before quantization, and policies that are tried on it."""

    def __init__(
        self, target: str | Path, corpus: Corpus, texts: Mapping[str, Corpus], *, request: TextRequest, device: str
    ) -> None:
        """Evaluates the reference model on the requested part of every text; `corpus` is for calibration."""
        self.checkpoint, self.corpus, self.device = Checkpoint(target), corpus, device
        self.swapped = SwappedModel.load(self.checkpoint)
        self.answers = {
            name: ReferenceModel.on_corpus(self.checkpoint, text, request=request, device=device)
            for name, text in texts.items()
        }

    def close(self) -> None:
        """Removes temporary files."""
        for reference in self.answers.values():
            reference.close()

    def run(self, plan: Plan, name: str, *, saved: Path | None = None) -> tuple[dict[str, Scores], dict[str, Any]]:
        """Returns the scores of a plan on every text, and facts about it; afterwards the model is as before.

        `saved` is where learning finds and leaves the codes that it starts with.
        """
        checkpoint, device = self.checkpoint, self.device
        start = time.perf_counter()
        text = calibration_text(checkpoint, plan, self.corpus)
        blocks = list(execute_plan(checkpoint, plan, text=text, device=device, saved=saved))
        rounded = time.perf_counter()
        layers = {name: codes for block in blocks for name, codes in block.layers.items()}
        identity = Identity(f"{checkpoint.target}, {name}", plan.digest, plan.size_bytes)
        scores, seconds = self.evaluate(layers, identity)
        facts = {
            "seconds": rounded - start,
            "evaluation_seconds": seconds,
            "device": device,
            "threads": torch.get_num_threads(),
            "learned": None if blocks[-1].learned is None else blocks[-1].learned.history,
            "calibration_tokens": {} if text is None else count_tokens(text),
            "notes": list(plan.notes),
        }
        return scores, facts

    def evaluate(
        self, layers: Mapping[str, Codes | torch.Tensor], identity: Identity
    ) -> tuple[dict[str, Scores], float]:
        """Returns the scores of quantized layers on every text, and the seconds; afterwards the model is as before."""
        start = time.perf_counter()
        with self.swapped as swapped:
            swapped.replace(layers)
            scores = {
                name: reference.scores(swapped.model, identity, notes=self.checkpoint.notes, device=self.device)
                for name, reference in self.answers.items()
            }
        return scores, time.perf_counter() - start
