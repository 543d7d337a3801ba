"""Counts: the work of each stage and what it holds, from the sizes of model and text. One small function per stage.

To correct an estimate, correct its function here: rates are measured, counts are derived. Factors such as
FORWARD_PASSES say how often a number passes through memory; they were fitted to runs of the embedded model and of
random Llamas, which `benchmarks/estimate.py` repeats.
"""

from dataclasses import dataclass
from functools import cached_property

from fairbits.measure.passes.job import SAVED_PER_BLOCK
from fairbits.measure.passes.run import LOGITS_KEPT
from fairbits.memory import (
    BLOCK_ACTIVATIONS_BYTES,
    BLOCK_POSITIONS,
    EVALUATION_POSITIONS,
    GPU_BLOCK_ACTIVATIONS_BYTES,
    GPU_BLOCK_POSITIONS,
    GPU_LOGITS_FACTOR,
    LOGIT_POSITIONS,
    LOGITS,
    PASS_ACTIVATIONS_BYTES,
)
from fairbits.model.device import is_gpu
from fairbits.quantization.learning.distillation import EVALUATIONS
from fairbits.quantization.plan import Learning, Plan
from fairbits.quantization.rounding.engine import ACTIVATIONS_PER_POSITION, MOST_BATCHES
from fairbits.quantization.rounding.hessian import PANEL
from fairbits.quantization.rounding.output_errors import SAMPLE
from fairbits.verbs.estimate.sizes import Batches, BlockSize, ModelSize, TextSize
from fairbits.verbs.estimate.work import Held, Stage, Work, total

NUMBER = 4
"""Bytes of a float32."""
FORWARD_PASSES = 6
"""How often the activations of a block pass through memory in a forward pass."""
SCORE_PASSES = 3
"""How often attention scores, one for each head and pair of positions, pass through memory."""
FORWARD_CALLS = 60
"""Operations of a block in a forward pass."""
LAYER_PASSES = 10
"""How often the weights of a rounded layer pass through memory: conversion, codes, errors and their sums."""
PACKING_PASSES = 8
"""How often codes pass through memory, as int32, until they are packed."""
LEARNING_PASSES = 30
"""How often learnable weights pass through memory in a step: codes, gradients, optimizer."""
LEARNING_BYTES = 28
"""Bytes for each weight that is learned: original, offset, its gradient, two moments, codes and the result."""
FACTOR_COPIES = 5
"""Copies of H that exist while it is factorized."""
LOGIT_COPIES = 6
"""Copies of the logits of a batch in a loss or divergence."""
REPORT = Work(seconds=4.0)
"""Bootstrap intervals and pages: they depend on documents rather than on the model."""


