"""Interfaces: how servers are asked for the log-probabilities of a prompt, and what they answer.

A prompt is sent as token ids, so that the server cannot cut the text into other tokens. An answer is refused unless it
is about exactly these tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbits.evaluation.servers.answer_errors import NotOfferedError, array, number, refuse, token_id, whole_number

ABSENT = -1  # in place of the id of a token that the server names by a text that several tokens have
UNKNOWN = -1e6  # in place of a log-probability that the server leaves out, as another token has the same name
IMPOSSIBLE = -9990.0  # servers send -9999 for a probability of 0, as JSON has no infinity
ROUNDED = 1e-3  # log-probabilities may be this much above 0
MOST_PROBABILITY = 1.05  # of all tokens: a server that computes in bfloat16 may have a little more than 1
OTHER_TOKENS = "the server must have the tokenizer and the vocabulary of the reference model"


@dataclass(frozen=True, eq=False)
class PromptAnswer:
    """Log-probabilities of every token of a prompt but the first, and of the most probable tokens in its place."""

    logprobs: NDArray[np.float32]  # (tokens − 1,)
    ids: NDArray[np.int32]  # (tokens − 1, top), most probable first
    top: NDArray[np.float32]  # their log-probabilities


class Interface(Protocol):
    """One way to ask a server."""

    name: str

    def request(self, ids: Sequence[int], top: int) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body of a request."""

    def read(self, data: dict[str, Any], ids: Sequence[int], top: int) -> PromptAnswer:
        """Returns what the answer says about the prompt; raises if it is not about this prompt."""


class PromptLogprobs:
    """`prompt_logprobs` of vLLM's completions; `with_ids` asks for the ids of the prompt too, as only vLLM can."""

    name = "prompt_logprobs"

    def __init__(self, model: str, *, with_ids: bool = False) -> None:
        self._model, self._more = model, {"return_token_ids": True} if with_ids else {}

    def request(self, ids: Sequence[int], top: int) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {**completion_body(self._model, ids), "prompt_logprobs": top, **self._more}

    def read(self, data: dict[str, Any], ids: Sequence[int], top: int) -> PromptAnswer:
        choice = completion_choice(data, self._model, ids)
        rows = choice.get("prompt_logprobs")
        if rows is None:
            raise NotOfferedError("gives no prompt_logprobs", "start it without an option that turns them off")
        _check_length(rows, ids, "prompt_logprobs")
        answered = choice.get("prompt_token_ids")
        if answered is not None and answered != list(ids):
            refuse("answers about other tokens than those of the request", OTHER_TOKENS)
        kept = []
        for token, row in zip(ids[1:], rows[1:], strict=True):
            entry = row.get(str(token)) if isinstance(row, dict) else None
            if entry is None:
                refuse(f"gives no log-probability for token {token} of the text", OTHER_TOKENS)
            read = ((whole_number(e["rank"]), token_id(int(i)), number(e["logprob"])) for i, e in row.items())
            ranked = sorted(parts for parts in read if parts[0] <= top)
            kept.append((number(entry["logprob"]), [(i, value) for _, i, value in ranked[:top]]))
        return _answer(ids[1:], kept, top)


class SglangGenerate:
    """SGLang's own `/generate`; its OpenAI interface has no log-probabilities of prompts."""

    name = "SGLang's /generate"

    def request(self, ids: Sequence[int], top: int) -> tuple[str, dict[str, Any]]:
        return "/generate", {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": top,
        }

    def read(self, data: dict[str, Any], ids: Sequence[int], top: int) -> PromptAnswer:
        about = data.get("meta_info") or {}
        _check_count(about.get("prompt_tokens"), ids)
        tokens, rows = about.get("input_token_logprobs"), about.get("input_top_logprobs")
        if not tokens or not rows:
            raise NotOfferedError("gives no input_token_logprobs", "update SGLang, or see its log")
        for name, values in (("input_token_logprobs", tokens), ("input_top_logprobs", rows)):
            _check_length(values, ids, name)
        kept = []
        for token, (value, answered, *_), row in zip(ids[1:], tokens[1:], rows[1:], strict=True):
            if answered != token:
                refuse(f"answers about token {answered} where the text has {token}", OTHER_TOKENS)
            entries = [(token_id(entry[1]), number(entry[0])) for entry in array(row)[:top]]
            kept.append((number(value), entries))
        return _answer(ids[1:], kept, top)


