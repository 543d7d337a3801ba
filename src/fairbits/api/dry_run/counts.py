"""Counts: the work of each stage and what it holds, from the sizes of model and text. One small function per stage.

To correct an estimate, correct its function here: rates are measured, counts are derived. Factors such as
FORWARD_PASSES say how often a number passes through memory; they were fitted to runs of the embedded model and of
random Llamas, which `benchmarks/estimate.py` repeats.
"""

from dataclasses import dataclass, replace

from fairbits.api.dry_run.footprint import LOGIT_COPIES, NUMBER, Footprint
from fairbits.api.dry_run.sizes import Batches, BlockSize, TextSize
from fairbits.api.dry_run.work import Held, Stage, Work, total
from fairbits.core.memory import EVALUATION_POSITIONS, LEARNED_WEIGHT_BYTES, WHOLE_MODEL_BYTES
from fairbits.forward.body_and_head import SAVED_PER_BLOCK
from fairbits.quantization.execute import IMPORTANCE_TOKENS
from fairbits.quantization.gptq.hessian import PANEL
from fairbits.quantization.gptq.output_errors import SAMPLE
from fairbits.quantization.learned.learn import EVALUATIONS
from fairbits.quantization.plan import Learning, Plan

FORWARD_PASSES = 8
"""How often the activations of a block pass through memory in a forward pass."""
SCORE_PASSES = 3
"""How often attention scores, one for each head and pair of positions, pass through memory."""
FORWARD_CALLS = 60
"""Operations of a block in a forward pass."""
LAYER_PASSES = 10
"""How often the weights of a rounded layer pass through memory: conversion, codes, errors and their sums."""
PACKING_PASSES = 8
"""How often codes pass through memory, as int32, until they are packed."""
LAYER_CALLS = 40
"""Operations of a rounded layer, without those of GPTQ."""
ERROR_PASSES = 6
"""How often the weights pass through memory for the error of a scheme."""
LEARNING_PASSES = 60
"""How often learnable weights pass through memory in a step: codes, gradients, optimizer."""
LEARNING_BYTES = LEARNED_WEIGHT_BYTES + 6
"""Bytes for each weight that is learned, with its gradient in bfloat16 and the result in float32."""
RECORD_PASSES = 12
"""How often activations and gradients pass through memory while an audit records them."""
AUDITING, ROUNDING, EVALUATING, REPORTING = (Work(calls=calls) for calls in (7e5, 5e5, 1.5e5, 4e5))
"""What Python does in each stage whatever the model, in operations that take as long: text, intervals, records."""


