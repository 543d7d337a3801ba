"""What the stages of a job need, from the shapes of the model and the amount of text: memory, disk, and work.

A job that cannot fit is refused before it starts, and if memory runs out midway the error names the stage; both name
settings that would fit. Nothing but headers is read for it. `dry_run` measures how long the work takes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from fairbits.core import memory as limits
from fairbits.core.progress import QUANTIZED, READING, REFERENCE, ROUNDING
from fairbits.forward.body_and_head import SAVED_PER_BLOCK
from fairbits.forward.lockstep import ACTIVATIONS_PER_POSITION
from fairbits.forward.statistics import measuring_dtype
from fairbits.forward.streaming import least_places, segments
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.models.architecture.architecture import Block
from fairbits.models.architecture.meta_model import SOUND
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import fits_whole, is_gpu
from fairbits.models.io.safetensors_files import TensorInfo
from fairbits.quantization.execute import IMPORTANCE_TOKENS
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn import EVALUATIONS
from fairbits.quantization.plan import Learning, Plan
from fairbits.text.corpus import Corpus, TextRequest

NUMBER = 4  # bytes of a float32
FACTOR_COPIES, LOGIT_COPIES, LAYER_COPIES = 5, 6, 6
"""Copies of H while it is factorized, of the logits of a batch in a loss, and of a matrix while it is rounded."""
BLOCKS_BEHIND = 2  # whose codes wait to be written
CALIBRATED = 6.0  # as many operations as a forward pass cost a position that calibrates a block
LEARNING_BYTES = limits.LEARNED_WEIGHT_BYTES + 6  # of a weight: with its gradient in bfloat16 and the result in float32
CLIP_TOKENS = 32  # of the transcript of a clip of ten seconds, about
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")  # names in configurations

Work = Mapping[str, float]
"""Amounts of work by kind; `dry_run` measures how much of each kind this machine does in a second.

`forward`     positions that pass a block; blocks count in units of the measured one
`observed`    positions that pass a block forward and backward while an audit observes it
`gradients`   positions whose Fisher gradient is computed from their logits
`compared`    positions whose logits are compared with the reference model's
`loaded`      weights that are read and converted, `hashed` and `written` bytes, and `seconds`
`rounded P`   blocks that the policy P rounds, `calibrated P` positions that pass a block for it, and `learned P`
              learning steps of a block
