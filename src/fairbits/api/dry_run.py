"""`--dry-run`: what a job takes on this machine, after a few seconds in which a little of it is done for real.

A few blocks of the model pass a sample of the text with the code of every stage: forward, observed by an audit, rounded
and calibrated by the plan, and learned for some steps. Time is then in proportion to blocks, positions and steps.
Memory and disk follow from shapes (`memory_needed`). The code of a stage is the only place where its cost is known, so
nothing here has to be corrected when it gets faster.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbits.api.fit import (
    Shortage,
    Workload,
    advice,
    audit_workload,
    evaluate_workload,
    existing_directory,
    free_here,
    overall,
    quantize_workload,
    shortages,
)
from fairbits.api.memory_needed import Held, Stage, TextSize, WorkCounter
from fairbits.core.errors import InputError, is_out_of_memory
from fairbits.core.units import MIB
from fairbits.evaluation.divergence import compare_logits
from fairbits.forward.batches import Batch, batches
from fairbits.forward.body_and_head import Split
from fairbits.forward.collect import measuring_dtype
from fairbits.forward.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.forward.lockstep import RecordedCall, lockstep, positions_at_once
from fairbits.forward.pass_settings import Job
from fairbits.forward.streaming import BlockLoader, NotStreamableError
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.forward.windows import NO_LABEL, Text
from fairbits.models.capacity import Capacity
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import read_bytes
from fairbits.models.io.unpacked import UnpackedCheckpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.evidence import Evidence, How, Mix, Sensitivity
from fairbits.quantization.gptq.block_rounding import RoundedBlock
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.learned.learn_block import BlockDistiller
from fairbits.quantization.plan import Calibration, Plan
from fairbits.quantization.policies import DEFAULT, decide, find_policy
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

SCHEMA = "fairbits.estimate/1"
SECONDS = 0.5
"""How long each kind of work is measured, at least, if there is so much of it."""
OPERATIONS = {False: 4e9, True: 2e13}
"""Operations of a sample in one block, by whether the device is a GPU: a fraction of a second."""
LEAST_POSITIONS, MOST_POSITIONS = 256, 16384
MEASURED_VOCABULARY = 2**15
"""Logits of a position that are measured, at most: more take as much longer."""
CHUNK, WRITTEN = 4 * MIB, 64 * MIB
LEARNED_STEPS = 12
"""Learning steps that are measured; some of them are followed by an evaluation, and the median is not."""
MINIMAX_ROUNDS = 4
"""Rounds of the search for a minimax mix, by default."""
_Calls = list[list[tuple[Batch, RecordedCall, Tensor]]]
"""By block and batch: the batch, how the block was called, and its hidden states."""


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
        """The time of the whole job."""
        return sum(map(self.time, self.stages))

    @property
    def held(self) -> Held:
        """The most that is held at a time."""
        return overall(self.stages)

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        """What does not fit."""
        return shortages(self.stages, self.capacity)

    def parts(self, stage: Stage) -> dict[str, float]:
        """Returns the seconds of every kind of work in a stage."""
        return {kind: amount / self.rates[kind] for kind, amount in stage.work.items() if amount}

    def time(self, stage: Stage) -> float:
        """Returns the seconds of a stage; what it writes is written by other threads at the same time."""
        parts = self.parts(stage)
        return max(parts.pop("written", 0.0), sum(parts.values()))

    def as_data(self) -> dict[str, Any]:
        """Returns the estimate for JSON."""
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
        }


def _bytes(held: Held) -> dict[str, int]:
    names = {"gpu_bytes": held.gpu, "ram_bytes": held.ram, "disk_bytes": held.written, "scratch_bytes": held.scratch}
    return {name: round(amount) for name, amount in names.items()}


def estimate_audit(
    model: Checkpoint,
    *,
    out: str | Path | None,
    device: str,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    request: TextRequest,
) -> ResourceEstimate:
    """Returns what an audit takes."""
    corpus = open_corpus_for(model, text, languages)
    words = tokenize_corpus(model, corpus, request=request, least=1)
    workload = audit_workload(model, partial(_size, words, request, model, corpus), request, device=device)
    return estimate_workload(model, workload, words, device=device, out=out)


def estimate_evaluate(
    reference: Checkpoint,
    *,
    device: str,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    request: TextRequest,
) -> ResourceEstimate:
    """Returns what an evaluation takes; the quantized model has the shape of its reference model."""
    corpus = open_corpus_for(reference, text, languages)
    words = tokenize_corpus(reference, corpus, request=request, least=1)
    workload = evaluate_workload(reference, partial(_size, words, request, reference, corpus), request, device=device)
    return estimate_workload(reference, workload, words, device=device, out=None)


def _size(text: Text, read: TextRequest, model: Checkpoint, corpus: Corpus, request: TextRequest) -> TextSize:
    return TextSize.of(text) if request == read else TextSize.requested(request, model, corpus)


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
    planning = planning_stages(WorkCounter(model, device), plan, requests, words, name="plan of quantize")
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

    def sensitivity(widths: Any, how: How) -> Sensitivity:
        count(how, len(widths))
        damage = np.broadcast_to(4.0 ** -np.array(widths), (len(languages), blocks, len(widths)))
        return Sensitivity(how, languages, tuple(widths), damage)

    def damage(allocations: Any) -> Any:
        count("damage", len(allocations))
        return np.ones((len(allocations), len(languages)))

    def minimax() -> Mix:
        count("minimax")
        return Mix(dict.fromkeys(languages, 1 / len(languages)), (), ())

    evidence = Evidence(
        checkpoint, languages, kappa=kappa, sensitivity=sensitivity, damage=damage, minimax=minimax, device=device
    )
    calibration = None if corpus is None else Calibration.of(corpus, request)
    return decide(policy, evidence, calibration=calibration, **options), requests


def planning_stages(
    counter: WorkCounter, plan: Plan, requests: Mapping[str, int], text: Text | None, *, name: str
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
    checkpoint: Checkpoint, workload: Workload[Any], text: Text | None, *, device: str, out: str | Path | None
) -> ResourceEstimate:
    """Returns what a job takes, after a few seconds of measurement on a sample of `text`; nothing is left in `out`."""
    capacity, stages = free_here(device, out), workload.stages()
    missing = shortages(stages, capacity)
    what_to_do = advice(missing[0], workload, capacity) if missing else None
    clock, rates = _Clock(WorkCounter(checkpoint, device), text, existing_directory(out)), dict[str, float]()
    for stage in stages:
        for kind in (kind for kind, amount in stage.work.items() if amount):
            if kind not in rates:
                rates |= clock.measure(kind, stage)
    return ResourceEstimate(checkpoint.target, device, stages, rates, capacity, what_to_do)


@dataclass(frozen=True, eq=False)
class _Clock:
    """Measures how much of each kind of work is done in a second, on a sample of the text."""

    counter: WorkCounter
    text: Text | None
    out: Path

    def measure(self, kind: str, stage: Stage) -> dict[str, float]:
        """Returns the rate of a kind of work in a stage, and of all that is measured along with it."""
        if stage.plan is not None and kind.endswith(f" {stage.plan.policy}"):
            return self._rounding(stage.plan, stage.text)
        measures: dict[str, Callable[[], float]] = {
            "forward": partial(self._passing, observe=False),
            "observed": partial(self._passing, observe=True),
            "gradients": self._gradients,
            "compared": self._compared,
            "loaded": self._loaded,
            "hashed": self._hashed,
            "written": self._written,
            "seconds": lambda: 1.0,
        }
        return {kind: measures[kind]()}

    def _passing(self, *, observe: bool) -> float:
        """Returns the positions that pass the measured block in a second, forward or as an audit observes it."""
        try:
            return self._walk(observe=observe)
        except (InputError, NotStreamableError, RuntimeError) as problem:
            if is_out_of_memory(problem):
                raise
        # a class that cannot walk in blocks: by the operations of its matrix products; an audit has four times as many,
        # as it computes every block again, its gradients, and the shift of its outputs by the errors of its weights
        x = torch.randn(1024, 1024, device=self.counter.device)
        rate = self._repeat(2 * 1024**3, lambda: x @ x)
        return rate / self.counter.model.measured.operations / (4 if observe else 1)

    def _walk(self, *, observe: bool) -> float:
        """Returns the same from a walk of the sample through some blocks, as an evaluation or an audit walks."""
        checkpoint, device, model = self._plain, self.counter.device, self.counter.model
        dtype, text = measuring_dtype(checkpoint, device) if observe else torch.float32, self._sample()
        loader, count = BlockLoader(checkpoint, device, dtype=dtype), len(model.blocks)
        sample = [replace(batch.on(device), main=batch.main.on(device)) for batch in self._batches(text, dtype)]
        loader.model.load_outside(torch.unique(torch.cat([batch.ids for batch in sample])).cpu(), {})
        calls: _Calls = []
        spent = 0.0
        with lockstep(loader.model.model, [block.module for block in loader.blocks], sample) as walk:
            for index in loader.loaded(range(count)):
                calls.append([(each.batch, each.recorded(loader.model.model), each.states) for each in walk.paused()])
                begin = self._now()
                walk.advance(lambda _batch: None)
                spent += self._now() - begin if index or count == 1 else 0.0
                if spent > (SECONDS / 4 if observe else SECONDS):
                    break
        if observe:
            spent += self._observe(loader, calls, text, dtype)
        done = model.blocks[min(1, count - 1) : len(calls)]
        passed = TextSize.of(text).positions * sum(block.operations for block in done)
        return passed / model.measured.operations / spent

    def _observe(self, loader: BlockLoader, calls: _Calls, text: Text, dtype: torch.dtype) -> float:
        """Returns the seconds in which an audit observes blocks that were called so, without the first of several."""
        how: dict[str, Any] = {"dtype": dtype, "device": self.counter.device, "seed": 0, "progress": None}
        settings = Job(self._plain, text, schemes=(Scheme(),), second_moments=False, **how)
        recorder, spent = settings.recorder(loader.model.model), 0.0
        for index in loader.loaded(range(len(calls))):
            begin = self._now()
            with recorder.attached(index):
                for batch, call, states in calls[index]:
                    recorder.start(batch)
                    x = states.detach().requires_grad_()
                    with torch.enable_grad():
                        output = call.output(x)
                    torch.autograd.grad(output, x, torch.ones_like(output))
                    recorder.finish()
            spent += self._now() - begin if index or len(loader.blocks) == 1 else 0.0
        return spent

    def _rounding(self, plan: Plan, text: Text | None) -> dict[str, float]:
        """Returns the rates of blocks that a plan rounds, of positions that calibrate it, and of learning steps."""
        if text is None:
            return {f"rounded {plan.policy}": 1 / self._round_block(plan, None)}
        few, many = self._sample(0.25, text), self._sample(1.0, text)
        sizes = [TextSize.of(some).positions for some in (few, many)]
        short, long = self._round_block(plan, few), self._round_block(plan, many)
        per_position = max(long - short, 1e-9) / max(sizes[1] - sizes[0], 1)
        measured = {
            f"rounded {plan.policy}": 1 / max(short - per_position * sizes[0], 1e-9),
            f"calibrated {plan.policy}": 1 / per_position,
        }
        if plan.learning is not None:
            measured[f"learned {plan.policy}"] = 1 / self._learning_step(plan, many)
        return measured

    def _round_block(self, plan: Plan, text: Text | None) -> float:
        """Returns the seconds of the measured block, by the mean over several blocks if they are fast."""
        model, spent, rounded = self.counter.model, 0.0, 0.0
        how: dict[str, Any] = {"text": text, "device": self.counter.device, "finished": _outside, "on_device": True}
        walk: Any = round_model(self._plain, replace(plan, learning=None), **how)
        begin = self._now()
        for block in walk:
            now = self._now()
            if block.index or len(model.blocks) == 1 or now - begin > 5 * SECONDS:
                spent += now - begin
                rounded += model.blocks[block.index or 0].rounded / model.measured.rounded
            begin = now
            if spent > SECONDS:
                break
        walk.close()
        return spent / rounded

    def _learning_step(self, plan: Plan, text: Text) -> float:
        """Returns the seconds of a learning step of the measured block, by the median over steps."""
        assert plan.learning is not None
        learning = replace(plan.learning, block_steps=LEARNED_STEPS, model_steps=0)
        ones = {i: torch.ones(self.counter.model.hidden_size) for i in range(len(self.counter.model.blocks))}
        held_out, languages = frozenset({text.windows[-1].document}), torch.from_numpy(text.language_of)
        refine = BlockDistiller(learning, text.languages, languages, held_out, lambda: ones, 0)
        ticks: list[float] = []
        how: dict[str, Any] = {"text": text, "device": self.counter.device, "finished": _outside, "on_device": True}
        walk: Any = round_model(self._plain, plan, refine=refine, progress=lambda *_: ticks.append(self._now()), **how)
        next(walk)
        walk.close()
        return float(np.median(np.diff(ticks)[-LEARNED_STEPS:]))

    # logits

    def _gradients(self) -> float:
        """Returns the positions whose Fisher gradient is computed in a second."""
        head, share = self._head()
        (batch, *_) = self._batches(self._sample(), torch.float32)
        labels = torch.where(batch.labels == NO_LABEL, NO_LABEL, batch.labels % head.out_features)
        batch, states = replace(batch, labels=labels), torch.randn(*labels.shape, head.in_features)
        split, scores = Split(lambda _: states, head, True), LossSums(int(batch.document.max()) + 1)
        once = partial(fisher_gradient, states.to(self.counter.device), batch, split, scores=scores, draws=SignDraws(0))
        return share * self._repeat(int((labels != NO_LABEL).sum()), once)

    @torch.no_grad()
    def _compared(self) -> float:
        """Returns the positions in a second at which the logits of two models are computed and compared."""
        head, share = self._head()
        count = 64 if not self.counter.gpu else 1024
        x = torch.randn(count, head.in_features, device=self.counter.device)
        labels = torch.zeros(count, dtype=torch.long, device=self.counter.device)
        return share * self._repeat(count, lambda: compare_logits(head(x), head(x), labels))

    def _head(self) -> tuple[torch.nn.Linear, float]:
        """Returns a head of at most MEASURED_VOCABULARY tokens, and their share of the vocabulary."""
        model = self.counter.model
        size = min(model.vocabulary, MEASURED_VOCABULARY)
        head = torch.nn.Linear(model.hidden_size, size, bias=False, device=self.counter.device)
        return head.requires_grad_(False), size / model.vocabulary

    # files

    def _loaded(self) -> float:
        """Returns the weights that are read, widened and moved in a second."""
        done, begin = 0, self._now()
        for block in self.counter.checkpoint.architecture.blocks:
            for name in block.weights:
                done += self._plain.read(name).to(self.counter.device, torch.float32).numel()
            if self._now() - begin > SECONDS:
                break
        return done / (self._now() - begin)

    def _hashed(self) -> float:
        """Returns the bytes of the model that are read and hashed in a second."""
        done, digest, begin = 0, hashlib.sha256(), self._now()
        for _, _, part in read_bytes(self.counter.checkpoint.files.values()):
            digest.update(part)
            done += len(part)
            if self._now() - begin > SECONDS:
                break
        return done / (self._now() - begin)

    def _written(self) -> float:
        """Returns the bytes that reach the disk in a second; the file has no name, and is gone afterwards."""
        content, done, begin = os.urandom(CHUNK), 0, self._now()
        try:
            with tempfile.TemporaryFile(dir=self.out, buffering=0) as file:
                while not done or (self._now() - begin < SECONDS and done < WRITTEN):
                    done += file.write(content)
                os.fsync(file.fileno())
                return done / (self._now() - begin)
        except OSError as problem:
            reason = problem.strerror or problem
            raise InputError(f"{self.out} cannot be written ({reason}); give another directory with --out") from None

    # parts of measurements

    @cached_property
    def _plain(self) -> Checkpoint:
        checkpoint = self.counter.checkpoint.without_fingerprint()
        packed = getattr(checkpoint.config, "quantization_config", None) is not None
        return UnpackedCheckpoint(checkpoint) if packed else checkpoint

    def _sample(self, share: float = 1.0, text: Text | None = None) -> Text:
        """Returns windows of all lengths, evenly chosen, with about so many positions as a block passes quickly."""
        text = self.text if text is None else text
        assert text is not None
        wanted = OPERATIONS[self.counter.gpu] / self.counter.model.measured.operations
        wanted = share * min(max(wanted, LEAST_POSITIONS), MOST_POSITIONS)
        windows = sorted(text.windows, key=lambda window: window.length)
        count = min(max(round(len(windows) * wanted / TextSize.of(text).positions), 1), len(windows))
        return replace(text, windows=tuple(windows[int((i + 0.5) * len(windows) / count)] for i in range(count)))

    def _batches(self, text: Text, dtype: torch.dtype) -> list[Batch]:
        positions = positions_at_once(self._plain, text, device=self.counter.device, dtype=dtype)
        return list(batches(text, positions=positions))

    def _repeat(self, amount: float, once: Callable[[], object]) -> float:
        """Returns how much of `amount` is done in a second; the first call, which may compile, does not count."""
        once()
        count, spent, begin = 0, 0.0, self._now()
        while spent < SECONDS / 4:
            once()
            count, spent = count + 1, self._now() - begin
        return amount * count / spent

    def _now(self) -> float:
        if self.counter.gpu:
            torch.cuda.synchronize(self.counter.device)
        return time.perf_counter()


def _outside(index: int | None) -> RoundedBlock | None:
    """Says that what lies outside the blocks is finished: it is rounded first, and may be larger than a block."""
    return RoundedBlock(None, {}, ()) if index is None else None
