"""Footprint: what the stages of a job hold at a time, and in how large batches the text passes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from fairbits.api.dry_run.sizes import ModelSize, TextSize
from fairbits.api.dry_run.work import Held
from fairbits.core.memory import (
    BLOCK_ACTIVATIONS_BYTES,
    BLOCK_BACKWARD_BYTES,
    BLOCK_BACKWARD_POSITIONS,
    BLOCK_POSITIONS,
    EVALUATION_POSITIONS,
    GPU_BLOCK_ACTIVATIONS_BYTES,
    GPU_BLOCK_BACKWARD_BYTES,
    GPU_BLOCK_POSITIONS,
    GPU_EVALUATION_POSITIONS,
    GPU_LOGITS_FACTOR,
    GPU_PASS_ACTIVATIONS_BYTES,
    GPU_STATES_BYTES,
    GPU_WALK_STATES_BYTES,
    KEPT_ERRORS_BYTES,
    LEAST_STATES_FACTOR,
    LOGIT_POSITIONS,
    LOGITS,
    PASS_ACTIVATIONS_BYTES,
    STATES_BYTES,
)
from fairbits.forward.body_and_head import LOGITS_KEPT, SAVED_PER_BLOCK
from fairbits.forward.lockstep import ACTIVATIONS_PER_POSITION, MOST_BATCHES
from fairbits.forward.streaming import least_places, segments
from fairbits.models.device import is_gpu
from fairbits.quantization.plan import Plan

NUMBER = 4
"""Bytes of a float32."""
FACTOR_COPIES = 5
"""Copies of H that exist while it is factorized."""
LOGIT_COPIES = 6
"""Copies of the logits of a batch in a loss or divergence."""
BLOCKS_BEHIND = 2
"""Blocks whose codes wait to be written."""


@dataclass(frozen=True)
class Footprint:
    """The memory of a job with one model on one device.

    `narrow`         audit and rounding compute in 16 bits
    `whole`          a model is evaluated as a whole; otherwise one block of it is in memory
    `fits_learning`  says whether some bytes fit into the memory in which a model is learned
    """

    model: ModelSize
    device: str
    narrow: bool = False
    whole: bool = True
    fits_learning: Callable[[float], bool] = lambda _bytes: True

    @cached_property
    def gpu(self) -> bool:
        """Whether the device is a GPU."""
        return is_gpu(self.device)

    @property
    def item(self) -> int:
        """The bytes of a number in an audit and in rounding."""
        return 2 if self.narrow else NUMBER

    # batches

    def pass_positions(self) -> int:
        """Returns the positions of a batch that passes the whole model; see `positions_at_once`."""
        numbers = (SAVED_PER_BLOCK + len(self.model.blocks)) * self.model.width
        numbers += 0 if self.model.head else LOGITS_KEPT * self.model.vocabulary
        return max((GPU_PASS_ACTIVATIONS_BYTES if self.gpu else PASS_ACTIVATIONS_BYTES) // (NUMBER * numbers), 32)

    def evaluation_positions(self) -> int:
        """Returns the positions of an evaluated batch; see `features`."""
        return max(self.pass_positions(), GPU_EVALUATION_POSITIONS if self.gpu else EVALUATION_POSITIONS)

    def logit_positions(self) -> int:
        """Returns the positions whose logits exist at a time; see `positions_of_logits`."""
        positions = max(LOGITS // self.model.vocabulary, LOGIT_POSITIONS)
        return GPU_LOGITS_FACTOR * positions if self.gpu else positions

    def block_positions(self, text: TextSize) -> int:
        """Returns the positions of a batch that passes one block; see the rounding engine."""
        room, most = BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS
        if self.gpu:
            room, most = GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
        fitting = min(max(room // (self.item * ACTIVATIONS_PER_POSITION * self.model.width), 64), most)
        return max(fitting, text.positions // MOST_BATCHES)

    def backward_positions(self) -> int:
        """Returns the positions of a batch in the backward pass of one block; see `streaming_pass`."""
        room = GPU_BLOCK_BACKWARD_BYTES if self.gpu else BLOCK_BACKWARD_BYTES
        return int(max(room // (SAVED_PER_BLOCK * self.model.width * self.item), BLOCK_BACKWARD_POSITIONS))

    def _states_room(self) -> int:
        return GPU_STATES_BYTES if self.gpu else STATES_BYTES

    def recomputed(self, positions: int) -> tuple[float, int]:
        """Returns the share of a forward pass that is computed once more, and the parts in which the text passes."""
        states, count = self.item * positions * self.model.width, len(self.model.blocks)
        least = least_places(count)
        parts = max(-(-least * states // round(LEAST_STATES_FACTOR * self._states_room())), 1)
        chosen = segments(count, max(self._states_room() * parts // max(states, 1), least))
        return sum(len(each) - 1 for each in chosen[:-1]) / count, parts

    # memory

    def on(self, device_bytes: float, ram: float = 0.0, *, written: float = 0.0, scratch: float = 0.0) -> Held:
        """Returns what is held, where the first part is on the device: on the CPU it takes RAM."""
        return Held(device_bytes, ram, written, scratch) if self.gpu else Held(0, device_bytes + ram, written, scratch)

    def held_evaluation(self, text: TextSize, *, loaded: bool = False) -> Held:
        """Returns what an evaluation holds: the model or a block of it, two heads, activations and logits.

        `loaded` says that the model is in memory in any case.
        """
        logits = LOGIT_COPIES * self.logit_positions() * self.model.vocabulary
        activations = 2 * self.evaluation_positions() * self.model.largest.activations
        weights = self.model.weights
        if not loaded and not self.whole:
            states = min(text.positions * self.model.width, self._states_room() // NUMBER)
            outside = max(self.model.head, self.model.embedding)
            weights = self.model.largest.weights + outside + states
        held = NUMBER * (weights + self.model.head + logits + activations)
        ahead = NUMBER * self.model.largest.weights if self.gpu else 0.0
        return self.on(held, ahead, scratch=NUMBER * text.predicted * self.model.width)

    def held_audit(self, positions: int, at_once: int, *, streamed: bool) -> Held:
        """Returns what an audit holds: the model or a block, states, one batch of a backward pass, and logits."""
        largest = self.model.largest
        matrix = max((each.weights for each in largest.maps), default=0)
        logits = LOGIT_COPIES * NUMBER * LOGIT_POSITIONS * self.model.vocabulary
        batch = self.item * SAVED_PER_BLOCK * self.model.width * at_once
        held = max(batch, logits) + 2 * NUMBER * matrix + self.kept_errors(streamed=streamed)
        state, blocks = self.item * self.model.width, len(self.model.blocks)
        if not streamed:
            return self.on(held + blocks * state * at_once + self.item * self.model.weights, NUMBER * largest.weights)
        states = blocks * state * positions
        outside = self.item * max(self.model.embedding, self.model.head)
        held += min(states, round(LEAST_STATES_FACTOR * self._states_room())) + outside + self.item * largest.weights
        return self.on(held + state * positions, NUMBER * largest.weights)

    def kept_errors(self, *, streamed: bool) -> int:
        """Returns the bytes of the errors of layers that an audit keeps while batches pass; 0 if they are too many."""
        blocks = [self.model.largest] if streamed else self.model.blocks
        size = NUMBER * sum(block.rounded for block in blocks)
        return size if size <= KEPT_ERRORS_BYTES else 0

    def held_rounding(self, plan: Plan, text: TextSize | None, *, written: bool) -> Held:
        """Returns what rounding holds: a block, the states of the text, H and its factor, and codes to be written."""
        largest, item = self.model.largest, NUMBER if plan.learning is not None else self.item
        matrix = max((each.weights for each in largest.maps), default=0)
        layer = 6 * NUMBER * matrix + (1 + BLOCKS_BEHIND) * largest.rounded
        disk = float(plan.size_bytes) if written else 0.0
        waiting = 2 * largest.stored + BLOCKS_BEHIND * largest.rounded
        if text is None:
            return self.on(layer, waiting, written=disk)
        outside = 3 * item * text.positions * self.model.width + item * self.model.embedding
        apart = self.states_apart(plan, text)
        activations = 2 * item * self.block_positions(text) * largest.activations
        held = item * largest.weights + NUMBER * largest.rounded + (0 if apart else outside)
        inputs = [columns**2 for columns in largest.inputs.values()] if plan.reads_text else []
        factor = NUMBER * (sum(inputs) + FACTOR_COPIES * max(inputs, default=0)) + layer
        held += max(factor, activations + NUMBER * sum(inputs))
        return self.on(held, waiting + (outside if apart else item * self.model.embedding), written=disk)

    def states_apart(self, plan: Plan, text: TextSize) -> bool:
        """Returns whether the hidden states of a long text stay in main memory while blocks are rounded."""
        states = 3 * self.item * text.positions * self.model.width
        return self.gpu and plan.learning is None and states > GPU_WALK_STATES_BYTES
