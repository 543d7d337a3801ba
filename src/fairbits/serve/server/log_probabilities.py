"""Log-probabilities of the tokens of a choice, in float32, as vLLM and as OpenAI's completions give them."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fairbits.serve.server.request import CompletionRequest

ROWS = 64  # positions at a time, as their log-probabilities take as much memory as their logits
LEAST = -9999.0  # for a probability of 0, as in vLLM: JSON has no infinity

Row = list[tuple[int, float, int]]  # a token of the text, then the most probable ones: id, log-probability, rank


def log_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    request: CompletionRequest,
    ids: Sequence[int],
    *,
    prompt: int,
    pieces: Sequence[str],
) -> dict[str, Any]:
    """Returns what a choice gets; the first `prompt` of its tokens are the prompt, and `pieces` the text of each."""
    counts = [count for count in (request.logprobs, request.prompt_logprobs) if count is not None]
    rows: list[Row | None] = [None, *_rows(model, ids, -1 if -1 in counts else max(counts))]
    decoded = cache(lambda token: str(tokenizer.decode([token])))
    data: dict[str, Any] = {}
    if request.logprobs is not None:
        first = 0 if request.echo else prompt
        data["logprobs"] = _as_openai(rows[first:], ids[first:], pieces[first:], request.logprobs, decoded)
    if request.prompt_logprobs is not None:
        data["prompt_logprobs"] = [
            row
            and {
                str(token): {"logprob": value, "rank": rank, "decoded_token": decoded(token)}
                for token, value, rank in _first(row, request.prompt_logprobs)
            }
            for row in rows[:prompt]
        ]
    return data


def _as_openai(
    rows: Sequence[Row | None], ids: Sequence[int], pieces: Sequence[str], count: int, decoded: Callable[[int], str]
) -> dict[str, Any]:
    # of two tokens with the same text the more probable one is kept
    ordered = [row and sorted(_first(row, count), key=itemgetter(1)) for row in rows]
    return {
        "tokens": [decoded(token) for token in ids],
        "token_logprobs": [row and row[0][1] for row in rows],
        "top_logprobs": [row and {decoded(token): value for token, value, _ in row} for row in ordered],
        "text_offset": list(accumulate(map(len, pieces[:-1]), initial=0))[: len(ids)],
    }


def _first(row: Row, count: int) -> Row:
    return row if count < 0 else row[: count + 1]


@torch.inference_mode()
def _rows(model: PreTrainedModel, ids: Sequence[int], count: int) -> list[Row]:
    """Returns for every token but the first itself and the `count` most probable ones; all of them if it is -1."""
    text, rows = torch.tensor([ids], device=model.device), list[Row]()
    logits: Tensor = model(input_ids=text, use_cache=False).logits[0, :-1]
    most = logits.shape[-1] if count < 0 else min(count, logits.shape[-1])
    for i in range(0, len(logits), ROWS):
        values = logits[i : i + ROWS].float().log_softmax(-1).clamp(min=LEAST)
        tokens = text[0, i + 1 : i + 1 + ROWS, None][: len(values)]
        chosen, top = values.gather(1, tokens), values.topk(most)
        ranks = (values > chosen).sum(1, keepdim=True) + 1
        places = torch.arange(1, most + 1, device=text.device).expand_as(top.indices)
        pairs = ((tokens, top.indices), (chosen, top.values), (ranks, places))
        columns = [torch.cat(pair, 1).tolist() for pair in pairs]
        rows += [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]
    return rows
