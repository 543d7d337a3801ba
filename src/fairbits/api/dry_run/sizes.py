"""Sizes of a model and of a text, from the headers of the files and from token counts; no weight is read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from fairbits.forward.windows import NO_LABEL, TokenizedText, Window
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.text_request import TextRequest

CLIP_TOKENS = 32
"""About how many tokens the transcript of a clip of ten seconds has."""
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""The names that configurations have for the number of experts."""


@dataclass(frozen=True)
class MapSize:
    """A linear layer (out, columns); `share` of the positions reaches it, which is below 1 for an expert."""

    name: str
    out: int
    columns: int
    sees: str | None
    rounded: bool
    share: float = 1.0

    @property
    def weights(self) -> int:
        """The number of weights."""
        return self.out * self.columns


@dataclass(frozen=True)
class BlockSize:
    """A block: its linear layers, all its weights, their bytes in the files, and width and heads of attention."""

    maps: tuple[MapSize, ...]
    weights: int
    stored: int
    attention: int
    heads: int

    @cached_property
    def flops_per_position(self) -> float:
        """Floating-point operations of the linear layers for one position."""
        return sum(2 * each.weights * each.share for each in self.maps)

    @cached_property
    def inputs(self) -> dict[str, int]:
        """The number of columns of each input of rounded maps; maps with the same input share it."""
        return {each.sees: each.columns for each in self.maps if each.rounded and each.sees is not None}

    @cached_property
    def rounded(self) -> int:
        """The number of weights that policies round."""
        return sum(each.weights for each in self.maps if each.rounded)

    @cached_property
    def activations(self) -> int:
        """About how many numbers the block computes for one position: outputs of maps, each with what is made of it."""
        return round(sum((each.out + each.columns) * each.share for each in self.maps))


@dataclass(frozen=True)
class ModelSize:
    """A model: `weights` and `stored` bytes include embedding and head; `head` weights compute the logits."""

    blocks: tuple[BlockSize, ...]
    width: int
    vocabulary: int
    head: int
    embedding: int
    weights: int
    stored: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "ModelSize":
        """Returns the sizes of a checkpoint."""
        architecture, config = checkpoint.architecture, checkpoint.config.get_text_config()
        head = architecture.head
        embedding = [each for each in architecture.weights.values() if each.role == "embedding"]
        tensors = checkpoint.tensors
        blocks = tuple(
            BlockSize(
                tuple(_maps(block.linears.values(), config)),
                sum(prod(tensors[name].shape) for name in block.weights),
                sum(tensors[name].nbytes for name in block.weights),
                max((each.shape[1] for each in block.linears.values() if each.role == "attention_out"), default=0),
                int(getattr(config, "num_attention_heads", 0) or 1),
            )
            for block in architecture.blocks
        )
        return cls(
            blocks=blocks,
            width=checkpoint.hidden_size,
            vocabulary=int(config.vocab_size),
            head=0 if head is None else prod(head.shape),
            embedding=sum(prod(each.shape) for each in embedding),
            weights=sum(prod(info.shape) for info in tensors.values()),
            stored=sum(info.nbytes for info in tensors.values()),
        )

    @cached_property
    def flops_per_position(self) -> float:
        """Floating-point operations of all blocks for one position, without attention scores and head."""
        return sum(block.flops_per_position for block in self.blocks)

    @cached_property
    def largest(self) -> BlockSize:
        """The block with the most weights."""
        return max(self.blocks, key=lambda block: block.weights)


@dataclass(frozen=True)
class Batches:
    """How windows become batches: their number, positions with padding, and Σ positions · length, for attention."""

    count: int
    positions: int
    squares: int

    def share(self, share: float) -> "Batches":
        """Returns a share of the batches, at least one.

        >>> Batches(4, 100, 800).share(0.5)
        Batches(count=2, positions=50, squares=400)
        """
        count = max(round(self.count * share), 1)
        own = count / max(self.count, 1)
        return Batches(count, round(own * self.positions), round(own * self.squares))


@dataclass(frozen=True)
class TextSize:
    """The windows of a text: their lengths in ascending order, and how many of their positions predict a token."""

    lengths: tuple[int, ...]
    predicted: int
    languages: int

    @classmethod
    def of(cls, text: TokenizedText, windows: Iterable[Window] | None = None) -> "TextSize":
        """Returns the sizes of a text, or of some of its windows."""
        chosen = tuple(text.windows if windows is None else windows)
        predicted = sum(label != NO_LABEL for window in chosen for label in window.main.labels)
        return cls(tuple(sorted(window.length for window in chosen)), predicted, len(text.languages))

    @classmethod
    def requested(cls, request: TextRequest, languages: int, clip: int | None = None) -> "TextSize":
        """Returns the size of a text that has what is requested, all in whole windows; nothing is read.

        Of speech, `clip` is the number of positions that the encoder has for one, however long it is.
        """
        if clip is not None:
            clips = -(-request.tokens // CLIP_TOKENS) * languages
            return cls((clip,) * clips, request.tokens * languages, languages)
        windows = -(-request.tokens // request.sequence) * languages
        return cls((min(request.sequence, request.tokens),) * windows, request.tokens * languages, languages)

    @property
    def positions(self) -> int:
        """The number of positions, without padding."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """The length of the longest window."""
        return self.lengths[-1] if self.lengths else 0

    def batches(self, positions: int) -> Batches:
        """Returns the batches of at most this many positions, as `fairbits.forward.batches` makes them.

        >>> TextSize((2, 3, 4), 9, 1).batches(6)
        Batches(count=2, positions=10, squares=34)
        """
        found = list(_cut(self.lengths, positions))
        padded = [(rows * longest, rows * longest**2) for rows, longest in found]
        return Batches(len(found), sum(each for each, _ in padded), sum(each for _, each in padded))


def _cut(lengths: Sequence[int], positions: int) -> Iterator[tuple[int, int]]:
    """Yields the rows of every batch and its longest window."""
    rows, longest = 0, 0
    for length in lengths:
        if rows and (rows + 1) * length > positions:
            yield rows, longest
            rows = 0
        rows, longest = rows + 1, length
    if rows:
        yield rows, longest


def _maps(linears: Iterable[Weight], config: object) -> Iterator[MapSize]:
    experts = next((n for name in EXPERT_COUNTS if (n := getattr(config, name, None))), 0)
    share = min(int(getattr(config, "num_experts_per_tok", None) or experts) / experts, 1.0) if experts else 1.0
    for each in linears:
        out, columns = each.shape[-2:]
        is_expert = each.expert is not None or each.stacked is not None
        yield MapSize(
            each.name,
            out * (each.stacked or 1),
            columns,
            each.sees,
            each.is_quantizable,
            share if is_expert else 1.0,
        )
