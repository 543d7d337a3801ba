"""`--dry-run`: what a job takes on this machine, after a few seconds in which a little of it is done for real.

Time is in proportion to blocks, positions and steps (`measured_rates`). Memory and disk follow from shapes
(`memory_needed`). The code of a stage is the only place where its cost is known, so nothing here has to be corrected
when it gets faster.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairbits.api.fit import (
    ResourceShortage,
    Workload,
    advice,
    existing_directory,
    free_here,
    overall,
    quantize_workload,
    shortages,
    text_workload,
)
from fairbits.api.measured_rates import Clock
from fairbits.api.memory_needed import Held, Stage, TextSize, WorkCounter
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import Capacity
from fairbits.models.sketched_checkpoint import SketchedCheckpoint
from fairbits.quantization.evidence import Evidence, Form, How, LanguageWeights, Sensitivity, Thresholds
from fairbits.quantization.plan import Calibration, Plan
from fairbits.quantization.policies import DEFAULT, decide, find_policy
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import Corpus, TextRequest

SCHEMA = "fairbits.estimate/1"
MINIMAX_ROUNDS = 4  # rounds of the search for a minimax mix, by default


@dataclass(frozen=True)
class ResourceEstimate:
    """What a job takes; `rates` say how much of each kind of work is done in a second, and `advice` what to lower."""

    model: str
    device: str
    stages: tuple[Stage, ...]
    rates: Mapping[str, float]
    capacity: Capacity
    advice: str | None = None

    @property
    def seconds(self) -> float:
        return sum(map(self.time, self.stages))

    @property
    def held(self) -> Held:
        return overall(self.stages)

    @property
    def shortages(self) -> tuple[ResourceShortage, ...]:
        return shortages(self.stages, self.capacity)

    def parts(self, stage: Stage) -> dict[str, float]:
        return {kind: amount / self.rates[kind] for kind, amount in stage.work.items() if amount}

    def time(self, stage: Stage) -> float:
        """Returns the seconds of a stage; what it writes is written by other threads at the same time."""
        parts = self.parts(stage)
        return max(parts.pop("written", 0.0), sum(parts.values()))

    @property
    def dropped(self) -> dict[str, float]:
        """The seconds of what is not needed, by the option that drops it."""
        seconds: dict[str, float] = {}
        for stage in self.stages:
            if stage.dropped:
                seconds[stage.dropped] = seconds.get(stage.dropped, 0.0) + self.time(stage)
        return seconds

    def as_data(self) -> dict[str, Any]:
        stages = [
            {
                "stage": stage.name,
                "seconds": round(self.time(stage), 2),
                "parts": {kind: round(seconds, 2) for kind, seconds in self.parts(stage).items()},
                **_bytes(stage.held),
            }
            for stage in self.stages
        ]
        return {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device,
            "seconds": round(self.seconds, 2),
            **_bytes(self.held),
            "stages": stages,
            "free": asdict(self.capacity),
            "rates": dict(self.rates),
            "problems": list(map(str, self.shortages)),
            "advice": self.advice,
            "dropped": {option: round(seconds, 2) for option, seconds in self.dropped.items()},
        }


def _bytes(held: Held) -> dict[str, int]:
    names = {"gpu_bytes": held.gpu, "ram_bytes": held.ram, "disk_bytes": held.written, "scratch_bytes": held.scratch}
    return {name: round(amount) for name, amount in names.items()}


def estimate_audit(model: Checkpoint, *, out: str | Path | None, **text: Any) -> ResourceEstimate:
    """Returns what an audit takes."""
    return _estimate("audit", model, out=out, **text)


def estimate_evaluate(reference: Checkpoint, **text: Any) -> ResourceEstimate:
    """Returns what an evaluation takes; the quantized model has the shape of its reference model."""
    return _estimate("evaluate", reference.plain or reference, out=None, **text)


def _estimate(
    job: Literal["audit", "evaluate"],
    model: Checkpoint,
    *,
    out: str | Path | None,
    device: str,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    request: TextRequest,
) -> ResourceEstimate:
    corpus = open_corpus_for(model, text, languages)
    words = tokenize_corpus(model, corpus, request=request, least=1)
    workload = text_workload(job, model, corpus, request, device=device, text=words)
    return estimate_workload(model, workload, words, device=device, out=out)


def estimate_quantize(
    model: Checkpoint,
    *,
    out: str | Path | None,
    device: str,
    plan: Plan | None = None,
    text: str | Path | Corpus | None = None,
    policy: str = DEFAULT,
    languages: Iterable[str] | None = None,
    tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    audit: object = None,
    **options: Any,
) -> ResourceEstimate:
    """Returns what a quantization takes: of a plan, or of a policy whose plan is still to be made.

    Bits that a policy would find are not searched for: all blocks count as alike.
    """
    requests: dict[str, int] = {}
    corpus: Corpus | None = None
    if plan is not None:
        if plan.calibration is not None:
            corpus = open_corpus_for(model, text, plan.calibration.hashes)
    else:
        chosen = find_policy(policy)
        if chosen.reads_text or languages is not None or text is not None:
            corpus = open_corpus_for(model, text, languages)
        request = TextRequest("calibration", chosen.tokens if tokens is None else tokens, sequence, seed)
        unread = model.without_fingerprint()
        plan, requests = stand_in_plan(unread, corpus, policy, options, request=request, device=device)
        if audit is not None:  # κ is taken from it
            requests.pop("kappa", None)
    words = None
    if corpus is not None and plan.calibration is not None:
        corpus = corpus.restrict(plan.languages)
        words = tokenize_corpus(model, corpus, request=plan.calibration.request, least=1)
    workload = quantize_workload(model, plan, words, device=device)
    planning = tuple(planning_stages(WorkCounter(model, device), plan, requests, words, name="plan of quantize"))
    stages_for = workload.stages_for
    workload = replace(workload, stages_for=lambda some: (*planning, *stages_for(some)))
    return estimate_workload(model, workload, words, device=device, out=out)


def stand_in_plan(
    checkpoint: Checkpoint,
    corpus: Corpus | None,
    policy: str,
    options: Mapping[str, Any],
    *,
    request: TextRequest,
    device: str,
) -> tuple[Plan, dict[str, int]]:
    """Returns what a policy would decide if all blocks were alike, and how often it requests each kind of evidence.

    The evidence costs nothing: κ is 0, and each bit less doubles the error. Without a corpus the plan reads no text.
    """
    requests: dict[str, int] = {}
    languages, blocks = () if corpus is None else tuple(corpus.calibration), checkpoint.architecture.n_blocks

    def count(kind: str, times: int = 1) -> None:
        requests[kind] = requests.get(kind, 0) + times

    def kappa() -> Any:
        count("kappa")
        return np.zeros(blocks)

    def kappa_eff() -> dict[str, Estimate]:
        count("predicted")
        return dict.fromkeys(languages, Estimate.without_interval(0.0, 1))

    def sensitivity(widths: Any, how: How) -> Sensitivity:
        count(how, len(widths))
        damage = np.broadcast_to(4.0 ** -np.array(widths), (len(languages), blocks, len(widths)))
        return Sensitivity(how, languages, tuple(widths), damage)

    def damage(allocations: Any) -> Any:
        count("damage", len(allocations))
        return np.ones((len(allocations), len(languages)))

    def minimax() -> LanguageWeights:
        count("minimax")
        return LanguageWeights(dict.fromkeys(languages, 1 / len(languages)), (), ())

    def alphas(_form: Form, _bits: int) -> Thresholds:
        count("kappa")
        count("predicted")
        return dict.fromkeys(checkpoint.architecture.linears, dict.fromkeys(languages, 1.0))

    evidence = Evidence(
        checkpoint,
        languages,
        kappa=kappa,
        kappa_eff=kappa_eff,
        sensitivity=sensitivity,
        damage=damage,
        minimax=minimax,
        alphas=alphas,
        device=device,
    )
    calibration = None if corpus is None else Calibration.of(corpus, request)
    return decide(policy, evidence, calibration=calibration, **options), requests


def planning_stages(
    counter: WorkCounter, plan: Plan, requests: Mapping[str, int], text: TokenizedText | None, *, name: str
) -> Iterator[Stage]:
    """Yields the stage of the evidence that a policy requests, if it requests any."""
    work, held = {"loaded": counter.model.weights if "kappa" in requests else 0.0}, Held()
    if text is not None and requests.keys() - {"kappa"}:
        audit, once = counter.audit(TextSize.of(text)), counter.evaluation(TextSize.of(text), name=name, loaded=True)
        mixes = 0.5 * (MINIMAX_ROUNDS + 1) * requests.get("minimax", 0)  # half of the text is for the search
        passes = requests.get("measured", 0) * len(counter.model.blocks) + requests.get("damage", 0) + mixes
        rounding = counter.rounding(plan, text, name=name, written=False)
        for part, times in ((audit, requests.get("predicted", 0)), (once, passes), (rounding, mixes)):
            work = {kind: work.get(kind, 0) + times * part.work.get(kind, 0) for kind in {*work, *part.work}}
        held = audit.held if "predicted" in requests else once.held
    if requests:
        yield Stage(name, work, held, plan, text)


def estimate_workload(
    checkpoint: Checkpoint, workload: Workload[Any], text: TokenizedText | None, *, device: str, out: str | Path | None
) -> ResourceEstimate:
    """Returns what a job takes, after a few seconds of measurement on a sample of `text`; nothing is left in `out`."""
    counter, capacity, stages = WorkCounter(checkpoint, device), free_here(device, out), workload.stages()
    if isinstance(checkpoint, SketchedCheckpoint):
        stages = (counter.dequantization(), *stages)
    missing = shortages(stages, capacity)
    what_to_do = advice(missing[0], workload, capacity) if missing else None
    clock, rates = Clock(counter, text, existing_directory(out)), dict[str, float]()
    for stage in stages:
        for kind in (kind for kind, amount in stage.work.items() if amount):
            if kind not in rates:
                rates |= clock.measure(kind, stage)
    return ResourceEstimate(checkpoint.target, device, stages, rates, capacity, what_to_do)
