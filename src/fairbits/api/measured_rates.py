"""How much of the work of a job this machine does in a second: a little of it is done for real.

A few blocks of the model pass a sample of the text with the code of each stage: forward, observed by an audit, rounded
and calibrated by the plan, and learned for some steps.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbits.api.memory_needed import Stage, TextSize, WorkCounter
from fairbits.core.errors import InputError, is_out_of_memory
from fairbits.core.units import MIB
from fairbits.evaluation.divergence import compare_logits
from fairbits.forward.batches import Batch, batches
from fairbits.forward.body_and_head import Split
from fairbits.forward.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.forward.lockstep import RecordedCall, lockstep, positions_at_once
from fairbits.forward.recorder import PassSettings
from fairbits.forward.statistics import measuring_dtype
from fairbits.forward.streaming import BlockLoader, NotStreamableError
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import read_bytes
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.block_rounding import RoundedBlock
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.learned.learn_block import BlockDistiller
from fairbits.quantization.plan import Plan

SECONDS = 0.5  # for which each kind of work is measured, at least, if there is so much of it
OPERATIONS = {False: 4e9, True: 2e13}  # of a sample in one block, on a CPU and on a GPU: a fraction of a second
LEAST_POSITIONS, MOST_POSITIONS = 256, 16384
PATIENCE = 60.0  # seconds after which one block is enough: what is slow at the start then counts little
MEASURED_VOCABULARY = 2**15  # logits of a position that are measured, at most: more take as much longer
CHUNK, WRITTEN = 4 * MIB, 64 * MIB
LEARNED_STEPS = 12  # some of them are followed by an evaluation, but the median is not
Calls = list[list[tuple[Batch, RecordedCall, Tensor]]]  # by block and batch: how it was called, and its hidden states


@dataclass(frozen=True, eq=False)
class Clock:
    """Measures how much of each kind of work is done in a second, on a sample of the text."""

    counter: WorkCounter
    text: TokenizedText | None
    out: Path

    def measure(self, kind: str, stage: Stage) -> dict[str, float]:
        """Returns the rate of a kind of work in a stage, and of all that is measured along with it."""
        if stage.plan is not None and kind.endswith(f" {stage.plan.policy}"):
            return self._rounding(stage.plan, stage.text)
        if kind in ("forward", "observed"):
            return {kind: self._passing(observe=kind == "observed")}
        return {kind: 1.0 if kind == "seconds" else getattr(self, f"_{kind}")()}

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
        calls, spent = Calls(), 0.0
        with lockstep(loader.model.model, [block.module for block in loader.blocks], sample) as walk:
            for index in loader.loaded(range(count)):
                calls.append(
                    [(paused.batch, paused.recorded(loader.model.model), paused.states) for paused in walk.paused()]
                )
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

    def _observe(self, loader: BlockLoader, calls: Calls, text: TokenizedText, dtype: torch.dtype) -> float:
        """Returns the seconds in which an audit observes blocks that were called so, without the first of several."""
        how: dict[str, Any] = {"dtype": dtype, "device": self.counter.device, "seed": 0, "progress": None}
        settings = PassSettings(self._plain, text, schemes=(Scheme(),), second_moments=False, **how)
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

    def _rounding(self, plan: Plan, text: TokenizedText | None) -> dict[str, float]:
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

    def _round_block(self, plan: Plan, text: TokenizedText | None) -> float:
        model, spent, rounded = self.counter.model, 0.0, 0.0
        walk = self._round_model(replace(plan, learning=None), text)
        begin = self._now()
        for block in walk:
            now = self._now()
            if block.index or len(model.blocks) == 1 or now - begin > PATIENCE:
                spent += now - begin
                rounded += model.blocks[block.index or 0].rounded / model.measured.rounded
            begin = now
            if spent > SECONDS:
                break
        walk.close()
        return spent / rounded

    def _learning_step(self, plan: Plan, text: TokenizedText) -> float:
        """Returns the seconds of a learning step of the measured block, by the median over steps."""
        assert plan.learning is not None
        learning = replace(plan.learning, block_steps=LEARNED_STEPS, model_steps=0)
        ones = {i: torch.ones(self.counter.model.hidden_size) for i in range(len(self.counter.model.blocks))}
        held_out, languages = frozenset({text.windows[-1].document}), torch.from_numpy(text.language_of)
        refine = BlockDistiller(learning, text.languages, languages, held_out, lambda: ones, 0)
        ticks: list[float] = []
        walk = self._round_model(plan, text, refine=refine, progress=lambda *_: ticks.append(self._now()))
        next(walk)
        walk.close()
        return float(np.median(np.diff(ticks)[-LEARNED_STEPS:]))

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

    def _loaded(self) -> float:
        moved = (
            (info, tensor.to(self.counter.device, torch.float32)) for info, tensor in self.counter.checkpoint.stream()
        )
        return self._rate(info.numel for info, _ in moved)

    def _hashed(self) -> float:
        digest, files = hashlib.sha256(), self.counter.checkpoint.files.values()
        zeros = iter(lambda: bytes(CHUNK), b"")  # instead of weights that are not in files

        def hashed() -> Iterator[int]:
            for part in (part for _, _, part in read_bytes(files)) if files else zeros:
                digest.update(part)
                yield len(part)

        return self._rate(hashed())

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

    def _round_model(self, plan: Plan, text: TokenizedText | None, **more: Any) -> Any:
        def finished(index: int | None) -> RoundedBlock | None:  # all outside the blocks, which may be larger than one
            return RoundedBlock(None, {}, ()) if index is None else None

        device = self.counter.device
        return round_model(self._plain, plan, text=text, device=device, finished=finished, on_device=True, **more)

    @cached_property
    def _plain(self) -> Checkpoint:
        checkpoint = self.counter.checkpoint.without_fingerprint()
        return checkpoint.plain or checkpoint

    def _sample(self, share: float = 1.0, text: TokenizedText | None = None) -> TokenizedText:
        """Returns windows of all lengths, evenly chosen, with about so many positions as a block passes quickly."""
        text = self.text if text is None else text
        assert text is not None
        wanted = OPERATIONS[self.counter.gpu] / self.counter.model.measured.operations
        wanted = share * min(max(wanted, LEAST_POSITIONS), MOST_POSITIONS)
        windows = sorted(text.windows, key=lambda window: window.length)
        count = min(max(round(len(windows) * wanted / TextSize.of(text).positions), 1), len(windows))
        return replace(text, windows=tuple(windows[int((i + 0.5) * len(windows) / count)] for i in range(count)))

    def _batches(self, text: TokenizedText, dtype: torch.dtype) -> list[Batch]:
        positions = positions_at_once(self.counter.model.hidden_size, text, device=self.counter.device, dtype=dtype)
        return list(batches(text, positions=positions))

    def _repeat(self, amount: float, once: Callable[[], object]) -> float:
        """Returns how much of `amount` is done in a second; the first call, which may compile, does not count."""
        once()
        count, spent, begin = 0, 0.0, self._now()
        while spent < SECONDS / 4:
            once()
            count, spent = count + 1, self._now() - begin
        return amount * count / spent

    def _rate(self, amounts: Iterable[int]) -> float:
        done, begin = 0, self._now()
        for amount in amounts:
            done += amount
            if self._now() - begin > SECONDS:
                break
        return done / (self._now() - begin)

    def _now(self) -> float:
        if self.counter.gpu:
            torch.cuda.synchronize(self.counter.device)
        return time.perf_counter()