class EchoLogprobs:
    """`echo` with `logprobs` of OpenAI's completions, which names tokens by their text.

    `spellings` are functions that return the names of all ids, as servers may write them; the one that fits the first
    answer is used. A name that several tokens have stands for none of them (`ABSENT`).
    """

    name = "echo with logprobs"

    def __init__(self, model: str, spellings: Sequence[Callable[[], Sequence[str]]]) -> None:
        if not spellings:
            remedy = "give the model as --reference, in place of its saved predictions"
            raise NotOfferedError("names tokens by their text, which only the tokenizer of the reference reads", remedy)
        self._model, self._spellings = model, tuple(spellings)
        self._names: Sequence[str] = ()
        self._ids: dict[str, int] = {}

    def request(self, ids: Sequence[int], top: int) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {**completion_body(self._model, ids), "echo": True, "logprobs": top}

    def read(self, data: dict[str, Any], ids: Sequence[int], top: int) -> PromptAnswer:
        about = completion_choice(data, self._model, ids).get("logprobs") or {}
        parts = {name: array(about.get(name) or []) for name in ("tokens", "token_logprobs", "top_logprobs")}
        if not all(parts.values()) or parts["token_logprobs"][0] is not None:
            remedy = "use a server that does, such as vLLM"
            raise NotOfferedError("does not echo the prompt with its log-probabilities", remedy)
        for name, part in parts.items():
            _check_length(part[: len(ids)], ids, name)  # the token that it generated follows
        tokens, values, rows = (part[1 : len(ids)] for part in parts.values())
        if not self._names:
            shown = {name for row in rows for name in row}
            fitting = [names for spell in self._spellings if _spells(names := spell(), ids, tokens)]
            self._names = max(fitting, key=lambda names: len(shown.intersection(names)), default=())
            for token, name in enumerate(self._names):
                self._ids[name] = ABSENT if name in self._ids else token
        if not self._names or not _spells(self._names, ids, tokens):
            refuse("echoes other tokens than those of the request", OTHER_TOKENS)
        kept = []
        for value, row in zip(values, rows, strict=True):
            ranked = sorted(row.items(), key=lambda pair: -number(pair[1]))[:top]
            entries = [(self._ids.get(name, ABSENT), number(shown)) for name, shown in ranked]
            kept.append((number(value), entries + [(ABSENT, UNKNOWN)] * (top - len(entries))))
        return _answer(ids[1:], kept, top)


def _spells(names: Sequence[str], ids: Sequence[int], tokens: Sequence[str]) -> bool:
    """Returns whether names of ids are those of the tokens of a prompt, whose first is left out."""
    return all(token < len(names) and names[token] == name for token, name in zip(ids[1:], tokens, strict=True))


def completion_body(model: str, ids: Sequence[int]) -> dict[str, Any]:
    """Returns the body of a request that generates one token, as servers refuse to generate none."""
    return {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "seed": 0}


def completion_choice(data: dict[str, Any], model: str, ids: Sequence[int]) -> dict[str, Any]:
    """Returns the only choice of an answer; raises if it is not of this model or not about as many tokens."""
    if data.get("model", model) != model:
        refuse(f"answers as {data['model']!r:.80}, and {model!r:.80} was asked", "ask for the model that it serves")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        refuse("gives no completion", "see its log")
    _check_count((data.get("usage") or {}).get("prompt_tokens"), ids)
    return dict(choices[0])


def _check_count(counted: object, ids: Sequence[int]) -> None:
    if counted is not None and counted != len(ids):
        refuse(
            f"counts {counted} tokens in a prompt of {len(ids)}; it cuts prompts off, or adds tokens",
            "start it with a longer context, or evaluate with a shorter --sequence",
        )


def _check_length(rows: object, ids: Sequence[int], name: str) -> None:
    if len(array(rows)) != len(ids):
        refuse(
            f"gives {len(array(rows))} {name} for a prompt of {len(ids)} tokens; it cuts prompts off",
            "start it with a longer context, or evaluate with a shorter --sequence",
        )


def _answer(tokens: Sequence[int], rows: list[tuple[float, list[tuple[int, float]]]], top: int) -> PromptAnswer:
    """Returns log-probabilities of tokens, and of the most probable ones, as arrays; raises if no model has them."""
    least = min((len(entries) for _, entries in rows), default=top)
    if least < top:
        refuse(f"gives the {least} most probable tokens, and {top} were asked for", "ask for fewer with --top-k")
    logprobs = np.array([value for value, _ in rows], dtype=np.float32)
    ids = np.array([[token for token, _ in entries] for _, entries in rows], dtype=np.int32).reshape(len(rows), top)
    most = np.array([[value for _, value in entries] for _, entries in rows], dtype=np.float32).reshape(ids.shape)
    values = np.concatenate([logprobs, most.ravel()])
    if not np.isfinite(values).all() or (values > ROUNDED).any():
        refuse("gives log-probabilities that are NaN, infinite or above 0", "its logits are broken: see its log")
    if ((values < IMPOSSIBLE) & (values != np.float32(UNKNOWN))).any():
        refuse(
            "gives a token of the text, or one of the most probable, a probability of 0 (-9999)",
            "start it with the log-probabilities of the model itself, before sampling (vLLM: --logprobs-mode "
            "raw_logprobs)",
        )
    if (np.diff(most, axis=1) > ROUNDED).any():
        refuse("does not give the most probable tokens in order", "see its log")
    if (np.exp(most, dtype=np.float64).sum(1) > MOST_PROBABILITY).any():
        refuse("gives its most probable tokens more than 100% of probability", "its logits are broken: see its log")
    listed = (ids == np.array(tokens)[:, None]) | (ids == ABSENT)
    if (~listed.any(1) & (logprobs > most[:, -1] + ROUNDED)).any():
        refuse("leaves one of the most probable tokens out", "see its log")
    ordered = np.sort(ids, axis=1)
    if ((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] != ABSENT)).any():
        refuse("names one of the most probable tokens twice", "see its log")
    return PromptAnswer(logprobs, ids, most)
