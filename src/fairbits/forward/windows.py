"""Documents as windows of token ids: the model's input, what it must predict, and which positions hold text."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, count_of
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.models.architecture.architecture import Task
from fairbits.text.corpus import TextRequest
from fairbits.text.documents import Documents, seeded_hash

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class EncodedDocument:
    """The token ids of a document and the bytes of each token; None if the tokenizer does not report spans."""

    ids: list[int]
    token_bytes: Floats | None


def document_encoder(tokenizer: "PreTrainedTokenizerBase") -> Callable[[list[str]], list[EncodedDocument]]:
    """Returns the function that encodes documents without special tokens; only "fast" tokenizers report spans."""
    has_spans = bool(getattr(tokenizer, "is_fast", False))

    def encode(documents: list[str]) -> list[EncodedDocument]:
        options = {"return_offsets_mapping": True} if has_spans else {}
        encoded = tokenizer(documents, add_special_tokens=False, verbose=False, **options)
        if not has_spans:
            return [EncodedDocument(ids, None) for ids in encoded["input_ids"]]
        rows = zip(documents, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [EncodedDocument(ids, bytes_by_token(document, spans)) for document, ids, spans in rows]

    return encode


def bytes_by_token(document: str, spans: Sequence[tuple[int, int]]) -> Floats:
    """Returns the bytes of UTF-8 of every token, given its span of characters; together they are the whole document.

    A character that several tokens share, such as the pieces of a byte-level vocabulary, is divided equally among
    them. A character of no token, such as a space that the tokenizer drops, belongs to the next token, and at the end
    to the last one. A token without characters shares the next one.
    """
    if not document or not spans:
        return np.zeros(len(spans))
    points = np.frombuffer(document.encode("utf-32-le"), dtype=np.uint32)
    size = 1.0 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    begin, end = np.array(spans, dtype=np.intp).T.clip(0, len(size))
    begin = np.minimum(begin, len(size) - 1)
    end = np.maximum(end, begin + 1)
    reached = np.maximum.accumulate(np.concatenate([[0], end]))
    begin = np.minimum(begin, reached[:-1])
    if reached[-1] < len(size):
        end[-1] = len(size)
    tokens = np.cumsum(
        np.bincount(begin, minlength=len(size) + 1) - np.bincount(end, minlength=len(size) + 1), dtype=np.intp
    )
    before = np.concatenate([[0.0], np.cumsum(size / tokens[:-1])])
    result: Floats = before[end] - before[begin]
    return result


NO_LABEL = -100
MASKED_SHARE = 0.15
ENCODED_AT_ONCE = 64
SEPARATOR = "\n\n"  # after a document that is joined with others
AMPLE = 128  # up to this many tokens, more text of one document is worth more than text of another
Ids = list[int]
Encoder = Callable[[list[str]], list[EncodedDocument]]


@dataclass(frozen=True)
class WindowPart:
    """Token ids of one stack; position t must predict `labels[t]`, and `text[t]` says whether it holds text."""

    ids: Ids
    text: list[bool]
    labels: Ids


@dataclass(frozen=True, eq=False)
class Sound:
    """A clip for an encoder of `positions` positions, of which the first `sounding` hold sound, the rest silence."""

    positions: int
    sounding: int
    features: "Callable[[], Tensor]"  # computes (bins, frames) when called: a corpus would fill the memory


@dataclass(frozen=True)
class Window:
    """A piece of a document that fits the model; `encoder` or `sound` is the input of its encoder, if it has one."""

    document: int
    main: WindowPart
    encoder: WindowPart | None = None
    sound: Sound | None = None

    @property
    def length(self) -> int:
        sound = self.sound.positions if self.sound else 0
        return max(len(self.main.ids), len(self.encoder.ids) if self.encoder else sound)

    @property
    def encoder_text(self) -> int:
        return sum(self.encoder.text) if self.encoder else self.sound.sounding if self.sound else 0


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The documents of all languages: `lang`, `document` and `size_bytes` have one entry per document.

    Documents with the same number have the same content. `estimated` is how many sizes are the document's size times
    the predicted share of its tokens, because the tokenizer does not report what each token stands for.
    """

    languages: tuple[str, ...]
    lang: NDArray[np.str_]
    document: NDArray[np.intp]
    size_bytes: Floats  # of the predicted tokens
    windows: tuple[Window, ...]
    padding: int
    estimated: int = 0
    notes: tuple[str, ...] = ()

    @property
    def language_of(self) -> NDArray[np.intp]:
        positions = {code: i for i, code in enumerate(self.languages)}
        return np.array([positions[code] for code in self.lang.tolist()], dtype=np.intp)


