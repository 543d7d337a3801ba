"""The text of a corpus, prepared for a model."""

from collections.abc import Iterable
from pathlib import Path

from fairbits.core.errors import InputError, count_of
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.forward.speech_windows import tokenize_speech
from fairbits.forward.windows import (
    NO_LABEL,
    TokenizedText,
    cutter_for,
    document_encoder,
    join_documents,
    tokenize_documents,
)
from fairbits.models.architecture.meta_model import SOUND
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import DEFAULT_REQUEST, SHORTEST_WINDOW, SPLITS, Corpus, TextRequest
from fairbits.text.reading import EMBEDDED, open_corpus

CLEARLY_LESS = 0.9  # if a language has less than this share of the requested tokens, a note says so
NAMED = 8  # the largest number of languages that such a note names


def tokenize_corpus(
    checkpoint: Checkpoint, corpus: Corpus, *, request: TextRequest = DEFAULT_REQUEST, least: int = LEAST_DOCUMENTS
) -> TokenizedText:
    """Returns the text of every language in windows that fit the model; each must have `least` documents."""
    check_documents(corpus, request.split, least=least)
    task, tokenizer = checkpoint.task, checkpoint.tokenizer()
    start = getattr(checkpoint.config, "decoder_start_token_id", None)
    length = min(request.sequence, checkpoint.longest_input)
    if length < SHORTEST_WINDOW:
        raise InputError(
            f"{checkpoint.target} allows {length} positions; at least {SHORTEST_WINDOW} are needed: see config.json"
        )
    rows = checkpoint.config.get_text_config().vocab_size
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)  # any of the vocabulary, as padding is masked
    padding = next(token for token in candidates if token is not None and token < rows)
    if request.joined:
        _check_joined(checkpoint, length=request.sequence)
        cut = cutter_for(tokenizer, task, length=length, seed=request.seed, start=start)
        documents = corpus.split(request.split)
        text = join_documents(documents, document_encoder(tokenizer), cut, request=request, padding=padding)
    elif task == "transcription":
        check_sound(checkpoint, corpus)
        text = tokenize_speech(checkpoint, corpus, tokenizer, request=request, padding=padding, least=least)
    else:
        text = tokenize_documents(
            corpus.split(request.split),
            document_encoder(tokenizer),
            cutter_for(tokenizer, task, length=length, seed=request.seed, start=start),
            request=request,
            parallel=corpus.parallel,
            padding=padding,
            least=least,
        )
    parts = [part for window in text.windows for part in (window.main, window.encoder) if part is not None]
    most = max(max(*part.ids, *part.labels) for part in parts)
    if most >= rows:
        raise InputError(
            f"the tokenizer of {checkpoint.target} gives the id {most} but the model has a vocabulary of {rows}; "
            "they must belong together"
        )
    return text


def _check_joined(checkpoint: Checkpoint, *, length: int) -> None:
    """Raises unless a model predicts next tokens and accepts windows of this length."""
    if checkpoint.task != "causal":
        raise InputError(f"{checkpoint.target} does not predict the next token, so --join does not apply: leave it out")
    if length > checkpoint.longest_input:
        raise InputError(
            f"{checkpoint.target} accepts {checkpoint.longest_input:,} positions, and joined windows would have "
            f"{length:,}; use --sequence {checkpoint.longest_input}"
        )


def count_tokens(text: TokenizedText) -> dict[str, int]:
    """Returns the number of tokens of each language, including those that are not predicted."""
    counts = dict.fromkeys(text.languages, 0)
    for window in text.windows:
        main = window.main
        # a decoder reads a start token instead of its last token, and predicts all of them
        predicted = sum(label != NO_LABEL for label in main.labels)
        tokens = sum(main.text) if window.encoder is None else sum(window.encoder.text) + predicted
        counts[str(text.lang[window.document])] += tokens if window.sound is None else predicted
    return counts


def short_text_notes(text: TokenizedText, request: TextRequest, *, parallel: bool) -> tuple[str, ...]:
    """Returns notes, one if languages have clearly less text than requested (their mean if it is parallel)."""
    counts = count_tokens(text)
    least = CLEARLY_LESS * request.tokens
    short = sorted((code for code, count in counts.items() if count < least), key=lambda code: counts[code])
    if not short or (parallel and sum(counts.values()) >= least * len(counts)):
        return text.notes
    first, *rest = (f"{code} {counts[code]:,}" for code in short[:NAMED])
    named = [f"{first} of {request.tokens:,} tokens", *rest]
    more = f" and {len(short) - NAMED} more" if len(short) > NAMED else ""
    return (*text.notes, f"{request.split} text is shorter than the budget: {', '.join(named)}{more}")


def joined_notes(request: TextRequest) -> tuple[str, ...]:
    """Returns a note on windows of joined documents."""
    if not request.joined:
        return ()
    return (
        f"documents of a language are joined into windows of {request.sequence:,} tokens; a window counts as a "
        "document, and intervals are over windows",
    )


def estimated_size_notes(estimated: int, documents: int) -> tuple[str, ...]:
    """Returns a note if the bytes of documents are estimates (`TokenizedText.estimated`)."""
    if not estimated:
        return ()
    return (
        f"in {estimated} of {documents} documents only some tokens are predicted, and the tokenizer does not "
        "report which characters a token stands for: the bytes of these documents are estimated from their tokens",
    )


def open_corpus_for(
    checkpoint: Checkpoint, text: str | Path | Corpus | None, languages: Iterable[str] | None
) -> Corpus:
    """Returns the text that a model is measured on (`open_corpus`); no speech comes with fairbits."""
    if text is None or (isinstance(text, str) and text in EMBEDDED):
        check_sound(checkpoint, None)
    corpus = open_corpus(text, languages, trained=checkpoint.trained_languages)
    check_sound(checkpoint, corpus)
    return corpus


def check_documents(corpus: Corpus, split: str, *, least: int) -> None:
    """Raises if a language has fewer than `least` documents in a split; the error counts those of both splits."""
    for code, documents in corpus.split(split).items():
        if len(documents) < least:
            here = {name: len(corpus.split(name)[code]) for name in SPLITS}
            parts = " and ".join(f"{number:,} for {name}" for name, number in here.items())
            raise InputError(
                f"{code} has {count_of(sum(here.values()), 'document')} in {corpus.name}: {parts}. "
                f"{split.capitalize()} needs at least {least} of each language: add text, cut it into more documents, "
                "or leave the language out"
            )


def check_sound(checkpoint: Checkpoint, corpus: Corpus | None) -> None:
    """Raises if a model reads sound and a corpus has none."""
    if checkpoint.architecture.reads == SOUND and not (corpus and corpus.clips):
        name = corpus.name if corpus else "the text that comes with fairbits"
        raise InputError(
            f"{checkpoint.target} reads sound, and {name} has none; give a directory of speech (--text DIR): "
            "LANG/metadata.jsonl, with file_name and text in each line, and the WAV files that it names"
        )
