"""Document states: the mean hidden state of every document before the first block and after every block of a model.

For any model that can be audited: of an encoder-decoder model both stacks are read, each on its part of the text. The
text passes as it does where a loss is measured; special tokens and padding do not count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.core.array_checks import Floats
from fairbits.core.tensors import first_tensor
from fairbits.forward.batches import Batch, batches
from fairbits.forward.body_and_head import positions_per_batch, split_head
from fairbits.forward.recorder import as_rows, removed_hooks, side_by_side
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.architecture import Architecture
from fairbits.stats.frame import LanguageFrame
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.laboratory import ModelLab

SAMPLED = 2048
"""About how many single tokens are kept per layer."""
PIVOT = "eng_Latn"
"""The language that others are aligned with, where the text has it."""


@dataclass(frozen=True)
class StateLayer:
    """A place where states are read: after a block, or before the first block of a stack (`block` −1).

    `block` counts within its stack.
    """

    name: str
    stack: str
    block: int
    module: str

    @property
    def is_block(self) -> bool:
        """Whether the states are those after a block."""
        return self.block >= 0


@dataclass(frozen=True, eq=False)
class DocumentStates:
    """The mean state of every document at every layer, and the states of some of its tokens.

    `lang` and `document` have an entry per row of `means`. Documents with the same number have the same content.
    """

    layers: tuple[StateLayer, ...]
    lang: NDArray[np.str_]
    document: NDArray[np.intp]
    means: tuple[Floats, ...]  # by layer, (documents, width)
    tokens: tuple[Floats, ...]  # by layer, (sampled tokens, width)
    token_rows: tuple[NDArray[np.intp], ...]  # by layer, the row of the document of each sampled token

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, sorted."""
        return tuple(np.unique(self.lang).tolist())

    @property
    def pivot(self) -> str:
        """English where the text has it, else the first language."""
        return PIVOT if PIVOT in self.languages else self.languages[0]

    @property
    def blocks(self) -> list[int]:
        """The numbers of the layers that are after a block."""
        return [number for number, layer in enumerate(self.layers) if layer.is_block]

    def stack_blocks(self) -> dict[str, list[int]]:
        """Returns the layers after a block of every stack, in the order of the forward pass."""
        stacks: dict[str, list[int]] = {}
        for number in self.blocks:
            stacks.setdefault(self.layers[number].stack, []).append(number)
        return stacks

    def by_language(self, layer: int) -> Floats:
        """Returns the means of a layer as (languages, documents, width); the text must be parallel."""
        order = np.lexsort((self.document, self.lang))
        means: Floats = self.means[layer][order].reshape(len(self.languages), -1, self.means[layer].shape[1])
        return means


def parallel_text(lab: ModelLab) -> TokenizedText:
    """Returns parallel text of a lab's languages, both splits: its own if that is parallel, else the declaration.

    Nothing is calibrated on it, so both splits are used, up to the tokens of both.
    """
    corpus = lab.corpus if lab.corpus.parallel else udhr(lab.corpus.evaluation)
    documents = {code: (*corpus.calibration[code], *corpus.evaluation[code]) for code in corpus.evaluation}
    setting = lab.setting
    request = replace(setting.evaluation_text, tokens=setting.tokens + setting.calibration)
    return tokenize_corpus(lab.checkpoint, Corpus(corpus.name, {}, documents, parallel=True), request=request)


def states_note(lab: ModelLab) -> tuple[str, ...]:
    """Returns a note where the states are those of other text than the damage."""
    if lab.corpus.parallel:
        return ()
    return (
        f"{lab.corpus.name} is not parallel: hidden states are those of the declaration in the same languages, all "
        f"else is measured on {lab.corpus.name}.",
    )


def state_layers(architecture: Architecture) -> tuple[StateLayer, ...]:
    """Returns the layers of a model: the embeddings and the blocks of every stack, in the order of the forward pass."""
    stacks = list(dict.fromkeys(block.stack for block in architecture.blocks))
    layers = []
    for stack in stacks:
        prefix = f"{stack} " if len(stacks) > 1 else ""
        modules = [block.module for block in architecture.blocks if block.stack == stack]
        layers.append(StateLayer(f"{prefix}embedding", stack, -1, modules[0]))
        layers += [StateLayer(f"{prefix}block {i}", stack, i, module) for i, module in enumerate(modules)]
    return tuple(layers)


