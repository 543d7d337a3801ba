"""What each block costs each language at each width: predicted in one pass, or measured block by block."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fairbits.checks import Floats
from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.audit.damage import predicted_damage
from fairbits.measure.passes import probe
from fairbits.measure.passes.text import Text
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.groups import error_of
from fairbits.model.scheme import Group, Scheme, within_rows
from fairbits.progress import Progress
from fairbits.quantize.evidence import Sensitivity, is_rounded
from fairbits.quantize.rounding.layer import matrix
from fairbits.trials.swapped_model import Workbench

AS_IT_IS = 0
"""In place of a width: the block is not rounded."""


def schemes_for(widths: Sequence[int], group: Group) -> tuple[tuple[Scheme, ...], tuple[str, ...]]:
    """Returns rounding to nearest at each width, the largest weight being a level, and a note on what is not as asked.

    An exact clip that does not know the inputs can destroy a block of a real language model; a plan's own would not.
    """
    notes = ("what blocks cost was looked at with one step per channel, not per tensor",) if group == "tensor" else ()
    plain = Scheme(group=within_rows(group), clip="absmax", grid="twos")
    return tuple(replace(plain, bits=bits) for bits in widths), notes


def predicted_sensitivity(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    request: TextRequest,
    widths: Sequence[int],
    group: Group,
    progress: Progress | None = None,
) -> Sensitivity:
    """Returns the predicted damage of every block at every width, from one pass over the calibration text, on the CPU.

    Linear maps that policies do not round do not count.
    """
    schemes, notes = schemes_for(widths, group)
    measured = probe(checkpoint, corpus, request=request, schemes=schemes, progress=progress)
    weights = checkpoint.architecture.weights
    block_of = {name: block for name in measured.linears if (block := weights[name].block) is not None}
    table = np.zeros((len(measured.languages), checkpoint.architecture.n_blocks, len(schemes)))
    for i, scheme in enumerate(schemes):
        found = predicted_damage(measured, scheme, form="kronecker", block_of=block_of)
        counted = [j for j, name in enumerate(found.linears) if is_rounded(weights[name])]
        np.add.at(table[:, :, i].T, np.array(found.blocks)[counted], found.by_linear.T[counted])
    return Sensitivity("predicted", measured.languages, tuple(widths), table, notes)


class Trial:
    """A workbench on which every block can have any width, rounded to nearest with the largest weight as a level."""

    def __init__(self, checkpoint: Checkpoint, text: Text, *, group: Group, device: str = "cpu") -> None:
        """Loads the model."""
        self._bench = Workbench(checkpoint, text, device=device)
        self._group = group
        self._maps = [list(filter(is_rounded, block.linears.values())) for block in checkpoint.architecture.blocks]
        self._now = [AS_IT_IS] * len(self._maps)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the text."""
        return self._bench.text.languages

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return len(self._now)

    def damage(self, bits: Sequence[int] | Mapping[int, int]) -> Floats:
        """Returns the added nats per token of each language with these widths, AS_IT_IS for blocks that have none."""
        wanted = [bits.get(i, AS_IT_IS) for i in range(self.n_blocks)] if isinstance(bits, Mapping) else list(bits)
        for block, width in enumerate(wanted):
            if width != self._now[block]:
                self._set(block, width)
        return self._bench.damage()

    def _set(self, block: int, bits: int) -> None:
        self._now[block] = bits
        if bits == AS_IT_IS:
            self._bench.put_back(each.name for each in self._maps[block])
            return
        ((scheme,), _) = schemes_for((bits,), self._group)
        for each in self._maps[block]:
            W = matrix(self._bench.checkpoint, each)
            self._bench.put(each.name, error_of(W, scheme).add_(W))


def measured_sensitivity(
    trial: Trial, *, widths: Sequence[int], group: Group, progress: Progress | None = None
) -> Sensitivity:
    """Returns the added nats per token of each language with each block alone at each width."""
    table = np.zeros((len(trial.languages), trial.n_blocks, len(widths)))
    for block in range(trial.n_blocks):
        for i, bits in enumerate(widths):
            table[:, block, i] = trial.damage({block: bits})
            if progress is not None:
                progress("measuring blocks", block * len(widths) + i + 1, trial.n_blocks * len(widths))
    return Sensitivity("measured", trial.languages, tuple(widths), table, schemes_for(widths, group)[1])


def measured_damage(trial: Trial, allocations: Sequence[Sequence[int]], *, progress: Progress | None = None) -> Floats:
    """Returns the added nats per token (allocations, languages) of whole allocations, one width per block each."""
    rows = []
    for bits in allocations:
        rows.append(trial.damage(bits))
        if progress is not None:
            progress("measuring sets of blocks", len(rows), len(allocations))
    return np.array(rows)
