"""The scores of a model that a server computes, from its log-probabilities of the text."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairbits.core.errors import InputError, count_of
from fairbits.core.progress import COMPARING, Progress, begin
from fairbits.evaluation.divergence import DocumentSums
from fairbits.evaluation.hidden_states import positions_by_window, positions_of_logits
from fairbits.evaluation.measurement import BOUND, WRITTEN, AnswerNoise, Measurement
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.servers.answer_file import AnswerFile
from fairbits.evaluation.servers.interfaces import OTHER_TOKENS
from fairbits.evaluation.servers.partial_kl import partial_comparison
from fairbits.evaluation.servers.running_server import RunningServer
from fairbits.evaluation.setting import Identity
from fairbits.forward.windows import NO_LABEL, TokenizedText

AGAIN = 512  # tokens of each language that are asked for a second time


def served_scores(
    reference: ReferenceModel,
    server: RunningServer,
    answers: AnswerFile,
    *,
    again: list[int],
    written: bool,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Scores:
    """Returns the scores of a server, given its answers; `written` says that the reference wrote the text."""
    assert reference.setting is not None
    assert reference.identity is not None
    begin(progress, COMPARING)
    text, served = reference.text, server.served
    sums = torch.zeros(9, len(text.lang), dtype=torch.float64)
    vocabulary, done = reference.logits(slice(0, 1)).shape[1], 0
    for chunk in _in_chunks(_known_positions(reference, answers), positions_of_logits(vocabulary, device)):
        labels, documents, served_logprobs, ids, top = (column.to(device) for column in chunk)
        if int(ids.max()) >= vocabulary:
            largest = f"the server names token {int(ids.max())}, and {reference.target} has {vocabulary:,}"
            raise InputError(f"{largest}; {OTHER_TOKENS}")
        logits = reference.logits(slice(done, done + len(labels)), device=device)
        if not torch.isfinite(logits).all():
            raise InputError(f"the logits of {reference.target} contain NaN or infinity; check its weights")
        now = partial_comparison(logits, labels, served_logprobs, ids, top)
        kl = now.estimate if written else now.bound
        both = now.nll_reference, now.nll_served
        changed = now.flips, now.sure, now.flips * now.sure
        rows = (torch.ones_like(kl), *both, kl, *changed, now.covered, now.undecided)
        sums.index_add_(1, documents.cpu(), torch.stack(rows).cpu())
        done += len(labels)
        if progress is not None:
            progress(COMPARING, done, len(reference.features))
    predicted, nll_reference, nll_served, kl_sums, flips, sure, sure_flips, covered, undecided = sums.numpy()
    columns = (predicted, nll_reference, nll_served, kl_sums, flips, sure, sure_flips)
    none = np.empty(0, dtype=np.float32)
    tokens = DocumentSums(*columns, token_kl=none, token_margin=none, token_document=np.empty(0, dtype=np.intp))
    retried = sum(server.client.retries.values())
    notes = [f"{count_of(retried, 'request')} to the server had to be sent again"] if retried else []
    measurement = Measurement(
        engine=served.engine,
        kl=WRITTEN if written else BOUND,
        url=server.client.address.root,
        model=served.model,
        top=server.top,
        covered=_by_language(text, covered, predicted),
        undecided=_by_language(text, undecided, predicted) if undecided.any() else {},
        noise=answer_noise(text, answers, again),
    )
    return Scores.of(
        *(tokens, text),
        quantized=Identity(server.client.address.api, served.identity, 0),
        reference=reference.identity,
        setting=reference.setting,
        notes=(*notes, *reference.notes),
        measurement=measurement,
    )


def prompts_of(text: TokenizedText) -> list[list[int]]:
    """Returns the prompts whose log-probabilities are needed: the windows of a causal model's text."""
    if any(window.encoder is not None or window.sound is not None for window in text.windows):
        raise InputError("a server is asked for the log-probabilities of prompts, so the model must be a causal one")
    return [window.main.ids for window in text.windows]


def asked_again(text: TokenizedText) -> list[int]:
    """Returns some windows of every language, to be asked for twice."""
    tokens: dict[str, int] = defaultdict(int)
    chosen = []
    for number, window in enumerate(text.windows):
        code = str(text.lang[window.document])
        if tokens[code] < AGAIN:
            chosen.append(number)
            tokens[code] += len(window.main.ids)
    return chosen


def answer_noise(text: TokenizedText, answers: AnswerFile, again: list[int]) -> dict[str, AnswerNoise]:
    """Returns how the first and the second answers differ, by language."""
    parts: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for number in again:
        first, second = (answers.get(asking, number) for asking in (0, 1))
        moved = np.abs(first.logprobs - second.logprobs).sum(dtype=np.float64)
        changed = first.ids[:, 0] != second.ids[:, 0]
        row = (len(first.logprobs), float(moved), float(changed.sum()))
        parts[str(text.lang[text.windows[number].document])].append(row)
    totals = {code: [sum(column) for column in zip(*rows, strict=True)] for code, rows in parts.items()}
    return {code: AnswerNoise(int(n), moved / n, changed / n) for code, (n, moved, changed) in totals.items()}


def _known_positions(reference: ReferenceModel, answers: AnswerFile) -> Iterator[list[NDArray[Any]]]:
    """Yields labels, documents, and what the server said of them, window by window in the order of the features."""
    places, text = positions_by_window(reference.text), reference.text
    for number in sorted(range(len(places)), key=lambda number: places[number].start):
        wanted, answer = np.array(text.windows[number].main.labels), answers.get(0, number)
        at = np.flatnonzero(wanted != NO_LABEL)
        documents = np.full(len(at), text.windows[number].document)
        yield [wanted[at], documents, answer.logprobs[at], answer.ids[at].astype(np.int64), answer.top[at]]


def _in_chunks(windows: Iterator[list[NDArray[Any]]], size: int) -> Iterator[list[torch.Tensor]]:
    """Yields the positions of all windows, at most `size` at a time."""
    for part in batched_windows(windows, size):
        columns = [torch.from_numpy(np.concatenate(column)) for column in zip(*part, strict=True)]
        yield from (list(chunk) for chunk in zip(*(torch.split(column, size) for column in columns), strict=True))


def batched_windows(windows: Iterator[list[NDArray[Any]]], size: int) -> Iterator[list[list[NDArray[Any]]]]:
    """Yields windows in lists of at least `size` positions, but for the last."""
    part: list[list[NDArray[Any]]] = []
    for window in windows:
        part.append(window)
        if sum(len(labels) for labels, *_ in part) >= size:
            yield part
            part = []
    if part:
        yield part


def _by_language(text: TokenizedText, values: NDArray[Any], counts: NDArray[Any]) -> Mapping[str, float]:
    return {code: float(values[text.lang == code].sum() / counts[text.lang == code].sum()) for code in text.languages}
