"""Evaluate a GGUF file by llama.cpp: fairbits computes the reference, llama-perplexity the quantized model.

One language at a time is in a temporary file that has no name, so that nothing is left of it however the job ends.
"""

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairbits.api.fit import text_workload, within_memory
from fairbits.core.errors import InputError
from fairbits.core.files import file_sha256
from fairbits.core.progress import QUANTIZED, Progress, begin
from fairbits.core.units import readable_size
from fairbits.core.version import versions
from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.llama_cpp.base_file import StoredReference, base_file_size, write_base_file
from fairbits.evaluation.llama_cpp.llama_perplexity import (
    LEAST_TOKENS,
    PRINTED,
    ChunkSums,
    chunk_precision,
    find_llama_perplexity,
    run_llama_perplexity,
    settings_here,
    version_of,
)
from fairbits.evaluation.measurement import Measurement
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import MATTERING, Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.forward.chunks import chunk_corpus, predicted_in_chunk
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.gguf_file import GgufHeader, open_header, read_strings
from fairbits.text.corpus import Corpus, TextRequest

TOKENIZER = "tokenizer.ggml"
AGREE = 1e-4  # nats per token: by as much may the loss of the reference differ that llama-perplexity reads from a file


@dataclass(frozen=True)
class LlamaCpp:
    """A program llama-perplexity, its version, and the options that it takes from the environment."""

    program: str
    version: str
    settings: tuple[str, ...] = ()

    @classmethod
    def at(cls, path: str | Path | None) -> "LlamaCpp":
        program = find_llama_perplexity(path)
        return cls(program, version_of(program), settings_here())


def evaluate_with_llama_cpp(
    quantized: str | Path,
    before: Checkpoint,
    corpus: Corpus,
    *,
    request: TextRequest,
    llama_perplexity: str | Path | None = None,
    notes: tuple[str, ...] = (),
    device: str = "cpu",
    progress: Progress | None = None,
) -> Scores:
    """Returns the damage to every chunk of text of every language, in a GGUF file, by the kernels of llama.cpp.

    `notes` are about the reference.
    """
    path = Path(os.path.expanduser(quantized))
    engine = LlamaCpp.at(llama_perplexity)
    header = open_header(path)
    text = chunk_corpus(before, corpus, request=request)
    check_amount(text, request)
    check_vocabulary(path, header, before, text)
    check_room(text, before)
    workload = text_workload("evaluate", before, corpus, request, device=device, text=text)
    with (
        within_memory(workload, device=device, progress=progress) as show,
        ReferenceModel.on_text(before, text, device=device, progress=show) as answers,
    ):
        measured = measure(answers, path, engine, device=device, progress=show)
        identity = Identity(str(quantized), file_sha256(path), path.stat().st_size)
        setting = replace(EvaluationSetting.of(before, corpus, request), parallel=False)
        notes = (*notes, *corpus.notes, *text.notes, *answers.notes)
    return chunk_scores(measured, text, engine, identity, Identity.of(before), setting=setting, notes=notes)


def measure(
    answers: ReferenceModel, model: Path, engine: LlamaCpp, *, device: str = "cpu", progress: Progress | None = None
) -> Mapping[str, tuple[StoredReference, ChunkSums]]:
    """Returns what the base file of every language holds, and what llama-perplexity says about it."""
    text = answers.text
    length, total = text.windows[0].length, len(text.windows)
    predicted, done = predicted_in_chunk(length), 0
    measured = {}
    begin(progress, QUANTIZED)
    for code in text.languages:
        windows = [window for window in text.windows if text.lang[window.document] == code]
        positions = range(done * predicted, (done + len(windows)) * predicted)

        def show(chunk: int, before: int = done) -> None:
            if progress is not None:
                progress(QUANTIZED, before + chunk, total)

        with tempfile.TemporaryFile() as file:
            try:
                stored = write_base_file(file, answers, windows, positions, device=device)
            except OSError as problem:
                raise _no_room(f"{problem.strerror} after {readable_size(file.tell())}") from None
            sums = run_llama_perplexity(
                engine.program, model, file, length=length, predicted=predicted, chunks=len(windows), show=show
            )
        written = float(stored.nll_stored.mean())
        if abs(sums.base - written) > AGREE:
            raise InputError(
                f"{engine.program} ({engine.version}) read a mean loss of {sums.base:.6f} nats from a file where it is "
                f"{written:.6f} ({code}): its version has another file format; use another version of llama.cpp"
            )
        measured[code] = stored, sums
        done += len(windows)
    return measured


def chunk_scores(
    measured: Mapping[str, tuple[StoredReference, ChunkSums]],
    text: TokenizedText,
    engine: LlamaCpp,
    quantized: Identity,
    reference: Identity,
    *,
    setting: EvaluationSetting,
    notes: tuple[str, ...] = (),
) -> Scores:
    """Returns the scores of a model whose documents are chunks."""
    length = text.windows[0].length
    predicted = predicted_in_chunk(length)
    nll, stored = (
        np.concatenate([getattr(part, name).reshape(-1, predicted).sum(1) for part, _ in measured.values()])
        for name in ("nll", "nll_stored")
    )
    added, kl, flips = (
        np.concatenate([getattr(sums, name) for _, sums in measured.values()]) for name in ("added", "kl", "flips")
    )
    documents = DocumentScores(
        lang=text.lang,
        document=text.document.astype(np.int64),
        tokens=np.full(len(nll), float(predicted)),
        bytes=text.size_bytes,
        nll_reference=nll,
        nll_quantized=stored + added,
        kl=kl,
        flips=flips,
    )
    percentiles = {code: TokenPercentiles(**sums.percentiles) for code, (_, sums) in measured.items()}
    measured_with = {name: version for name, version in versions().items() if name in MATTERING}
    measurement = Measurement(engine=f"llama.cpp {engine.version}")
    chunks = int(np.unique(text.lang, return_counts=True)[1].max())
    return Scores(
        quantized,
        reference,
        setting,
        text.languages,
        documents,
        percentiles,
        (*measurement.notes, *_engine_notes(engine, measured, length, chunks), *notes),
        measured_with | {"llama.cpp": engine.version},
        measurement=measurement,
    )


