"""FakeServer: a small HTTP server over a real small model that answers as vLLM, SGLang or OpenAI, or badly."""

import fcntl
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fairbits.models.checkpoint import Checkpoint

VLLM, SGLANG, ECHO = "vLLM", "SGLang", "echo"
OPENAI = {"model", "prompt", "max_tokens", "temperature", "seed", "echo", "logprobs"}
"""The fields of a request that a strict server of OpenAI's interface takes."""
COMPLETIONS, GENERATE = "/v1/completions", "/generate"


class Scorer:
    """The log-probabilities of a model, in float32, one prompt at a time."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model = (checkpoint.plain or checkpoint).load(torch.float32)
        self.tokenizer = checkpoint.tokenizer()
        self._lock, self._kept = threading.Lock(), dict[tuple[int, ...], Tensor]()

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Returns log-probabilities (tokens − 1, vocabulary) of what follows every token but the last."""
        with self._lock, torch.inference_mode():
            if tuple(ids) not in self._kept:
                logits = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1]
                self._kept[tuple(ids)] = logits.log_softmax(1)
            return self._kept[tuple(ids)]

    def states(self, ids: Sequence[int], last_block: str) -> Tensor:
        """Returns the output of the last block (tokens, hidden size)."""
        kept: list[Tensor] = []

        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        with self._lock, torch.inference_mode():
            handle = self.model.get_submodule(last_block).register_forward_hook(keep)
            self.model(input_ids=torch.tensor([list(ids)]), use_cache=False)
            handle.remove()
        return kept[0][0]


Fault = Callable[["Handler", dict[str, Any]], Any]
"""What becomes of an answer: another to be sent, as JSON or bytes; None if the fault has answered itself."""


