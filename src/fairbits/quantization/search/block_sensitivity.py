"""The damage of each block to each language at each width: predicted in one pass, or measured by swapping weights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fairbits.auditing.damage import predicted_damage
from fairbits.core.array_checks import Floats
from fairbits.core.progress import Progress
from fairbits.forward.collect import collect_statistics, document_losses
from fairbits.forward.windows import Text
from fairbits.models.architecture.records import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import rounding_error
from fairbits.models.scales.scheme import Group, Scheme, within_rows
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.evidence import Sensitivity, is_rounded
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

NOT_ROUNDED = 0
"""The width that stands for a block with its original weights."""
PER_CHANNEL = "the sensitivity of blocks was determined with one scale per channel, not per tensor"


def schemes_for(widths: Sequence[int], group: Group) -> tuple[tuple[Scheme, ...], tuple[str, ...]]:
    """Returns absmax rounding to nearest at each width, and a note if another group is used.

    An exact clip without input statistics can destroy a block of a real language model; a plan's own clip has them.
    """
    plain = Scheme(group=within_rows(group), clip="absmax", grid="twos")
    schemes = tuple(replace(plain, bits=bits) for bits in widths)
    return schemes, (PER_CHANNEL,) if group == "tensor" else ()


def predicted_sensitivity(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    request: TextRequest,
    widths: Sequence[int],
    group: Group,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Sensitivity:
    """Returns the predicted damage of every block at every width, from one pass over the calibration text.

    Linear layers that policies do not round are excluded.
    """
    schemes, notes = schemes_for(widths, group)
    measured = collect_statistics(
        checkpoint, corpus, request=request, schemes=schemes, device=device, progress=progress
    )
    weights = checkpoint.architecture.weights
    block_of = {name: block for name in measured.linears if (block := weights[name].block) is not None}
    table = np.zeros((len(measured.languages), checkpoint.architecture.n_blocks, len(schemes)))
    for i, scheme in enumerate(schemes):
        found = predicted_damage(measured, scheme, form="kronecker", block_of=block_of)
        counted = [j for j, name in enumerate(found.linears) if is_rounded(weights[name])]
        np.add.at(table[:, :, i].T, np.array(found.blocks)[counted], found.by_linear.T[counted])
    return Sensitivity("predicted", measured.languages, tuple(widths), table, notes)


class WidthTrial:
    """A loaded model whose blocks can each have any width, by absmax rounding to nearest."""

    def __init__(self, checkpoint: Checkpoint, text: Text, *, group: Group, device: str = "cpu") -> None:
        """Loads the model."""
        self._trial = LossTrial(checkpoint, text, device=device)
        self._group = group
        self._weights = [list(filter(is_rounded, block.linears.values())) for block in checkpoint.architecture.blocks]
        self._now = [NOT_ROUNDED] * len(self._weights)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the text."""
        return self._trial.text.languages

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return len(self._now)

    def damage(self, bits: Sequence[int] | Mapping[int, int]) -> Floats:
        """Returns the added nats per token of each language with these widths; blocks without one are NOT_ROUNDED."""
        wanted = [bits.get(i, NOT_ROUNDED) for i in range(self.n_blocks)] if isinstance(bits, Mapping) else list(bits)
        for block, width in enumerate(wanted):
            if width != self._now[block]:
                self._set(block, width)
        return self._trial.damage()

    def _set(self, block: int, bits: int) -> None:
        self._now[block] = bits
        if bits == NOT_ROUNDED:
            self._trial.swapped.restore(each.name for each in self._weights[block])
            return
        ((scheme,), _) = schemes_for((bits,), self._group)
        self._trial.replace_rounded(self._weights[block], scheme)


def measured_sensitivity(
    trial: WidthTrial, *, widths: Sequence[int], group: Group, progress: Progress | None = None
) -> Sensitivity:
    """Returns the added nats per token of each language with each block alone at each width."""
    table = np.zeros((len(trial.languages), trial.n_blocks, len(widths)))
    for block in range(trial.n_blocks):
        for i, bits in enumerate(widths):
            table[:, block, i] = trial.damage({block: bits})
            if progress is not None:
                progress("measuring blocks", block * len(widths) + i + 1, trial.n_blocks * len(widths))
    return Sensitivity("measured", trial.languages, tuple(widths), table, schemes_for(widths, group)[1])


def measured_damage(
    trial: WidthTrial, allocations: Sequence[Sequence[int]], *, progress: Progress | None = None
) -> Floats:
    """Returns the added nats per token (allocations, languages) of whole allocations, one width per block each."""
    rows = []
    for bits in allocations:
        rows.append(trial.damage(bits))
        if progress is not None:
            progress("measuring sets of blocks", len(rows), len(allocations))
    return np.array(rows)


class LossTrial:
    """A loaded model, and its loss on a text before any weight was replaced.

    `reference_nll` and `predicted` have one entry per document: the loss in nats, and the predicted tokens.
    """

    def __init__(self, checkpoint: Checkpoint, text: Text, *, device: str = "cpu") -> None:
        """Loads the model and measures its loss."""
        self.swapped, self.text = SwappedModel.load(checkpoint, device=device), text
        self.reference_nll, self.predicted = document_losses(self.swapped.model, text)

    def replace_rounded(self, weights: Iterable[Weight], scheme: Scheme) -> None:
        """Replaces the weights of linear layers by rounded ones."""
        for weight in weights:
            W = matrix(self.swapped.checkpoint, weight)
            self.swapped.replace({weight.name: rounding_error(W, scheme).add_(W)})

    def added_nll(self) -> Floats:
        """Returns the loss that the replaced weights add to every document, in nats."""
        return document_losses(self.swapped.model, self.text)[0] - self.reference_nll

    def damage(self) -> Floats:
        """Returns the loss that they add per predicted token of each language, in nats."""
        return per_token(self.added_nll(), self.predicted, self.text)


def per_token(nats: Floats, predicted: Floats, text: Text) -> Floats:
    """Returns Σ nats / Σ predicted tokens of each language."""
    languages, count = text.language_of, len(text.languages)
    share: Floats = np.bincount(languages, nats, count) / np.bincount(languages, predicted, count)
    return share