"""


@dataclass(frozen=True)
class BlockSize:
    """A block: all its weights, their bytes in the files, the weights that are rounded, and its largest matrix.

    `operations`   of the linear layers for one position; only a share of the positions reaches an expert
    `activations`  about how many numbers are computed for one position: inputs and outputs of linear layers
    `hessians`     sizes of H of the inputs of rounded layers
    """

    weights: int
    stored: int
    rounded: int
    matrix: int
    operations: float
    activations: float
    hessians: tuple[int, ...]

    @classmethod
    def of(cls, block: Block, tensors: Mapping[str, TensorInfo], expert_share: float) -> "BlockSize":
        layers = [(layer, layer.shape[-2] * (layer.stacked or 1), layer.shape[-1]) for layer in block.linears.values()]
        shares = [1.0 if layer.expert is None and layer.stacked is None else expert_share for layer, _, _ in layers]
        reached = list(zip(layers, shares, strict=True))
        rounded = [(layer.sees, rows * columns, columns) for layer, rows, columns in layers if layer.is_quantizable]
        return cls(
            weights=sum(prod(tensors[name].shape) for name in block.weights),
            stored=sum(tensors[name].nbytes for name in block.weights),
            rounded=sum(size for _, size, _ in rounded),
            matrix=max((rows * columns for _, rows, columns in layers), default=0),
            operations=sum(2 * rows * columns * share for (_, rows, columns), share in reached),
            activations=sum((rows + columns) * share for (_, rows, columns), share in reached),
            hessians=tuple({sees: columns**2 for sees, _, columns in rounded if sees is not None}.values()),
        )


@dataclass(frozen=True)
class ModelSize:
    """A model: `weights` and `stored` bytes include embedding and head; `head` weights compute the logits."""

    blocks: tuple[BlockSize, ...]
    hidden_size: int
    vocabulary: int
    head: int
    embedding: int
    weights: int
    stored: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "ModelSize":
        architecture, config = checkpoint.architecture, checkpoint.config.get_text_config()
        experts = next((count for name in EXPERT_COUNTS if (count := getattr(config, name, None))), 0)
        share = min(int(getattr(config, "num_experts_per_tok", None) or experts) / experts, 1.0) if experts else 1.0
        embedding = [weight for weight in architecture.weights.values() if weight.role == "embedding"]
        return cls(
            blocks=tuple(BlockSize.of(block, checkpoint.tensors, share) for block in architecture.blocks),
            hidden_size=int(config.hidden_size),
            vocabulary=int(config.vocab_size),
            head=0 if architecture.head is None else prod(architecture.head.shape),
            embedding=sum(prod(weight.shape) for weight in embedding),
            weights=sum(prod(info.shape) for info in checkpoint.tensors.values()),
            stored=sum(info.nbytes for info in checkpoint.tensors.values()),
        )

    @cached_property
    def largest(self) -> BlockSize:
        return max(self.blocks, key=lambda block: block.weights)

    @cached_property
    def measured(self) -> BlockSize:
        """The block on which work is measured: the second, as the first waits for whatever is slow at the start."""
        return self.blocks[min(1, len(self.blocks) - 1)]

    @cached_property
    def depth(self) -> float:
        """How many times as many operations all blocks have as the measured one."""
        return sum(block.operations for block in self.blocks) / self.measured.operations

    @cached_property
    def rounded(self) -> int:
        return sum(block.rounded for block in self.blocks)


@dataclass(frozen=True)
class TextSize:
    """An amount of text: its windows, their positions, and how many of these predict a token."""

    windows: int
    positions: int
    predicted: int
    languages: int

    @classmethod
    def of(cls, text: TokenizedText) -> "TextSize":
        predicted = sum(label != NO_LABEL for window in text.windows for label in window.main.labels)
        positions = sum(window.length for window in text.windows)
        return cls(len(text.windows), positions, predicted, len(text.languages))

    @classmethod
    def requested(cls, request: TextRequest, checkpoint: Checkpoint, corpus: Corpus) -> "TextSize":
        """Returns the size of a text that has all that is requested, in whole windows; nothing is read.

        An encoder of speech has the same number of positions for every clip, however long it is.
        """
        languages = len(corpus.split(request.split))
        length, tokens = min(request.sequence, request.tokens), request.sequence
        if corpus.clips and checkpoint.architecture.reads == SOUND:
            length, tokens = int(checkpoint.config.max_source_positions), CLIP_TOKENS
        windows = -(-request.tokens // tokens) * languages
        return cls(windows, windows * length, request.tokens * languages, languages)


@dataclass(frozen=True)
class Held:
    """The most bytes that are held at a time; those on disk are `written` to stay, or `scratch` for the while."""

    gpu: float = 0.0
    ram: float = 0.0
    written: float = 0.0
    scratch: float = 0.0


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a job: its name, its work, what it holds, and if it rounds, the plan and the text.

    It is `reported` as progress under another name, if at all; its `cost` is compared with that of other stages of the
    same model. `dropped` is the option without which the job has it.
    """

    name: str
    work: Work
    held: Held
    plan: Plan | None = None
    text: TokenizedText | None = None
    reported: str = ""
    cost: float = 0.0
    dropped: str = ""


