"""The damage of each block to each language by its bits: predicted in one pass, or measured by swapping weights."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fairbits.auditing.damage import predicted_damage
from fairbits.core.array_checks import Floats
from fairbits.core.progress import Progress
from fairbits.forward.statistics import collect_statistics, document_losses
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import rounding_error
from fairbits.models.scales.scheme import Group, Scheme, within_rows
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.evidence import Sensitivity
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.text.corpus import Corpus, TextRequest

NOT_ROUNDED = 0  # the bits that stand for a block with its original weights
PER_CHANNEL = "block sensitivity was determined with one scale per channel, not per tensor"


def nearest_scheme(bits: int, group: Group) -> Scheme:
    """Returns absmax rounding to nearest: an exact clip that ignores the inputs can destroy a block."""
    return Scheme(bits, group=within_rows(group), clip="absmax", grid="twos")


def predicted_sensitivity(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    request: TextRequest,
    bits: Sequence[int],
    group: Group,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Sensitivity:
    """Returns the predicted damage of every block by its bits, from one pass, for layers that policies round."""
    schemes = tuple(nearest_scheme(width, group) for width in bits)
    measured = collect_statistics(
        checkpoint, corpus, request=request, schemes=schemes, device=device, progress=progress
    )
    weights = checkpoint.architecture.weights
    block_of = {name: block for name in measured.linears if (block := weights[name].block) is not None}
    table = np.zeros((len(measured.languages), checkpoint.architecture.n_blocks, len(schemes)))
    for i, scheme in enumerate(schemes):
        damage = predicted_damage(measured, scheme, form="kronecker", block_of=block_of)
        counted = [j for j, name in enumerate(damage.linears) if weights[name].is_quantizable]
        np.add.at(table[:, :, i].T, np.array(damage.blocks)[counted], damage.by_linear.T[counted])
    return Sensitivity("predicted", measured.languages, tuple(bits), table, (PER_CHANNEL,) * (group == "tensor"))


class LossTrial:
    """A loaded model, and the loss and predicted tokens of every document before any weight was replaced."""

    def __init__(self, checkpoint: Checkpoint, text: TokenizedText, *, device: str = "cpu") -> None:
        self.swapped, self.text = SwappedModel.load(checkpoint, device=device), text
        self.reference_nll, self.predicted = document_losses(self.swapped.model, text)

    def replace_rounded(self, weights: Iterable[Weight], scheme: Scheme) -> None:
        for weight in weights:
            W = matrix(self.swapped.checkpoint, weight)
            self.swapped.replace({weight.name: rounding_error(W, scheme).add_(W)})

    def added_nll(self) -> Floats:
        """Returns the loss that the replaced weights add to every document, in nats."""
        return document_losses(self.swapped.model, self.text)[0] - self.reference_nll

    def damage(self) -> Floats:
        """Returns the loss that they add per predicted token of each language, in nats."""
        return per_token(self.added_nll(), self.predicted, self.text)


def per_token(nats: Floats, predicted: Floats, text: TokenizedText) -> Floats:
    """Returns Σ nats / Σ predicted tokens of each language."""
    languages, count = text.language_of, len(text.languages)
    share: Floats = np.bincount(languages, nats, count) / np.bincount(languages, predicted, count)
    return share


class BitsTrial:
    """A loaded model whose blocks can each have any number of bits, by absmax rounding to nearest."""

    def __init__(self, checkpoint: Checkpoint, text: TokenizedText, *, group: Group, device: str = "cpu") -> None:
        self._trial, self.group = LossTrial(checkpoint, text, device=device), group
        self._weights = [
            [linear for linear in block.linears.values() if linear.is_quantizable]
            for block in checkpoint.architecture.blocks
        ]
        self.bits = [NOT_ROUNDED] * len(self._weights)

    @property
    def languages(self) -> tuple[str, ...]:
        return self._trial.text.languages

    def damage(self, bits: Sequence[int] | Mapping[int, int]) -> Floats:
        """Returns the added nats per token of each language with these bits; blocks without them are NOT_ROUNDED."""
        if isinstance(bits, Mapping):
            bits = [bits.get(block, NOT_ROUNDED) for block in range(len(self.bits))]
        for block, (width, before) in enumerate(zip(bits, self.bits, strict=True)):
            if width == before:
                continue
            if width == NOT_ROUNDED:
                self._trial.swapped.restore(weight.name for weight in self._weights[block])
            else:
                self._trial.replace_rounded(self._weights[block], nearest_scheme(width, self.group))
            self.bits[block] = width
        return self._trial.damage()


def measured_sensitivity(trial: BitsTrial, *, bits: Sequence[int], progress: Progress | None = None) -> Sensitivity:
    """Returns the added nats per token of each language with each block alone at each number of bits."""
    blocks = len(trial.bits)
    table = np.zeros((len(trial.languages), blocks, len(bits)))
    for block in range(blocks):
        for i, width in enumerate(bits):
            table[:, block, i] = trial.damage({block: width})
            if progress is not None:
                progress("measuring blocks", block * len(bits) + i + 1, blocks * len(bits))
    return Sensitivity("measured", trial.languages, tuple(bits), table, (PER_CHANNEL,) * (trial.group == "tensor"))


def measured_damage(
    trial: BitsTrial, allocations: Sequence[Sequence[int]], *, progress: Progress | None = None
) -> Floats:
    """Returns the added nats per token (allocations, languages) of whole allocations, which have bits per block."""
    rows = []
    for bits in allocations:
        rows.append(trial.damage(bits))
        if progress is not None:
            progress("measuring sets of blocks", len(rows), len(allocations))
    return np.array(rows)
