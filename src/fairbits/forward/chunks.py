"""Documents packed into chunks of equal length, of which the second half is predicted, as llama-perplexity does it.

A chunk holds the start token of the model, if there is one, and documents with an empty line after each. The last one
is cut where the chunk is full, and the rest of it is not used: as no document is in two chunks, chunks are as
independent as documents are, and intervals are formed over them.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, count_of
from fairbits.forward.tokenize import CLEARLY_LESS, check_documents, estimated_size_notes
from fairbits.forward.windows import (
    ENCODED_AT_ONCE,
    NO_LABEL,
    Encoder,
    Ids,
    TokenizedText,
    Window,
    WindowPart,
    document_encoder,
)
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.documents import seeded_hash

BREAK = "\n\n"  # after every document


def predicted_in_chunk(length: int) -> int:
    """Returns how many tokens of a chunk are predicted: those after the first of its second half.

    >>> predicted_in_chunk(512)
    255
    """
    return length - 1 - length // 2


def chunk_corpus(checkpoint: Checkpoint, corpus: Corpus, *, request: TextRequest) -> TokenizedText:
    """Returns about the requested number of predicted tokens of every language, in chunks of `request.sequence`."""
    if checkpoint.task != "causal":
        raise InputError(f"{checkpoint.target} does not predict the next token; llama-perplexity measures nothing else")
    check_documents(corpus, request.split, least=1)
    tokenizer, length = checkpoint.tokenizer(), min(request.sequence, checkpoint.longest_input)
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    predicted, encode = predicted_in_chunk(length), document_encoder(tokenizer)
    lang: list[str] = []
    sizes: list[float] = []
    windows: list[Window] = []
    notes: list[str] = []
    for code, texts in corpus.split(request.split).items():
        packed = _pack(texts, encode, room=length - len(start), seed=request.seed)
        count = 0
        for count, (ids, token_bytes) in enumerate(islice(packed, -(-request.tokens // predicted)), 1):  # noqa: B007
            windows.append(Window(len(lang), _half_predicted([*start, *ids], len(start))))
            lang.append(code)
            sizes.append(float(token_bytes[-predicted:].sum()))
        enough = f"{code} has text for {count_of(count, 'chunk')} of {length} tokens"
        if not count:
            raise InputError(f"{enough}; add text, or use a shorter --sequence")
        if count * predicted < CLEARLY_LESS * request.tokens:
            notes.append(f"{enough}, so that {count * predicted:,} of {request.tokens:,} tokens are predicted")
    estimated = 0 if tokenizer.is_fast else len(lang)
    numbers = np.arange(len(lang))
    notes += estimated_size_notes(estimated, len(lang))
    return TokenizedText(
        tuple(corpus.split(request.split)),
        np.array(lang),
        numbers,
        np.array(sizes),
        tuple(windows),
        padding=0,  # there is none, as all windows are equally long
        estimated=estimated,
        notes=tuple(notes),
    )


def _pack(texts: tuple[str, ...], encode: Encoder, *, room: int, seed: int) -> Iterator[tuple[Ids, Floats]]:
    """Yields the token ids of every chunk and the bytes of each token, from documents in a seeded random order."""
    ids: Ids = []
    sizes: list[Floats] = []
    order = sorted(range(len(texts)), key=lambda i: seeded_hash(seed, i))
    for begin in range(0, len(order), ENCODED_AT_ONCE):
        some = [texts[i] + BREAK for i in order[begin : begin + ENCODED_AT_ONCE]]
        for text, document in zip(some, encode(some), strict=True):
            count = len(document.ids)
            mean = len(text.encode()) / max(count, 1)  # where the tokenizer does not report what a token stands for
            sizes.append(np.full(count, mean) if document.token_bytes is None else document.token_bytes)
            ids += document.ids
            if len(ids) >= room:
                yield ids[:room], np.concatenate(sizes)[:room]
                ids, sizes = [], []


def _half_predicted(ids: Ids, special: int) -> WindowPart:
    first = len(ids) // 2
    labels = [NO_LABEL] * first + ids[first + 1 :] + [NO_LABEL]
    return WindowPart(ids, [False] * special + [True] * (len(ids) - special), labels)