@dataclass(frozen=True, eq=False)
class WorkCounter:
    """Gives the stages of jobs with one model on one device."""

    checkpoint: Checkpoint
    device: str

    @cached_property
    def model(self) -> ModelSize:
        return ModelSize.of(self.checkpoint)

    @cached_property
    def gpu(self) -> bool:
        return is_gpu(self.device)

    @cached_property
    def state(self) -> int:
        """The bytes of a hidden state in an audit and in rounding."""
        return measuring_dtype(self.checkpoint, self.device).itemsize * self.model.hidden_size

    def dequantization(self) -> Stage:
        """Returns the first opening of a GGUF file, whose weights are kept in float32; fitted to Gemma-3-270M."""
        model, size = self.model, NUMBER * self.model.weights
        work = {"written": size, "seconds": 1e-7 * model.weights + 3.5e-4 * model.vocabulary}
        return Stage("dequantize the GGUF file", work, Held(ram=2.0 * size, written=size))

    def fingerprint(self) -> Stage:
        """Returns the fingerprint of the model, for which all weights are read once."""
        return Stage("fingerprint of the model", {"hashed": self.model.stored}, Held())

    def audit(self, text: TextSize) -> Stage:
        """Returns the audit, which holds the model or a block of it, states, one batch of a backward pass, and logits.

        Weights are read for the pass, for their moments and for their errors. Of a large model, one block is in memory
        at a time, forward and backward, and where not all states fit, some are computed again.
        """
        model, item, depth = self.model, self.state // self.model.hidden_size, self.model.depth
        states, logits = self.state * text.positions, LOGIT_COPIES * NUMBER * limits.LOGIT_POSITIONS * model.vocabulary
        work = {"observed": depth * text.positions, "gradients": text.predicted}
        if item * model.weights <= limits.WHOLE_MODEL_BYTES:
            work["loaded"] = 3 * model.weights
            batch = limits.GPU_PASS_ACTIVATIONS_BYTES if self.gpu else limits.PASS_ACTIVATIONS_BYTES
            held, errors = max(batch * item // NUMBER, logits) + item * model.weights, NUMBER * model.rounded
        else:
            again, parts = self._computed_again(states)
            work["forward"] = again * depth * text.positions
            work["loaded"] = (2 + parts * (2 + again)) * model.weights
            batch = limits.GPU_BLOCK_BACKWARD_BYTES if self.gpu else limits.BLOCK_BACKWARD_BYTES
            batch = max(batch, SAVED_PER_BLOCK * self.state * limits.BLOCK_BACKWARD_POSITIONS)
            kept = min(len(model.blocks) * states, round(limits.LEAST_STATES_FACTOR * self._states_room))
            held, errors = max(batch, logits) + kept + states, NUMBER * model.largest.rounded
            held += item * (max(model.embedding, model.head) + model.largest.weights)
        held += 2 * NUMBER * model.largest.matrix + (errors if errors <= limits.KEPT_ERRORS_BYTES else 0)
        return self._reported(Stage("audit", work, self.on_device(held, NUMBER * model.largest.weights)), READING)

    def rounding(self, plan: Plan, text: TokenizedText | None, *, name: str, written: bool) -> Stage:
        model, largest, weights = self.model, self.model.largest, self.checkpoint.architecture.weights
        rounded = sum(prod(weights[layer].shape) for layer in plan.schemes)
        work = {f"rounded {plan.policy}": rounded / max(model.measured.rounded, 1)}
        disk = float(plan.size_bytes) if written else 0.0
        layer = LAYER_COPIES * NUMBER * largest.matrix + (1 + BLOCKS_BEHIND) * largest.rounded
        waiting = 2 * largest.stored + BLOCKS_BEHIND * largest.rounded
        if text is None:
            plain = Stage(name, work | {"written": disk}, self.on_device(layer, waiting, written=disk), plan)
            return self._reported(plain, ROUNDING)
        positions = TextSize.of(text).positions
        work |= {f"calibrated {plan.policy}": model.depth * positions, "written": disk}
        state = self.state if plan.learning is None else NUMBER * model.hidden_size
        item, states = state // model.hidden_size, 3 * state * positions
        apart = self.gpu and plan.learning is None and states > limits.GPU_WALK_STATES_BYTES
        outside = states + item * model.embedding
        hessians = largest.hessians if plan.reads_text else ()
        factor = NUMBER * FACTOR_COPIES * max(hessians, default=0) + layer
        held = item * largest.weights + NUMBER * (largest.rounded + sum(hessians)) + (0 if apart else outside)
        held += round(max(factor, 2 * item * self._batch_positions(item) * largest.activations))
        ram = waiting + (outside if apart else item * model.embedding)
        return self._reported(Stage(name, work, self.on_device(held, ram, written=disk), plan, text), ROUNDING)

    def execution(self, plan: Plan, text: TokenizedText | None, *, name: str, written: bool) -> Iterator[Stage]:
        """Yields the execution of a plan: rounding, learning block by block, and learning end to end."""
        learning = plan.learning
        if text is None or learning is None:
            yield self.rounding(plan, text, name=name, written=written)
            return
        split = HoldoutSplit.of(text, seed=0 if plan.calibration is None else plan.calibration.seed)
        short = split.shorten(learning.block_tokens) if learning.model_steps else text
        held_out = TextSize.of(replace(text, windows=tuple(text.windows[i] for i in split.held_out)))
        yield self.rounding(plan, short, name=name, written=written)
        if learning.block_steps:
            yield self._learn_blocks(plan, learning, TextSize.of(short), held_out, name=f"{name}, learning blocks")
        if learning.model_steps:
            yield self._learn_model(plan, learning, TextSize.of(text), held_out, name=f"{name}, learning end to end")

    def _learn_blocks(self, plan: Plan, how: Learning, text: TextSize, held_out: TextSize, *, name: str) -> Stage:
        """Returns the learning of codes block by block, in addition to rounding.

        The states of the full-precision model pass every block too, and the importance of channels needs gradients.
        """
        model, largest = self.model, self.model.largest
        work = {
            f"learned {plan.policy}": how.block_steps * model.depth,
            "forward": model.depth * (text.positions + (EVALUATIONS + 1) * held_out.positions),
            "observed": model.depth * min(IMPORTANCE_TOKENS * text.languages, text.positions),
        }
        step = max(how.rows * text.positions / max(text.windows, 1), self._batch_positions(NUMBER))
        activations = largest.activations * min(step, text.positions) + model.hidden_size * text.positions
        held = LEARNING_BYTES * largest.rounded + 2 * NUMBER * activations
        return Stage(name, work, self.on_device(held, 2 * NUMBER * largest.weights))

    def _learn_model(self, plan: Plan, how: Learning, text: TextSize, held_out: TextSize, *, name: str) -> Stage:
        """Returns the learning of all codes together, which needs the whole model and the reference model's answers.

        A step of the model is a step of all its blocks, and a comparison of logits forward and backward.
        """
        model, evaluated, share = self.model, EVALUATIONS + 1, how.rows / max(text.windows, 1)
        positions = share * text.positions
        work = {
            f"learned {plan.policy}": how.model_steps * model.depth,
            "forward": model.depth * (text.positions + evaluated * held_out.positions),
            "compared": 2 * how.model_steps * share * text.predicted + evaluated * held_out.predicted,
            "loaded": 2 * model.weights,
        }
        activations, learned = 2 * sum(block.activations for block in model.blocks), LEARNING_BYTES * model.rounded
        saved = NUMBER * SAVED_PER_BLOCK * model.hidden_size * len(model.blocks) * positions
        if not fits_whole(saved, self.device, share=limits.LEARNING_SHARE):  # blocks are computed again, backward
            work["forward"] += model.depth * how.model_steps * positions
            activations = 2 * model.largest.activations + model.hidden_size * len(model.blocks)
            learned -= (LEARNING_BYTES - limits.LEARNED_WEIGHT_BYTES) * (model.rounded - model.largest.rounded)
        outside = model.weights - model.rounded + model.head + self._logits
        held = max(NUMBER * (outside + activations * positions) + learned, NUMBER * model.weights)
        scratch = NUMBER * text.predicted * model.hidden_size
        learned_here = Stage(name, work, self.on_device(held, NUMBER * model.weights, scratch=scratch))
        return self._reported(learned_here, REFERENCE)  # which learning begins with

    def evaluation(self, text: TextSize, *, name: str, reference: bool = False, loaded: bool = False) -> Stage:
        """Returns one pass of a model, which holds the model or a block of it, two heads, activations and logits.

        The last states of the `reference` model are kept on disk; the logits of another one are compared with its.
        """
        model, weights = self.model, self.model.weights
        work = {"forward": model.depth * text.positions, "loaded": 0 if loaded else weights}
        work |= {} if reference else {"compared": text.predicted}
        if not loaded and not fits_whole(NUMBER * weights, self.device):
            states = min(text.positions * model.hidden_size, self._states_room // NUMBER)
            weights = model.largest.weights + max(model.head, model.embedding) + states
        room = limits.GPU_PASS_ACTIVATIONS_BYTES if self.gpu else limits.PASS_ACTIVATIONS_BYTES
        positions = room // (NUMBER * (SAVED_PER_BLOCK + len(model.blocks)) * model.hidden_size)
        positions = max(positions, limits.GPU_EVALUATION_POSITIONS if self.gpu else limits.EVALUATION_POSITIONS)
        held = NUMBER * (weights + model.head + 2 * positions * model.largest.activations + self._logits)
        ahead = NUMBER * model.largest.weights if self.gpu else 0.0
        held_here = self.on_device(held, ahead, scratch=NUMBER * text.predicted * model.hidden_size)
        which = REFERENCE if reference else QUANTIZED
        return self._reported(Stage(name, work, held_here), which)

    def _reported(self, stage: Stage, name: str) -> Stage:
        """Returns a stage with its name in progress and its cost, in operations: a heuristic, fitted to Gemma-3-270M.

        An audited position costs four times as many as a forward pass, and a Fisher gradient three times as many as the
        head.
        """
        block, head, cost = self.model.measured.operations, 2.0 * self.model.head, 0.0
        operations = {"forward": block, "observed": 4 * block, "gradients": 3 * head, "compared": 2 * head}
        for kind, amount in stage.work.items():
            kind = kind.partition(" ")[0]
            cost += amount * operations.get(kind, CALIBRATED * block if kind == "calibrated" else 0.0)
        return replace(stage, reported=name, cost=cost)

    def on_device(self, device_bytes: float, ram: float = 0.0, *, written: float = 0.0, scratch: float = 0.0) -> Held:
        """Returns what is held, where the first part is on the device: on the CPU it takes RAM."""
        return Held(device_bytes, ram, written, scratch) if self.gpu else Held(0, device_bytes + ram, written, scratch)

    def _batch_positions(self, item: int) -> int:
        """Returns the positions of a batch that passes one block; see `lockstep.positions_at_once`."""
        room = limits.GPU_BLOCK_ACTIVATIONS_BYTES if self.gpu else limits.BLOCK_ACTIVATIONS_BYTES
        most = limits.GPU_BLOCK_POSITIONS if self.gpu else limits.BLOCK_POSITIONS
        return min(max(room // (item * ACTIVATIONS_PER_POSITION * self.model.hidden_size), 64), most)

    @property
    def _logits(self) -> int:
        """The logits that exist at a time, with copies; see `hidden_states.positions_of_logits`."""
        positions = max(limits.LOGITS // self.model.vocabulary, limits.LOGIT_POSITIONS)
        return LOGIT_COPIES * positions * (limits.GPU_LOGITS_FACTOR if self.gpu else 1) * self.model.vocabulary

    @property
    def _states_room(self) -> int:
        return limits.GPU_STATES_BYTES if self.gpu else limits.STATES_BYTES

    def _computed_again(self, states: int) -> tuple[float, int]:
        """Returns the share of a forward pass that is computed once more, and the parts in which the text passes."""
        count, least = len(self.model.blocks), least_places(len(self.model.blocks))
        parts = max(-(-least * states // round(limits.LEAST_STATES_FACTOR * self._states_room)), 1)
        chosen = segments(count, max(self._states_room * parts // max(states, 1), least))
        return sum(len(segment) - 1 for segment in chosen[:-1]) / count, parts