@dataclass(frozen=True)
class Counter(Footprint):
    """Counts the stages of a job."""

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

    # stages

    def check(self) -> Stage:
        """Returns the fingerprint of the model, for which all weights are read once."""
        return Stage("fingerprint of the model", Work(read=self.model.stored, hashed=self.model.stored), Held())

    def audit(self, text: TextSize) -> Stage:
        """Returns the audit: forward, again in the backward pass, the gradients, and the shift of every output.

        A large model passes with one block in memory; where not all states fit, they are computed once more.
        """
        streamed = self.model.weights * self.item > WHOLE_MODEL_BYTES
        positions = self.backward_positions() if streamed else self.pass_positions()
        batches = text.batches(positions)
        weights = sum(block.rounded for block in self.model.blocks)
        outputs = sum(each.out for block in self.model.blocks for each in block.maps)
        shifts = Work(products=2 * batches.positions * weights + 2 * batches.squares * outputs)
        times = 1 if self.kept_errors(streamed=streamed) else batches.count
        errors = Work(traffic=ERROR_PASSES * NUMBER * weights * times)
        logits = self.head(2 * text.predicted) + Work(logits=2 * text.predicted * self.model.vocabulary)
        again, parts = self.recomputed(batches.positions) if streamed else (0, 1)
        recorded = RECORD_PASSES * NUMBER * batches.positions * sum(block.activations for block in self.model.blocks)
        passes = self.forward_all(batches) * (3 + again) + shifts + logits + Work(traffic=recorded)
        loads = self._load_narrow(self.model.stored, self.model.weights) * (parts * (2 + again) if streamed else 1)
        moments = Work(read=self.model.stored, host=8 * NUMBER * self.model.weights)
        work = (self._fast(passes) if self.narrow else passes) + errors + loads + moments + AUDITING
        return Stage("audit", work, self.held_audit(batches.positions, positions, streamed=streamed))

    def round(self, plan: Plan, text: TextSize | None, *, name: str, written: bool) -> Stage:
        """Returns rounding by a plan, one block in memory at a time; `written` says whether a model is written."""
        schemes = plan.schemes
        layers = [each for block in self.model.blocks for each in block.maps if each.name in schemes]
        work = self._load_narrow(self.model.stored, self.model.weights)
        work += total(self._round_layer(each.out, each.columns, schemes[each.name].clip) for each in layers)
        if text is not None:
            batches = text.batches(self.block_positions(text))
            passes = self.forward_all(batches) * (2 if plan.reads_text else 1)
            passes += Work(products=sum(2 * SAMPLE * text.languages * each.weights for each in layers))
            compensated = {name for name, scheme in schemes.items() if scheme.rounding == "gptq"}
            passes += total(self._input_products(block, batches, compensated) for block in self.model.blocks)
            work += ROUNDING + (self._fast(passes) if self.narrow and plan.learning is None else passes)
            work += total(self._compensate(block, compensated) for block in self.model.blocks)
            if self.states_apart(plan, text):  # they go to the device and back, twice in every block
                work += Work(moved=4 * len(self.model.blocks) * self.item * batches.positions * self.model.width)
        if written:
            work += self._write(plan, sum(each.weights for each in layers))
        return Stage(name, work, self.held_rounding(plan, text, written=written), overlapping=True)

    def learn_blocks(self, learning: Learning, text: TextSize, held_out: TextSize, *, name: str) -> Stage:
        """Returns the learning of codes block by block, in addition to rounding."""
        batches = text.batches(self.block_positions(text))
        rows = len(text.lengths) / max(batches.count, 1)
        each = -(-learning.rows // max(rows, 1))
        step = Batches(
            int(each), round(each * batches.positions / batches.count), round(each * batches.squares / batches.count)
        )
        evaluated = held_out.batches(self.block_positions(text))
        gradients = text.languages * IMPORTANCE_TOKENS  # for the importance of channels
        share = gradients / max(text.positions, 1)
        work = self.forward_all(batches) * (3 * share) + self.head(2 * gradients)
        for block in self.model.blocks:
            training = self._training(self.forward(block, step))
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
        training = self._training(self.forward_all(step)) + self._fast(self.head(4 * predicted))
        codes = Work(
            traffic=LEARNING_PASSES * NUMBER * weights,
            calls=40 * sum(len(block.maps) for block in self.model.blocks),
            logits=2 * predicted * self.model.vocabulary,
        )
        evaluated = self.forward_all(held_out.batches(EVALUATION_POSITIONS)) + self.head(2 * held_out.predicted)
        evaluated += Work(
            logits=held_out.predicted * self.model.vocabulary, traffic=LEARNING_PASSES / 3 * NUMBER * weights
        )
        logits = LOGIT_COPIES * self.logit_positions() * self.model.vocabulary
        activations, learned = 2 * sum(block.activations for block in self.model.blocks), LEARNING_BYTES * weights
        if not self.fits_learning(NUMBER * SAVED_PER_BLOCK * self.model.width * len(self.model.blocks) * positions):
            training += self._fast(self.forward_all(step))  # every block is computed again in the backward pass
            activations = 2 * self.model.largest.activations + self.model.width * len(self.model.blocks)
            learned = (
                LEARNED_WEIGHT_BYTES * weights + (LEARNING_BYTES - LEARNED_WEIGHT_BYTES) * self.model.largest.rounded
            )
        work = (training + codes) * learning.model_steps + evaluated * (EVALUATIONS + 1)
        work += self.evaluate_reference(text).work + self.load(self.model.stored, self.model.weights) * 2
        outside = self.model.weights - weights + self.model.head
        held = max(NUMBER * (outside + logits + activations * positions) + learned, NUMBER * self.model.weights)
        features = NUMBER * text.predicted * self.model.width
        return Stage(name, work, self.on(held, NUMBER * self.model.weights, scratch=features))

    def evaluate_reference(self, text: TextSize) -> Stage:
        """Returns one pass of the reference model, whose last hidden states are kept on disk."""
        features = NUMBER * text.predicted * self.model.width
        positions = self.evaluation_positions()
        work = EVALUATING + self.load(self.model.stored, self.model.weights) + self.forward_all(text.batches(positions))
        work += Work(written=features, moved=features if self.gpu else 0)
        return Stage("evaluate the reference model", work, self.held_evaluation(text))

    def evaluate_quantized(self, text: TextSize, *, name: str, stored: float | None) -> Stage:
        """Returns one pass of a quantized model and the comparison of all logits; `stored` bytes are read, if any."""
        positions = self.evaluation_positions()
        work = EVALUATING + self.forward_all(text.batches(positions)) + self.head(2 * text.predicted)
        work += Work(logits=text.predicted * self.model.vocabulary)
        if stored is not None:
            work += self.load(stored, self.model.weights) + Work(host=PACKING_PASSES * NUMBER * self.model.weights)
        return Stage(name, work, self.held_evaluation(text, loaded=stored is None))

    # parts of rounding

    def _load_narrow(self, stored: float, weights: float) -> Work:
        """Returns the work of reading weights as they are stored, and converting them on the device."""
        convert = (NUMBER + 2) * weights
        return Work(read=stored, moved=stored, traffic=convert) if self.gpu else Work(read=stored, host=convert)

    def _on_device(self, passed: float) -> Work:
        """Returns bytes that pass through the memory of the device."""
        return Work(traffic=passed) if self.gpu else Work(host=passed)

    def _round_layer(self, out: int, columns: int, clip: str) -> Work:
        weights = out * columns
        passes = self._on_device(LAYER_PASSES * NUMBER * weights)
        return passes + Work(clipped=weights if clip == "exact" else 0, calls=LAYER_CALLS)

    def _input_products(self, block: BlockSize, batches: Batches, names: set[str]) -> Work:
        """Returns the work of H of all inputs, half of which is computed."""
        inputs = {each.sees: each.columns for each in block.maps if each.name in names and each.sees is not None}
        return Work(products=sum(batches.positions * columns * (columns + PANEL) for columns in inputs.values()))

    def _compensate(self, block: BlockSize, names: set[str]) -> Work:
        """Returns the work of GPTQ after H: factors, and columns."""
        maps = [each for each in block.maps if each.name in names]
        inputs = {each.sees: each.columns for each in maps if each.sees is not None}
        return Work(
            products=sum(each.weights * each.columns for each in maps),
            factors=sum(columns**3 / 3 for columns in inputs.values()),
            columns=sum(each.columns for each in maps),
            cells=sum(each.weights for each in maps),
        )

    def _write(self, plan: Plan, weights: float) -> Work:
        size = plan.size_bytes
        packing = self._on_device(PACKING_PASSES * NUMBER * weights)
        return packing + Work(written=size, hashed=size, moved=size if self.gpu else 0)

    def _training(self, forward: Work) -> Work:
        """Returns a forward pass and its backward pass, whose element-wise operations are more and slower."""
        found = self._fast(forward) * 3
        return replace(found, traffic=2 * found.traffic)

    def _fast(self, work: Work) -> Work:
        """Returns work whose products are computed in the type in which the device learns, 16 bits on a GPU."""
        traffic = work.traffic * (0.5 if self.gpu else 1.0)
        return replace(work, products=0.0, fast=work.products + work.fast, traffic=traffic)