@dataclass(frozen=True)
class Counter:
    """Counts the stages of a job with one model on one device."""

    model: ModelSize
    device: str

    @cached_property
    def gpu(self) -> bool:
        """Whether the device is a GPU."""
        return is_gpu(self.device)

    # parts of stages

    def forward(self, block: BlockSize, batches: Batches) -> Work:
        """Returns the work of one block for all batches."""
        attention = 4 * batches.squares * block.attention
        return Work(
            products=batches.positions * block.flops_per_position + attention,
            traffic=NUMBER
            * (FORWARD_PASSES * batches.positions * block.activations + SCORE_PASSES * batches.squares * block.heads),
            calls=FORWARD_CALLS * batches.count,
        )

    def forward_all(self, batches: Batches) -> Work:
        """Returns the work of all blocks for all batches."""
        return total(self.forward(block, batches) for block in self.model.blocks)

    def head(self, positions: float) -> Work:
        """Returns the work of the logits of some positions."""
        return Work(products=2 * positions * self.model.head)

    def load(self, stored: float, weights: float) -> Work:
        """Returns the work of reading weights and bringing them to the device in float32."""
        return Work(read=stored, host=(NUMBER + 2) * weights, moved=NUMBER * weights if self.gpu else 0)

    def pass_positions(self) -> int:
        """Returns the positions of a batch that passes the whole model; see `positions_at_once`."""
        numbers = (SAVED_PER_BLOCK + len(self.model.blocks)) * self.model.width
        numbers += 0 if self.model.head else LOGITS_KEPT * self.model.vocabulary
        return max(PASS_ACTIVATIONS_BYTES // (NUMBER * numbers), 32)

    def logit_positions(self) -> int:
        """Returns the positions whose logits exist at a time; see `positions_of_logits`."""
        positions = max(LOGITS // self.model.vocabulary, LOGIT_POSITIONS)
        return GPU_LOGITS_FACTOR * positions if self.gpu else positions

    def block_positions(self, text: TextSize) -> int:
        """Returns the positions of a batch that passes one block; see the rounding engine."""
        room, most = BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS
        if self.gpu:
            room, most = GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
        fitting = min(max(room // (NUMBER * ACTIVATIONS_PER_POSITION * self.model.width), 64), most)
        return max(fitting, text.positions // MOST_BATCHES)

    def on(self, device_bytes: float, ram: float = 0.0, *, written: float = 0.0, scratch: float = 0.0) -> Held:
        """Returns what is held, where the first part is on the device: on the CPU it takes RAM."""
        return Held(device_bytes, ram, written, scratch) if self.gpu else Held(0, device_bytes + ram, written, scratch)

    # stages

    def check(self) -> Stage:
        """Returns the fingerprint of the model, for which all weights are read once."""
        return Stage("fingerprint of the model", Work(read=self.model.stored, hashed=self.model.stored), Held())

    def audit(self, text: TextSize) -> Stage:
        """Returns the audit: forward, again in the backward pass, the gradients, and the shift of every output."""
        batches = text.batches(self.pass_positions())
        weights = sum(block.rounded for block in self.model.blocks)
        shift = Work(products=2 * batches.positions * weights)
        effects = Work(
            products=sum(2 * batches.squares * each.out for block in self.model.blocks for each in block.maps)
        )
        errors = Work(traffic=6 * NUMBER * weights * batches.count)
        logits = self.head(2 * text.predicted) + Work(logits=2 * text.predicted * self.model.vocabulary)
        moments = Work(read=self.model.stored, host=8 * NUMBER * self.model.weights)
        work = self.forward_all(batches) * 3 + shift + effects + errors + logits + moments
        load = self.load(self.model.stored, self.model.weights)
        activations = SAVED_PER_BLOCK * self.model.width * self.pass_positions()
        held = NUMBER * (self.model.weights + max(activations, 4 * LOGIT_POSITIONS * self.model.vocabulary))
        return Stage("audit", work + load, self.on(held, NUMBER * self.model.largest.weights))

    def round(self, plan: Plan, text: TextSize | None, *, name: str, written: bool) -> Stage:
        """Returns rounding by a plan, one block in memory at a time; `written` says whether a model is written."""
        schemes = plan.schemes
        layers = [each for block in self.model.blocks for each in block.maps if each.name in schemes]
        work = self.load(self.model.stored, self.model.weights)
        work += total(self._round_layer(each.out, each.columns, schemes[each.name].clip) for each in layers)
        if text is not None:
            batches = text.batches(self.block_positions(text))
            work += self.forward_all(batches) * (2 if plan.reads_text else 1)
            work += Work(products=sum(2 * SAMPLE * text.languages * each.weights for each in layers))
            compensated = {name for name, scheme in schemes.items() if scheme.rounding == "gptq"}
            work += total(self._compensate(block, batches, compensated) for block in self.model.blocks)
        if written:
            work += self._write(plan, sum(each.weights for each in layers))
        return Stage(name, work, self._held_rounding(plan, text, written=written))

    def learn_blocks(self, learning: Learning, text: TextSize, held_out: TextSize, *, name: str) -> Stage:
        """Returns the learning of codes block by block, in addition to rounding."""
        batches = text.batches(self.block_positions(text))
        rows = len(text.lengths) / max(batches.count, 1)
        each = -(-learning.rows // max(rows, 1))
        step = Batches(
            int(each), round(each * batches.positions / batches.count), round(each * batches.squares / batches.count)
        )
        evaluated = held_out.batches(self.block_positions(text))
        work = Work()
        for block in self.model.blocks:
            training = self._fast(self.forward(block, step)) * 3
            codes = Work(traffic=LEARNING_PASSES * NUMBER * block.rounded, calls=40 * len(block.maps))
            work += (training + codes) * learning.block_steps
            work += self.forward(block, evaluated) * (EVALUATIONS + 1) + self.forward(block, batches)
        states = 2 * NUMBER * text.positions * self.model.width
        activations = 2 * NUMBER * self.model.largest.activations * step.positions
        held = LEARNING_BYTES * self.model.largest.rounded + states + activations
        return Stage(name, work, self.on(held, 2 * NUMBER * self.model.largest.weights))

    def learn_model(self, learning: Learning, text: TextSize, held_out: TextSize, *, name: str) -> Stage:
        """Returns the learning of all codes together, which needs the whole model."""
        mean = text.positions / max(len(text.lengths), 1)
        positions = round(learning.rows * mean)
        step = Batches(1, positions, round(positions * mean))
        weights = sum(block.rounded for block in self.model.blocks)
        predicted = text.predicted / text.positions * positions
        training = self._fast(self.forward_all(step) * 3 + self.head(4 * predicted))
        codes = Work(
            traffic=LEARNING_PASSES * NUMBER * weights,
            calls=40 * sum(len(block.maps) for block in self.model.blocks),
            logits=2 * predicted * self.model.vocabulary,
        )
        evaluated = self.forward_all(held_out.batches(EVALUATION_POSITIONS)) + self.head(2 * held_out.predicted)
        evaluated += Work(
            logits=held_out.predicted * self.model.vocabulary, traffic=LEARNING_PASSES / 3 * NUMBER * weights
        )
        work = (training + codes) * learning.model_steps + evaluated * (EVALUATIONS + 1)
        work += self.evaluate_reference(text).work + self.load(self.model.stored, self.model.weights) * 2
        logits = LOGIT_COPIES * self.logit_positions() * self.model.vocabulary
        activations = 2 * positions * sum(block.activations for block in self.model.blocks)
        held = NUMBER * (self.model.weights + self.model.head + logits + activations) + LEARNING_BYTES * weights
        features = NUMBER * text.predicted * self.model.width
        return Stage(name, work, self.on(held, NUMBER * self.model.weights, scratch=features))

    def evaluate_reference(self, text: TextSize) -> Stage:
        """Returns one pass of the reference model, whose last hidden states are kept on disk."""
        features = NUMBER * text.predicted * self.model.width
        positions = max(self.pass_positions(), EVALUATION_POSITIONS)
        work = self.load(self.model.stored, self.model.weights) + self.forward_all(text.batches(positions))
        work += Work(written=features, moved=features if self.gpu else 0)
        return Stage("evaluate the reference model", work, self._held_evaluation(positions, features))

    def evaluate_quantized(self, text: TextSize, *, name: str, stored: float | None) -> Stage:
        """Returns one pass of a quantized model and the comparison of all logits; `stored` bytes are read, if any."""
        positions = max(self.pass_positions(), EVALUATION_POSITIONS)
        work = self.forward_all(text.batches(positions)) + self.head(2 * text.predicted)
        work += Work(logits=text.predicted * self.model.vocabulary)
        if stored is not None:
            work += self.load(stored, self.model.weights) + Work(host=PACKING_PASSES * NUMBER * self.model.weights)
        features = NUMBER * text.predicted * self.model.width
        return Stage(name, work, self._held_evaluation(positions, features))

    # memory

    def _held_evaluation(self, positions: int, features: float) -> Held:
        logits = LOGIT_COPIES * self.logit_positions() * self.model.vocabulary
        activations = 2 * positions * self.model.largest.activations
        held = NUMBER * (self.model.weights + self.model.head + logits + activations)
        return self.on(held, NUMBER * self.model.weights if self.gpu else 0.0, scratch=features)

    def _held_rounding(self, plan: Plan, text: TextSize | None, *, written: bool) -> Held:
        largest = self.model.largest
        matrix = max((each.weights for each in largest.maps), default=0)
        codes = NUMBER * largest.rounded + 8 * 3 * matrix
        disk = float(plan.size_bytes) if written else 0.0
        if text is None:
            return Held(0.0, codes, written=disk)
        states = NUMBER * text.positions * self.model.width
        activations = 2 * NUMBER * self.block_positions(text) * largest.activations
        held = NUMBER * (largest.weights + self.model.embedding) + states
        inputs = [columns**2 for columns in largest.inputs.values()] if plan.reads_text else []
        factor = NUMBER * (sum(inputs) + FACTOR_COPIES * max(inputs, default=0)) + 6 * NUMBER * matrix
        held += max(factor, activations + NUMBER * max(sum(inputs), largest.rounded))
        return self.on(held, codes + NUMBER * self.model.embedding, written=disk)

    # parts of rounding

    def _round_layer(self, out: int, columns: int, clip: str) -> Work:
        weights = out * columns
        return Work(
            host=LAYER_PASSES * NUMBER * weights,
            clipped=weights if clip == "exact" else 0,
            moved=2 * NUMBER * weights if self.gpu else 0,
            calls=40,
        )

    def _compensate(self, block: BlockSize, batches: Batches, names: set[str]) -> Work:
        """Returns the work of GPTQ: products of inputs, their factors, and the columns."""
        maps = [each for each in block.maps if each.name in names]
        inputs = {each.sees: each.columns for each in maps if each.sees is not None}
        products = sum(batches.positions * columns * (columns + PANEL) for columns in inputs.values())
        return Work(
            products=products + sum(each.weights * each.columns for each in maps),
            factors=sum(columns**3 / 3 for columns in inputs.values()),
            columns=sum(each.columns for each in maps),
            cells=sum(each.weights for each in maps),
        )

    def _write(self, plan: Plan, weights: float) -> Work:
        return Work(
            host=PACKING_PASSES * NUMBER * weights,
            written=plan.size_bytes,
            hashed=plan.size_bytes,
            calls=len(plan.schemes),
        )

    def _fast(self, work: Work) -> Work:
        """Returns work whose products are computed in the type in which the device learns."""
        return Work(**(vars(work) | {"products": 0.0, "fast": work.products + work.fast}))