@torch.no_grad()
def document_states(lab: ModelLab, text: TokenizedText) -> DocumentStates:
    """Returns the states of a text in the lab's model with the weights that it has now, from one pass."""
    model, layers = lab.trial.swapped.model, state_layers(lab.checkpoint.architecture)
    modules = dict(model.named_modules())
    per_window = max(1, SAMPLED // len(text.windows))
    sums = [_StateSums(layer, len(text.lang), per_window) for layer in layers]
    split = split_head(model, next(batches(text, positions=1)).on(model.device))
    done = 0
    with removed_hooks() as handles:
        handles += [layer_sums.attach(modules[layer_sums.layer.module]) for layer_sums in sums]
        for batch in batches(text, positions=positions_per_batch(model, split)):
            for layer_sums in sums:
                layer_sums.batch = batch
            split.body(batch.on(model.device))
            done += len(batch.document)
            lab.report("reading hidden states", done, len(text.windows))
    means, tokens, rows = zip(*(layer_sums.result() for layer_sums in sums), strict=True)
    return DocumentStates(layers, text.lang, text.document, means, tokens, rows)


def rounded_states(lab: ModelLab, text: TokenizedText, bits: int) -> tuple[DocumentStates, LanguageFrame]:
    """Returns the states with all blocks rounded to nearest, and the damage to the evaluation text."""
    with lab.trial.swapped:
        for block in range(lab.n_blocks):
            lab.replace_rounded(block, lab.scheme(bits))
        return document_states(lab, text), lab.damage()


class _StateSums:
    """The sums of one layer; `batch` is the one that passes now."""

    batch: Batch

    def __init__(self, layer: StateLayer, documents: int, per_window: int) -> None:
        self.layer, self._per_window = layer, per_window
        self._count = torch.zeros(documents, dtype=torch.float64)
        self._sum: Tensor | None = None
        self._tokens: list[Tensor] = []
        self._rows: list[Tensor] = []

    def attach(self, module: nn.Module) -> RemovableHandle:
        if self.layer.is_block:
            return module.register_forward_hook(self._after)
        return module.register_forward_pre_hook(self._before, with_kwargs=True)

    def result(self) -> tuple[Floats, Floats, NDArray[np.intp]]:
        assert self._sum is not None, f"{self.layer.name} was not passed"
        means = self._sum / self._count.clamp(min=1)[:, None]
        return means.numpy(), torch.cat(self._tokens).double().numpy(), torch.cat(self._rows).numpy().astype(np.intp)

    def _before(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._add(first_tensor(args or tuple(kwargs.values())))

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._add(first_tensor((output,)))

    def _add(self, x: Tensor) -> None:
        text = self.batch.positions(self.layer.stack).text
        x = as_rows(side_by_side(x, text), text).detach().float().cpu()
        if self._sum is None:
            self._sum = torch.zeros(len(self._count), x.shape[-1], dtype=torch.float64)
        self._count.index_add_(0, self.batch.document, text.double().sum(1))
        self._sum.index_add_(0, self.batch.document, torch.einsum("rt,rtw->rw", text.double(), x.double()))
        for row, positions in _spread(text, self._per_window):
            self._tokens.append(x[row, positions].clone())
            self._rows.append(self.batch.document[row].expand(len(positions)))


def _spread(text: Tensor, most: int) -> Iterator[tuple[int, Tensor]]:
    """Yields for every window at most this many positions of its text, evenly spread."""
    for row, window in enumerate(text):
        positions = window.nonzero()[:, 0]
        chosen = torch.linspace(0, max(len(positions) - 1, 0), min(most, len(positions)) + 2)[1:-1].round().long()
        yield row, positions[torch.unique_consecutive(chosen)]


def standardize(X: Floats) -> Floats:
    """Returns states (…, width) with mean 0 and variance 1 in every coordinate, so that a few huge ones do not decide.

    Coordinates that do not vary stay 0.
    """
    axes: Sequence[int] = tuple(range(X.ndim - 1))
    centred = X - X.mean(axis=axes, keepdims=True)
    spread = centred.std(axis=axes, keepdims=True)
    scaled: Floats = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12 * spread.max())
    return scaled
