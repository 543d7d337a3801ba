"""RunningServer: a server that was found out about, and all prompts of a text asked of it."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from fairbits.core.errors import InputError
from fairbits.core.progress import ASKING, Progress, begin
from fairbits.evaluation.servers.answer_errors import NotOfferedError, array, refuse
from fairbits.evaluation.servers.answer_file import AnswerFile
from fairbits.evaluation.servers.concurrency import all_answers
from fairbits.evaluation.servers.http_client import HttpClient
from fairbits.evaluation.servers.interfaces import (
    EchoLogprobs,
    Interface,
    PromptAnswer,
    PromptLogprobs,
    SglangGenerate,
)

VLLM, SGLANG = "vLLM", "SGLang"
PROBE = 8  # tokens of the prompt by which an interface is tried
Prompts = Sequence[Sequence[int]]
Spelling = Callable[[], Sequence[str]]


def spellings_of(tokenizer: PreTrainedTokenizerBase) -> list[Spelling]:
    """Returns the ways in which servers name tokens by their text, each as a function: names take seconds to make."""
    ids = list(range(len(tokenizer)))
    return [
        lambda: list(tokenizer.batch_decode([[token] for token in ids])),
        lambda: list(tokenizer.convert_ids_to_tokens(ids)),
    ]


@dataclass(frozen=True)
class ServedModel:
    """What a server says of itself: the program, and the model with its directory or id and its longest context."""

    engine: str
    model: str
    root: str | None = None
    longest: int | None = None
    program: str = ""  # without its version

    @property
    def identity(self) -> str:
        """A SHA-256 of what the server says of itself."""
        return hashlib.sha256(json.dumps([self.engine, self.model, self.root]).encode()).hexdigest()


class RunningServer:
    """A server and the way to ask it for the log-probabilities of prompts."""

    def __init__(self, client: HttpClient, served: ServedModel, interface: Interface, *, top: int) -> None:
        self.client, self.served, self.interface, self.top = client, served, interface, top

    @classmethod
    def find(
        cls, client: HttpClient, served: ServedModel, spellings: Sequence[Spelling], *, top: int, prompt: Sequence[int]
    ) -> "RunningServer":
        """Returns the server of a model, after a first question about the beginning of a prompt.

        `spellings` give the names of all tokens, for servers that name them by their text (`spellings_of`).
        """
        problems: list[str] = []
        for name, interface in _interfaces(served, spellings):
            try:
                server = cls(client, served, interface(), top=top)
                server.ask(prompt[:PROBE])
            except NotOfferedError as problem:
                problems.append(f"{name}: it {problem.problem}; {problem.remedy}")
                continue
            return server
        raise InputError(
            f"{served.engine} at {client.address.root} gives no log-probabilities of prompts ({'; '.join(problems)}). "
            "vLLM and SGLang do, and servers with echo and logprobs in /v1/completions"
        )

    def ask(self, ids: Sequence[int]) -> PromptAnswer:
        path, body = self.interface.request(ids, self.top)
        url = self.client.address.root + path
        return self.client.post(url, body, lambda data: self.interface.read(data, ids, self.top))

    def answer_all(
        self, prompts: Prompts, *, file: Path | None, concurrency: int, again: Sequence[int], progress: Progress | None
    ) -> AnswerFile:
        """Returns the answers to all prompts, and a second one to some, from a file as far as they are there.

        The second time the prompts come in another order, so that each is in another batch.
        """
        longest = max(map(len, prompts))
        if self.served.longest is not None and longest >= self.served.longest:
            raise InputError(
                f"the server takes {self.served.longest:,} tokens. The longest prompt has {longest:,}, and one more is "
                "generated: start the server with a longer context, or evaluate with a shorter --sequence"
            )
        begin(progress, ASKING)
        question = json.dumps([self.served.identity, self.interface.name, self.top, _hash(prompts)])
        answers = AnswerFile(file, question=question, top=self.top)
        try:
            total, done = len(prompts) + len(again), 0
            for asking, chosen in enumerate((range(len(prompts)), again)):
                left = answers.missing(asking, Random(asking).sample(list(chosen), len(chosen)))
                done += len(chosen) - len(left)
                for number, answer in all_answers(self.client, lambda i: self.ask(prompts[i]), left, concurrency):
                    answers.add(asking, number, answer)
                    done += 1
                    if progress is not None:
                        progress(ASKING, done, total)
        except BaseException:
            answers.__exit__()
            raise
        return answers


def identify(client: HttpClient, model: str | None) -> ServedModel:
    """Returns what the server says of itself; `model` is one of several that it serves."""
    address = client.address
    entry = client.get(f"{address.api}/models", lambda data: _entry(data, model))
    about = client.get_if_there(f"{address.root}/get_model_info")
    sglang = "model_path" in about
    version = client.get_if_there(f"{address.root}/{'get_server_info' if sglang else 'version'}").get("version")
    owner = client.hide(str(entry.get("owned_by") or "an OpenAI-compatible server"))
    program = SGLANG if sglang else VLLM if owner == "vllm" else owner
    root, longest = about.get("model_path") or entry.get("root"), entry.get("max_model_len")
    return ServedModel(
        client.hide(f"{program} {version}") if version else program,
        entry["id"],
        client.hide(str(root)) if root else None,
        longest if isinstance(longest, int) else None,
        program,
    )


def _entry(data: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Returns what a list of models says of one."""
    listed = array(data.get("data") or [])
    entries = {entry["id"]: entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("id"), str)}
    if not entries:
        refuse("lists no model", "give the address of an OpenAI-compatible server")
    if model is None and len(entries) > 1:
        refuse(f"has {', '.join(entries)}", "choose one with --served-model")
    name = next(iter(entries)) if model is None else model
    if name not in entries:
        refuse(f"has no model {name!r:.80}; it has {', '.join(entries)}", "choose one with --served-model")
    return dict(entries[name])


def _interfaces(served: ServedModel, spellings: Sequence[Spelling]) -> Iterator[tuple[str, Callable[[], Interface]]]:
    """Yields the ways to ask a server, with their names, the best first."""
    if served.program == SGLANG:
        yield SglangGenerate.name, SglangGenerate
        return
    yield PromptLogprobs.name, lambda: PromptLogprobs(served.model, with_ids=served.program == VLLM)
    yield EchoLogprobs.name, lambda: EchoLogprobs(served.model, spellings)


def _hash(prompts: Prompts) -> str:
    return hashlib.sha256(json.dumps([list(prompt) for prompt in prompts]).encode()).hexdigest()