@dataclass(frozen=True)
class Cutter:
    """Cuts token ids into windows of at most `length` positions for a task."""

    task: Task
    length: int
    seed: int
    start: int | None  # precedes the text (in an encoder-decoder model, the decoder's start token)
    end: int | None  # follows the text in an encoder
    mask: int | None

    def predicts(self, tokens: int) -> bool:
        """Returns whether a document of this many tokens has anything to predict."""
        needs_two = self.task == "completion" or (self.task == "causal" and self.start is None)
        return tokens > needs_two

    def predicted_positions(self, document: int, tokens: int) -> Ids:
        """Returns which tokens of a document of this many tokens are predicted."""
        windows = self.windows(document, list(range(tokens)))  # positions instead of ids
        return [label for window in windows for label in window.main.labels if label != NO_LABEL]

    @property
    def room(self) -> int:
        """The tokens of text that a window of one stack has."""
        return self.length - (self.start is not None) - (self.end is not None)

    def windows(self, document: int, ids: Ids) -> Iterator[Window]:
        room = self.room
        if self.task == "completion":
            room *= 2  # half of the text goes to each stack
        for number, begin in enumerate(range(0, len(ids), room)):
            piece = ids[begin : begin + room]
            if self.task == "causal":
                yield Window(document, self._causal(piece))
            elif self.task == "masked":
                yield Window(document, self._masked(piece, document, number))
            else:
                yield from self._completion(document, piece)

    def _causal(self, piece: Ids) -> WindowPart:
        before = [] if self.start is None else [self.start]
        ids = before + piece
        return WindowPart(ids, [False] * len(before) + [True] * len(piece), [*ids[1:], NO_LABEL])

    def _masked(self, piece: Ids, document: int, number: int) -> WindowPart:
        rng = np.random.default_rng([self.seed, document, number])
        hidden = rng.random(len(piece)) < MASKED_SHARE
        hidden[rng.integers(len(piece))] = True  # at least one
        assert self.mask is not None
        shown = [self.mask if h else token for h, token in zip(hidden, piece, strict=True)]
        labels = [token if h else NO_LABEL for h, token in zip(hidden, piece, strict=True)]
        return _framed(shown, labels, self.start, self.end)

    def _completion(self, document: int, piece: Ids) -> Iterator[Window]:
        half = len(piece) // 2
        if half == 0:  # one token has no second half
            return
        target = piece[half:]
        encoder = _framed(piece[:half], [NO_LABEL] * half, None, self.end)
        assert self.start is not None
        shifted = [self.start, *target[:-1]]
        yield Window(document, WindowPart(shifted, [False] + [True] * (len(target) - 1), target), encoder)


def cutter_for(
    tokenizer: "PreTrainedTokenizerBase", task: Task, *, length: int, seed: int, start: int | None
) -> Cutter:
    """Returns the cutter for a model's text; `start` is the decoder's start token in an encoder-decoder model."""
    if task == "causal":
        return Cutter(task, length, seed, tokenizer.bos_token_id, None, None)
    if task == "masked":
        if tokenizer.mask_token_id is None:
            raise InputError("the tokenizer of this masked language model has no mask token; add it to its files")
        before = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
        after = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        return Cutter(task, length, seed, before, after, tokenizer.mask_token_id)
    if start is None:
        raise InputError("config.json has no decoder_start_token_id, which an encoder-decoder model needs")
    return Cutter(task, length, seed, start, tokenizer.eos_token_id, None)


