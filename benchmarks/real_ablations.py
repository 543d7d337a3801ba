"""Ablations of `fair`: the same policy with one ingredient left out, for `real.py run --policies fair@all#squared …`.

What follows # in a policy says what is left out inside fairbits while the policy runs. Other ablations are options of
the policy itself, such as `fair:model_steps=0@all`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from fairbits.quantization import execute as execution
from fairbits.quantization.learned import learn as distillation
from fairbits.quantization.learned import output_importance as output_gradients
from fairbits.quantization.learned.adam_cpu import BETAS, EPSILON
from fairbits.quantization.learned.learn_block import BlockBatch
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET, LearnableCodes
from fairbits.quantization.learned.optimizer import SCALE_RATE

MARK = "#"
TITLES = {
    "fair:model_steps=0@all": "blocks alone",
    "fair:block_steps=0@all": "end to end alone",
    "fair:objective=mean@all": "equal weights of languages",
    "fair@all#squared": "squared error of blocks",
    "fair@all#relative": "all channels alike in the error of blocks",
    "fair@all#weighted": "all positions by their size in the error of blocks",
    "fair@all#adam": "Adam in float32, end to end and in blocks",
}
"""The ablations, and what a reader calls them."""


def split(policy: str) -> tuple[str, str]:
    """Returns a policy, and what is left out of it: an empty string if nothing is.

    >>> split("fair@all#squared"), split("gptq")
    (('fair@all', 'squared'), ('gptq', ''))
    """
    base, _, left_out = policy.partition(MARK)
    return base, left_out


@contextmanager
def left_out(name: str) -> Iterator[None]:
    """Leaves an ingredient out within a `with` statement."""
    if name and name not in ABLATIONS:
        raise ValueError(f"{name} cannot be left out; choose from {', '.join(ABLATIONS)}")
    with ExitStack() as stack:
        for ablation in ABLATIONS[name]() if name else ():
            stack.enter_context(ablation)
        yield


def squared() -> Iterator[AbstractContextManager[object]]:
    """Yields patches that make the error of a block Σ‖ŷ − y‖²."""

    def squared_error(batch: BlockBatch) -> Tensor:
        return (batch._at_text(batch.paused.output()) - batch._at_text(batch.target)).float().square().sum(1)

    def energy(batch: BlockBatch) -> Tensor:
        return batch._at_text(batch.target).float().square().sum(1)

    yield patch.object(BlockBatch, "squared_error", squared_error)
    yield patch.object(BlockBatch, "energy", energy)


def relative() -> Iterator[AbstractContextManager[object]]:
    """Yields a patch that gives all channels the same importance."""
    measured = execution.output_importance

    def alike(*args: object, **named: object) -> dict[int, Tensor]:
        return {block: torch.ones_like(importance) for block, importance in measured(*args, **named).items()}  # type: ignore[arg-type]

    yield patch.object(execution, "output_importance", alike)


def weighted() -> Iterator[AbstractContextManager[object]]:
    """Yields patches that make the error of a block Σ h (ŷ − y)², with h = E[g²]."""

    def sizes(batch: BlockBatch) -> Tensor:
        return torch.ones(len(batch.at), device=batch.target.device)

    yield patch.object(BlockBatch, "_sizes", property(sizes))
    yield patch.object(output_gradients, "squared_sizes", lambda states: torch.ones_like(states[:, 0]))


def adam() -> Iterator[AbstractContextManager[object]]:
    """Yields a patch that learns with Adam in float32."""
    yield patch.object(distillation, "CodeOptimizer", FloatAdam)


class FloatAdam:
    """Adam with offsets, gradients and moments in float32, as far as `distill` needs it."""

    def __init__(self, codes: Mapping[str, LearnableCodes], *, rate: float, seed: int = 0) -> None:
        del seed
        self._codes, self._share = codes, 0.0
        for learned in codes.values():
            learned.offsets.data = learned.offsets.data.float()
        groups = [
            {"params": [learned.offsets for learned in codes.values()], "peak": rate},
            {"params": [learned.log_scales for learned in codes.values()], "peak": SCALE_RATE * rate},
        ]
        self._adam = torch.optim.Adam(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True)

    def begin_step(self, share: float) -> None:
        """Begins a step at a share of the peak rate."""
        self._share = share

    def end_step(self) -> bool:
        """Updates everything."""
        for group in self._adam.param_groups:
            group["lr"] = self._share * group["peak"]
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        for learned in self._codes.values():
            learned.offsets.data.clamp_(-MAX_OFFSET, MAX_OFFSET)
        return True

    @contextmanager
    def update_in_backward(self) -> Iterator[None]:
        """Leaves the gradients until the step ends."""
        yield


ABLATIONS: Mapping[str, Callable[[], Iterator[AbstractContextManager[object]]]] = {
    "squared": squared,
    "relative": relative,
    "weighted": weighted,
    "adam": adam,
}
