"""Plans without their cost: the policy decides on stand-in evidence, and the evidence that it requests is recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairbits.api.dry_run.counts import Counter
from fairbits.api.dry_run.sizes import TextSize
from fairbits.api.dry_run.work import Stage, Work
from fairbits.core.array_checks import Floats
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.evidence import Evidence, How, LanguageWeights, Sensitivity
from fairbits.quantization.plan import Calibration, Plan
from fairbits.quantization.policies import decide
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

ROUNDS = 4
"""Rounds of the search for a minimax mix, by default."""


@dataclass(frozen=True, eq=False)
class Requests:
    """The evidence that a policy requests: each entry is a kind with how often, or for how many schemes."""

    checkpoint: Checkpoint
    languages: tuple[str, ...]
    found: dict[str, int] = field(default_factory=dict)

    def evidence(self, device: str) -> Evidence:
        """Returns evidence that costs nothing: all blocks are alike, and each bit less doubles the error."""
        return Evidence(
            self.checkpoint,
            self.languages,
            kappa=self._kappa,
            sensitivity=self._sensitivity,
            damage=self._damage,
            minimax=self._minimax,
            device=device,
        )

    def _count(self, kind: str, times: int = 1) -> None:
        self.found[kind] = self.found.get(kind, 0) + times

    def _kappa(self) -> Floats:
        self._count("kappa")
        return np.zeros(self.checkpoint.architecture.n_blocks)

    def _sensitivity(self, widths: Sequence[int], how: How) -> Sensitivity:
        self._count(how, len(widths))
        shape = len(self.languages), self.checkpoint.architecture.n_blocks, len(widths)
        damage = np.broadcast_to(4.0 ** -np.array(widths), shape)
        return Sensitivity(how, self.languages, tuple(widths), damage)

    def _damage(self, allocations: Sequence[Sequence[int]]) -> Floats:
        self._count("damage", len(allocations))
        return np.ones((len(allocations), len(self.languages)))

    def _minimax(self) -> LanguageWeights:
        self._count("minimax")
        return LanguageWeights(dict.fromkeys(self.languages, 1 / len(self.languages)), (), ())


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan of the right sizes, though not with the widths or weights that the evidence would give; see `requests`."""

    plan: Plan
    requests: Mapping[str, int]


def stand_in_plan(
    checkpoint: Checkpoint,
    corpus: Corpus | None,
    *,
    policy: str,
    options: Mapping[str, Any],
    request: TextRequest,
    device: str,
) -> Planned:
    """Returns what a policy would decide if all blocks were alike; without a corpus it reads no text."""
    requests = Requests(checkpoint, () if corpus is None else tuple(corpus.calibration))
    calibration = None if corpus is None else Calibration.of(corpus, request)
    found = decide(policy, requests.evidence(device), calibration=calibration, **options)
    return Planned(found, requests.found)


def planning_stage(counter: Counter, planned: Planned, text: TextSize | None, *, name: str) -> Stage | None:
    """Returns the work of the evidence that a policy requests; None if it requests none."""
    asked, model = planned.requests, counter.model
    if not asked:
        return None
    audit, held, work = None, None, Work()
    if "kappa" in asked:
        work += Work(read=model.stored, host=2 * model.stored)
    if text is not None and asked.keys() - {"kappa"}:
        audit = counter.audit(text)
        one = counter.evaluate_quantized(text, name=name, stored=None)
        passes = asked.get("measured", 0) * len(model.blocks) + asked.get("damage", 0)
        work += audit.work * asked.get("predicted", 0) + one.work * passes
        if "minimax" in asked:
            work += (counter.round(planned.plan, text, name=name, written=False).work + one.work) * (0.5 * (ROUNDS + 1))
        held = audit.held if "predicted" in asked else one.held
    return Stage(name, work, counter.on(0.0) if held is None else held)