def check_amount(text: TokenizedText, request: TextRequest) -> None:
    """Raises if a language has too few predicted tokens for the statistics of llama-perplexity."""
    predicted = predicted_in_chunk(text.windows[0].length)
    for code in text.languages:
        tokens = int((text.lang == code).sum()) * predicted
        if tokens < LEAST_TOKENS:
            raise InputError(
                f"{code} has {tokens} predicted tokens in chunks of {text.windows[0].length}; llama-perplexity needs "
                f"{LEAST_TOKENS}: add text, use more --tokens than {request.tokens}, or a shorter --sequence"
            )


def check_vocabulary(path: Path, header: GgufHeader, before: Checkpoint, text: TokenizedText) -> None:
    """Raises unless the tokens of the text, and the start of a chunk, are the same in the file and in the reference."""
    key = f"{TOKENIZER}.tokens"
    if key not in header.arrays:
        raise InputError(f"{path} has no vocabulary ({key}); fetch it again, or use a file that holds a whole model")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tokens = read_strings(data, header.arrays[key])
    rows = int(before.config.get_text_config().vocab_size)
    remedy = "use the model that it was quantized from as reference"
    if len(tokens) != rows:
        raise InputError(
            f"{path} has {len(tokens):,} tokens in its vocabulary and {before.target} {rows:,}; both must have the "
            f"same: {remedy}"
        )
    used = sorted({token for window in text.windows for token in window.main.ids})
    if used[-1] >= rows:
        raise InputError(f"the tokenizer of {before.target} gives the id {used[-1]}; it must be below {rows:,}")
    for number, expected in zip(used, before.tokenizer().convert_ids_to_tokens(used), strict=True):
        # converters write some of a space's marks as the space itself
        if expected.replace("▁", " ") != tokens[number].replace("▁", " "):
            raise InputError(
                f"token {number} is {expected!r:.40} in {before.target} and {tokens[number]!r:.40} in {path}; both "
                f"must have the same vocabulary: {remedy}"
            )
    _check_start(path, header, before)


def _check_start(path: Path, header: GgufHeader, before: Checkpoint) -> None:
    """Raises if llama-perplexity would begin a chunk with another token than the reference does."""
    adds = header.metadata.get(f"{TOKENIZER}.add_bos_token")
    start, theirs = before.tokenizer().bos_token_id, header.metadata.get(f"{TOKENIZER}.bos_token_id")
    if header.metadata.get(f"{TOKENIZER}.add_eos_token") is True:
        raise InputError(f"{path} adds an end token to every text, which llama-perplexity refuses; convert it without")
    if adds is not False and start != theirs:
        stated = "adds" if adds else "may add (it does not say)"
        raise InputError(
            f"{path} {stated} the start token {theirs} to a text, and {before.target} has "
            f"{'none' if start is None else start}; both must begin alike: use the model that it was quantized from"
        )


def check_room(text: TokenizedText, before: Checkpoint) -> None:
    """Raises if the file of the language with most text does not fit on the disk."""
    length, most = text.windows[0].length, int(np.unique(text.lang, return_counts=True)[1].max())
    vocabulary = int(before.config.get_text_config().vocab_size)
    needed = base_file_size(most, length, vocabulary, predicted=predicted_in_chunk(length))
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free:
        raise _no_room(f"{readable_size(needed)} are needed for a language and {readable_size(free)} are free")


def _no_room(problem: str) -> InputError:
    return InputError(
        f"{tempfile.gettempdir()} has no room for the predictions that llama-perplexity reads ({problem}); free some "
        "space, set TMPDIR to another directory, or evaluate on fewer --tokens"
    )


def _engine_notes(
    engine: LlamaCpp, measured: Mapping[str, tuple[StoredReference, ChunkSums]], length: int, chunks: int
) -> Iterable[str]:
    if engine.settings:
        yield f"options of llama.cpp in the environment: {', '.join(engine.settings)}"
    yield (
        f"a document is a chunk of {length} tokens, whose second half is predicted; llama-perplexity prints means to "
        f"{PRINTED} decimals, so that the KL and the added loss of a chunk are known to {chunk_precision(chunks):.1g} "
        "nats per token, and those of a language to 5e-07"
    )
    parts = {code: part for code, (part, _) in measured.items()}
    self_kl = max((abs(float(part.self_kl.mean())) for part in parts.values()), default=math.nan)
    skipped = {code: float(part.skipped.mean()) for code, part in parts.items()}
    worst = max(skipped, key=skipped.__getitem__)
    moved = sum(int(part.moved.sum()) for part in parts.values())
    yield (
        f"llama-perplexity reads the reference in 16 bits: its KL with itself is at most {self_kl:.1g} nats per token "
        f"there, {moved} of its first choices differ, and tokens of a probability below e^-16 are left out, together "
        f"{skipped[worst]:.1g} of the probability in {worst}, the most"
    )