def tokenize_documents(
    documents: Documents,
    encode: Encoder,
    cut: Cutter,
    *,
    request: TextRequest,
    parallel: bool,
    padding: int,
    least: int = LEAST_DOCUMENTS,
) -> TokenizedText:
    """Returns windows with about the requested number of tokens per language, from documents in a seeded random order.

    Many documents are more informative than long ones: beyond AMPLE tokens only the beginning is used, as far as the
    budget requires. Parallel documents are used whole, and in all languages or in none.
    """
    tokens = request.tokens
    coded = {
        code: _encode_documents(texts, encode, cut, tokens=math.inf if parallel else tokens, seed=request.seed)
        for code, texts in documents.items()
    }
    check_document_counts(coded, least=least)
    if parallel:
        coded = _common(coded, tokens)
        check_document_counts(coded, " that every other language has too", least=least)
    lang: list[str] = []
    numbers: list[int] = []
    sizes: list[float] = []
    windows: list[Window] = []
    estimated = 0
    for code, chosen in coded.items():
        limit = math.inf if parallel else _limit([len(document.ids) for document in chosen.values()], tokens)
        for index, document in chosen.items():
            number, used = len(numbers), int(min(limit, len(document.ids)))
            predicted = cut.predicted_positions(number, used)
            lang.append(code)
            numbers.append(index if parallel else number)
            sizes.append(_predicted_bytes(documents[code][index], document, predicted))
            estimated += document.token_bytes is None and len(predicted) < len(document.ids)
            windows += cut.windows(number, document.ids[:used])
    return TokenizedText(
        tuple(documents), np.array(lang), np.array(numbers), np.array(sizes), tuple(windows), padding, estimated
    )