class FakeServer(ThreadingHTTPServer):
    """`kind` is what it answers like; `fault` is applied to the answers about prompts, `about_models` to the list."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, scorer: Scorer, kind: str = VLLM, *, fault: Fault | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.scorer, self.kind, self.fault = scorer, kind, fault
        self.models: Any = {"data": [{"id": "tiny", "owned_by": {VLLM: "vllm", SGLANG: "sglang"}.get(kind, "else")}]}
        self.entry: dict[str, Any] = self.models["data"][0]
        self.asked: list[tuple[str, dict[str, str], Any]] = []  # path, headers, body
        self.states: Callable[[Sequence[int]], str] | None = None  # writes hidden states and returns the path
        self.key: str | None = None
        self.recorded: dict[tuple[int, ...], bytes] | None = None  # answers by prompt, if they are to be kept
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def prompts(self) -> int:
        """How many prompts were asked."""
        return sum(path in (COMPLETIONS, GENERATE) for path, _, _ in self.asked)

    def note(self, path: str, headers: dict[str, str], body: Any) -> int:
        """Returns how many prompts were asked before."""
        with self._lock:
            count = self.prompts if path in (COMPLETIONS, GENERATE) else -1
            self.asked.append((path, headers, body))
            return count

    def handle_error(self, *_: object) -> None:
        """Says nothing: clients go away on purpose."""

    @contextmanager
    def running(self) -> Iterator["FakeServer"]:
        thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """One connection; `count` is the number of prompts that were asked before."""

    protocol_version = "HTTP/1.1"
    server: FakeServer
    count = -1

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        self.server.note(self.path, dict(self.headers), None)
        if not self._has_key():
            return
        answers = {"/v1/models": self.server.models}
        if self.server.kind == VLLM:
            answers["/version"] = {"version": "0.32.0"}
        if self.server.kind == SGLANG:
            answers |= {"/get_model_info": {"model_path": "/models/tiny"}, "/get_server_info": {"version": "0.5"}}
        if self.path in answers:
            self.send(answers[self.path])
        else:
            self.send({"error": "not there"}, status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.count = self.server.note(self.path, dict(self.headers), body)
        if not self._has_key():
            return
        scorer, kind = self.server.scorer, self.server.kind
        if self.path != (GENERATE if kind == SGLANG else COMPLETIONS):
            self.send({"error": "not there"}, status=404)
            return
        if kind == ECHO and (unknown := body.keys() - OPENAI):
            self.send({"error": {"message": f"unknown fields: {sorted(unknown)}"}}, status=400)
            return
        recorded = {} if self.server.recorded is None else self.server.recorded
        if tuple(body.get("prompt", ())) in recorded:
            self.send(recorded[tuple(body["prompt"])])
            return
        if "max_tokens" in body and body["max_tokens"] > 1:
            answer = continued(scorer, body)
        else:
            answer = {VLLM: as_vllm, SGLANG: as_sglang, ECHO: as_openai}[kind](scorer, body)
        if self.server.states is not None:
            answer["kv_transfer_params"] = {"hidden_states_path": self.server.states(body["prompt"])}
        if self.server.recorded is not None:
            recorded[tuple(body["prompt"])] = json.dumps(answer).encode()
        changed = answer if self.server.fault is None else self.server.fault(self, answer)
        if changed is not None:
            self.send(changed)

    def _has_key(self) -> bool:
        sent = self.headers.get("authorization", "")
        if self.server.key is None or sent == f"Bearer {self.server.key}":
            return True
        self.send({"error": {"message": f"the key {sent} is not valid"}}, status=401)
        return False

    def send(self, data: Any, *, status: int = 200, **headers: str) -> None:
        """Sends JSON, or bytes as they are."""
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content)


def completion(body: dict[str, Any], **choice: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
    return {"model": body["model"], "choices": [{"text": "a", "finish_reason": "length", **choice}], "usage": usage}


def continued(scorer: Scorer, body: dict[str, Any]) -> dict[str, Any]:
    ids = torch.tensor([body["prompt"]])
    new = scorer.model.generate(ids, max_new_tokens=body["max_tokens"], do_sample=False, pad_token_id=0)
    return completion(body, text=scorer.tokenizer.decode(new[0, ids.shape[1] :]))


def rows(scorer: Scorer, ids: Sequence[int], count: int) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    """Yields every token but the first, its log-probability, and the most probable tokens in its place."""
    values = scorer(ids)
    top = values.topk(count)
    chosen = values.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    for token, value, most, shown in zip(ids[1:], chosen, top.indices.tolist(), top.values.tolist(), strict=True):
        yield token, value, list(zip(most, shown, strict=True))


def as_vllm(scorer: Scorer, body: dict[str, Any]) -> dict[str, Any]:
    ids, count = body["prompt"], body.get("prompt_logprobs")
    if count is None:
        return completion(body)
    logprobs: list[Any] = [None]
    for token, value, most in rows(scorer, ids, count):
        own = {str(token): {"logprob": value, "rank": count + 1, "decoded_token": "?"}}
        ranked = enumerate(most, start=1)
        logprobs.append(own | {str(i): {"logprob": x, "rank": r, "decoded_token": "?"} for r, (i, x) in ranked})
    returned = {"prompt_token_ids": ids} if body.get("return_token_ids") else {}
    return completion(body, prompt_logprobs=logprobs, **returned)


def as_sglang(scorer: Scorer, body: dict[str, Any]) -> dict[str, Any]:
    ids, tokens, tops = body["input_ids"], [[None, body["input_ids"][0], None]], list[Any]([None])
    for token, value, most in rows(scorer, ids, body["top_logprobs_num"]):
        tokens.append([value, token, None])
        tops.append([[x, i, None] for i, x in most])
    about = {"prompt_tokens": len(ids), "input_token_logprobs": tokens, "input_top_logprobs": tops}
    return {"text": "a", "meta_info": about}


def as_openai(scorer: Scorer, body: dict[str, Any]) -> dict[str, Any]:
    ids, name = body["prompt"], lambda token: scorer.tokenizer.decode([token])
    if not body.get("echo"):
        return completion(body)
    tokens, values, tops = [name(ids[0])], list[Any]([None]), list[Any]([None])
    for token, value, most in rows(scorer, ids, body["logprobs"]):
        tokens.append(name(token))
        values.append(value)
        # of two tokens with the same name the more probable one is kept
        tops.append({name(i): x for i, x in sorted([*most, (token, value)], key=lambda pair: pair[1])})
    parts = {"tokens": [*tokens, "a"], "token_logprobs": [*values, -1.0], "top_logprobs": [*tops, {"a": -1.0}]}
    return completion(body, logprobs=parts)


class StatesWriter:
    """Writes hidden states as vLLM's ExampleHiddenStatesConnector does: the file is locked until it is whole."""

    def __init__(self, scorer: Scorer, checkpoint: Checkpoint, directory: Path) -> None:
        self.scorer, self.directory = scorer, directory
        self.last_block = (checkpoint.plain or checkpoint).architecture.blocks[-1].module
        self.change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors
        self._count, self._lock = 0, threading.Lock()

    def __call__(self, ids: Sequence[int]) -> str:
        with self._lock:
            self._count += 1
            path = self.directory / f"{self._count}.safetensors"
        states = self.scorer.states(ids, self.last_block)[:, None].contiguous()
        tensors = self.change({"hidden_states": states, "token_ids": torch.tensor(ids)})
        lock = path.with_name(f"{path.name}.lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)

        def write() -> None:  # after the answer
            with lock:
                save_file(tensors, path)

        threading.Timer(0.02, write).start()
        return str(path)