def join_documents(
    documents: Documents, encode: Encoder, cut: Cutter, *, request: TextRequest, padding: int
) -> TokenizedText:
    """Returns full windows of the documents of each language, with a blank line after each, in a seeded random order.

    A window stands where a document does elsewhere: documents that share one are not independent. No document is read
    twice, and what does not fill a window is left out.
    """
    wanted = -(-request.tokens // cut.length)
    lang: list[str] = []
    sizes: list[float] = []
    windows: list[Window] = []
    estimated = 0
    for code, texts in documents.items():
        pieces = list(islice(_full_pieces(texts, encode, cut.room, seed=request.seed), wanted))
        check_full_windows(code, len(pieces), room=cut.room)
        for ids, token_bytes, exact in pieces:
            predicted = cut.predicted_positions(len(lang), len(ids))
            windows += cut.windows(len(lang), ids)
            lang.append(code)
            sizes.append(float(token_bytes[predicted].sum()))
            estimated += not exact
    numbers = np.arange(len(lang))
    return TokenizedText(tuple(documents), np.array(lang), numbers, np.array(sizes), tuple(windows), padding, estimated)


def _full_pieces(
    texts: tuple[str, ...], encode: Encoder, room: int, *, seed: int
) -> Iterator[tuple[Ids, Floats, bool]]:
    """Yields pieces of `room` tokens with the bytes of each token, and whether these are no estimates."""
    order = sorted(range(len(texts)), key=lambda i: seeded_hash(seed, i))
    ids: Ids = []
    sizes: list[float] = []
    exact = True
    for begin in range(0, len(order), ENCODED_AT_ONCE):
        chosen = [texts[i] + SEPARATOR for i in order[begin : begin + ENCODED_AT_ONCE]]
        for text, document in zip(chosen, encode(chosen), strict=True):
            count, token_bytes = len(document.ids), document.token_bytes
            exact = token_bytes is not None
            ids += document.ids
            sizes += (
                np.full(count, len(text.encode()) / max(count, 1)).tolist()
                if token_bytes is None
                else token_bytes.tolist()
            )
            while len(ids) >= room:
                yield ids[:room], np.array(sizes[:room]), exact
                del ids[:room], sizes[:room]


def check_full_windows(code: str, count: int, *, room: int) -> None:
    """Raises if a language has not enough text for one window."""
    if not count:
        raise InputError(
            f"the text of {code} does not fill one window of {room} tokens; add text, lower --sequence, or leave the "
            "language out"
        )


def _predicted_bytes(document: str, encoded: EncodedDocument, predicted: Ids) -> float:
    """Returns the bytes of the predicted tokens; an estimate where the bytes of tokens are not known."""
    size = float(len(document.encode()))
    if len(predicted) == len(encoded.ids):
        return size
    if encoded.token_bytes is None:
        return size * len(predicted) / len(encoded.ids)
    return float(encoded.token_bytes[predicted].sum())


def _encode_documents(
    texts: tuple[str, ...], encode: Encoder, cut: Cutter, *, tokens: float, seed: int
) -> Mapping[int, EncodedDocument]:
    """Returns encoded documents by position, as many as the budget allows and at least five if there are."""
    order = sorted(range(len(texts)), key=lambda i: seeded_hash(seed, i))
    chosen: dict[int, EncodedDocument] = {}
    total = 0
    for begin in range(0, len(order), ENCODED_AT_ONCE):
        indices = order[begin : begin + ENCODED_AT_ONCE]
        for index, document in zip(indices, encode([texts[i] for i in indices]), strict=True):
            if total >= tokens and len(chosen) >= LEAST_DOCUMENTS:
                return chosen
            if cut.predicts(len(document.ids)):
                chosen[index] = document
                total += min(len(document.ids), AMPLE)
    return chosen


def _limit(lengths: Iterable[int], tokens: int) -> float:
    """Returns the length c ≥ 2 to which documents are cut so that Σ min(length, c) is the budget; ∞ if all fit."""
    ordered = sorted(lengths)
    left = float(tokens)
    for number, length in enumerate(ordered):
        equal = left / (len(ordered) - number)
        if length > equal:
            return max(equal, 2.0)
        left -= length
    return math.inf


def check_document_counts(chosen: Mapping[str, Sized], which: str = "", *, least: int) -> None:
    """Raises if a language has fewer than `least` documents."""
    for code, documents in chosen.items():
        if len(documents) < least:
            raise InputError(
                f"{code} has {count_of(len(documents), 'document')}{which}; each language needs at least {least}: "
                "add text, cut it into more documents, or leave the language out"
            )


def _common(
    coded: Mapping[str, Mapping[int, EncodedDocument]], tokens: int
) -> dict[str, Mapping[int, EncodedDocument]]:
    """Returns as many of the documents common to all languages as the budget allows for the mean language."""
    shared = [index for index in next(iter(coded.values())) if all(index in chosen for chosen in coded.values())]
    means = [float(np.mean([len(chosen[index].ids) for chosen in coded.values()])) for index in shared]
    enough = int(np.searchsorted(np.cumsum(means), tokens)) + 1
    kept = shared[: max(enough, LEAST_DOCUMENTS)]
    return {code: {index: chosen[index] for index in kept} for code, chosen in coded.items()}


def _framed(ids: Ids, labels: Ids, before: int | None, after: int | None) -> WindowPart:
    head: Ids = [] if before is None else [before]
    tail: Ids = [] if after is None else [after]
    text = [False] * len(head) + [True] * len(ids) + [False] * len(tail)
    return WindowPart([*head, *ids, *tail], text, [NO_LABEL] * len(head) + labels + [NO_LABEL] * len(tail))


def unigrams(text: TokenizedText) -> NDArray[np.int64]:
    """Returns how often each token is predicted in each language, (languages, tokens up to the largest id)."""
    languages = text.language_of
    largest = max(max(window.main.labels) for window in text.windows)
    counts = np.zeros((len(text.languages), largest + 1), dtype=np.int64)
    for window in text.windows:
        labels = np.array(window.main.labels)
        np.add.at(counts[languages[window.document]], labels[labels != NO_LABEL], 1)
    return counts
