"""`fairbits evaluate http://…` against servers of a small model, whose answers are right, or wrong in every way."""

import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import COMPLETIONS, ECHO, GENERATE, SGLANG, VLLM, FakeServer, Fault, Handler, Scorer, StatesWriter
from test_docs import parse, words_of

from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.core.errors import InputError
from fairbits.evaluation.gate import gate
from fairbits.evaluation.measurement import BOUND, WHOLE, WRITTEN, Measurement
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.servers.address import ServerOptions
from fairbits.models.checkpoint import Checkpoint

LANGUAGES = ("eng_Latn", "heb_Hebr")
TEXT: dict[str, Any] = {"languages": LANGUAGES, "tokens": 192, "sequence": 48}
WORDS = ("--languages", ",".join(LANGUAGES), "--tokens", "192", "--sequence", "48", "--device", "cpu")
KEY = "secret-key-0123456789"


@pytest.fixture(scope="module")
def reference(outer_blocks: Callable[[int], Checkpoint]) -> Checkpoint:
    return outer_blocks(2)


@pytest.fixture(scope="module")
def quantized(reference: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("served") / "w3"
    quantize(reference, plan(reference, policy="rtn", bits=3, group="channel"), out=directory)
    return Checkpoint(directory)


@pytest.fixture(scope="module")
def scorer(quantized: Checkpoint) -> Scorer:
    return Scorer(quantized)


@pytest.fixture(scope="module")
def saved_reference(reference: Checkpoint, scorer: Scorer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "reference"
    with FakeServer(scorer).running() as server:
        evaluate(server.url, reference=reference, save_reference=directory, **TEXT)
    return directory


@pytest.fixture(scope="module")
def local(reference: Checkpoint, quantized: Checkpoint) -> Scores:
    """What fairbits itself measures."""
    return evaluate(quantized, reference=reference, **TEXT)


@pytest.fixture(scope="module")
def served(saved_reference: Path, scorer: Scorer) -> Scores:
    """What is measured through a server without a fault."""
    with FakeServer(scorer).running() as server:
        return evaluate(server.url, reference=saved_reference)


def same(a: Scores, b: Scores) -> bool:
    """Returns whether two scores have exactly the same numbers."""
    mine, other = a.documents.columns(), b.documents.columns()
    return mine.keys() == other.keys() and all(np.array_equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("kind", [VLLM, SGLANG, ECHO])
def test_added_loss_and_changed_tokens_are_those_of_a_local_evaluation(kind, reference, scorer, local) -> None:
    with FakeServer(scorer, kind).running() as server:
        scores = evaluate(server.url, reference=reference, **TEXT)
    bodies = [body for path, _, body in server.asked if path in (COMPLETIONS, GENERATE)]
    assert {body.get("return_token_ids") for body in bodies} == {True if kind == VLLM else None}
    mine, here = scores.documents, local.documents
    assert np.array_equal(mine.tokens, here.tokens)
    assert mine.nll_reference == pytest.approx(here.nll_reference, rel=1e-6)
    assert mine.nll_quantized == pytest.approx(here.nll_quantized, rel=1e-5)
    assert np.array_equal(mine.flips, here.flips)
    assert mine.flips.sum() > 10
    assert (mine.kl <= here.kl * (1 + 1e-5)).all()
    assert mine.kl.sum() > 0.5 * here.kl.sum()
    assert scores.measurement is not None
    assert scores.measurement.top == 20
    assert "changed tokens are exact" in scores.notes
    assert "two answers of the server to the same request are the same" in scores.notes


def test_where_many_tokens_have_one_name_changed_tokens_are_a_bound_and_a_note_says_so(
    reference, scorer, quantized
) -> None:
    text = {**TEXT, "languages": ["jpn_Jpan"]}
    here = evaluate(quantized, reference=reference, **text)
    with FakeServer(scorer, ECHO).running() as server:
        scores = evaluate(server.url, reference=reference, **text)
    changed, true = scores.documents.flips.sum(), here.documents.flips.sum()
    assert scores.measurement is not None
    uncertain = scores.measurement.undecided["jpn_Jpan"] * scores.documents.tokens.sum()
    assert changed - uncertain <= true <= changed
    assert uncertain > 0
    sure = replace(scores, measurement=replace(scores.measurement, undecided={}))
    assert gate(sure, max_changed=1).checks[0].outcome == "fail"
    (check,) = gate(scores, max_changed=1).checks
    assert (check.outcome, "the names of tokens do not tell whether they change" in check.reason) == ("undecided", True)
    assert any("changed tokens are an upper bound" in note for note in scores.notes)
    assert scores.documents.nll_quantized == pytest.approx(here.documents.nll_quantized, rel=1e-5)
    assert (scores.documents.kl <= here.documents.kl * (1 + 1e-5) + 1e-6).all()


def test_a_saved_reference_gives_the_scores_of_the_model(reference, scorer, served, saved_reference) -> None:
    with FakeServer(scorer).running() as server:
        assert same(evaluate(server.url, reference=reference, **TEXT), served)
    with FakeServer(scorer, ECHO).running() as server, pytest.raises(InputError, match="give the model as --reference"):
        evaluate(server.url, reference=saved_reference)


@pytest.fixture(scope="module")
def small(reading_model, tmp_path_factory) -> tuple[Checkpoint, Checkpoint]:
    """A model with a vocabulary of 1,024, and what 2 bits make of it."""
    model, directory = reading_model("llama"), tmp_path_factory.mktemp("small") / "w2"
    quantize(model, plan(model, policy="rtn", bits=2, group="channel"), out=directory)
    return model, Checkpoint(directory)


def test_with_all_tokens_the_bound_is_exact_and_so_is_the_estimate(small) -> None:
    reference, quantized = small
    text, scorer = {**TEXT, "languages": ("eng_Latn",), "tokens": 48, "sequence": 24}, Scorer(quantized)
    shorter = {**text, "sequence": 12}
    here = evaluate(quantized, reference=reference, **shorter).documents.kl
    with FakeServer(scorer).running() as server:
        bound = evaluate(server.url, reference=reference, server=ServerOptions(top=1024), **shorter)
        few = evaluate(server.url, reference=reference, server=ServerOptions(top=5), **shorter)
        exact = evaluate(server.url, reference=reference, server=ServerOptions(top=1024, own_text=True), **text)
        estimate = evaluate(server.url, reference=reference, server=ServerOptions(top=5, own_text=True), **text)
    assert bound.documents.kl == pytest.approx(here, rel=1e-3)
    assert (few.documents.kl < 0.5 * here).all()
    assert (bound.kl_kind, estimate.kl_kind) == (BOUND, WRITTEN)
    true, shown = exact.kl["eng_Latn"], estimate.kl["eng_Latn"]
    assert true.value > 0
    assert estimate.setting.source == "declaration"  # whose beginnings the model continued
    assert shown.low <= true.value <= shown.high
    with pytest.raises(InputError, match="measured on different text"):
        estimate.contrast(bound)


def rows(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]["prompt_logprobs"]


def changed(change: Callable[[dict[str, Any]], Any]) -> Fault:
    """Returns the fault by which every answer is changed in place, or is what the change returns."""

    def fault(_handler: Handler, answer: dict[str, Any]) -> Any:
        other = change(answer)
        return answer if other is None else other

    return fault


def rename(row: dict[str, Any], old: Callable[[dict[str, Any]], bool], new: str) -> None:
    """Gives the first entry of a row for which something holds another key."""
    key = next(key for key, entry in row.items() if old(entry))
    row[new] = row.pop(key)


def swap_ranks(row: dict[str, Any]) -> None:
    first, second = (next(entry for entry in row.values() if entry["rank"] == rank) for rank in (1, 2))
    first["rank"], second["rank"] = 2, 1


def name_twice(row: dict[str, Any]) -> None:
    first = next(key for key, entry in row.items() if entry["rank"] == 1)
    rename(row, lambda entry: entry["rank"] == 2, f"0{first}")


def set_all(row: dict[str, Any], **values: Any) -> None:
    for entry in row.values():
        entry.update(values)


FORM = "gives an answer of another form at /v1/completions"
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no log-probabilities": (lambda a: a["choices"][0].pop("prompt_logprobs") and None, "gives no log-probabilities"),
    "another count": (lambda a: a["usage"].update(prompt_tokens=9), "counts 9 tokens in a prompt of 8"),
    "other ids": (lambda a: a["choices"][0]["prompt_token_ids"].__setitem__(1, 5), "answers about other tokens"),
    "other tokens": (lambda a: rename(rows(a)[1], lambda _: True, "16383"), "no log-probability for token"),
    "another model": (lambda a: a.update(model="huge"), "answers as 'huge', and 'tiny' was asked"),
    "-9999": (lambda a: set_all(rows(a)[1], logprob=-9999.0), "a probability of 0 (-9999)"),
    "NaN": (lambda a: set_all(rows(a)[1], logprob=math.nan), "answers with NaN in place of a number"),
    "infinity": (lambda a: re.sub(rb"-[0-9.]+", b"-1e999", json.dumps(a).encode(), count=1), "infinite"),
    "above 1": (lambda a: set_all(rows(a)[1], logprob=0.5), "above 0"),
    "more than 100%": (lambda a: set_all(rows(a)[1], logprob=-0.1), "more than 100% of probability"),
    "truncated": (lambda a: rows(a).pop() and None, "gives 7 prompt_logprobs for a prompt of 8 tokens"),
    "fewer tokens": (lambda a: rename(rows(a)[1], lambda e: e["rank"] == 3, "x"), FORM),
    "fewer top tokens": (lambda a: [e.update(rank=99) for e in list(rows(a)[1].values())[-3:]] and None, "gives the 1"),
    "another order": (lambda a: swap_ranks(rows(a)[1]), "does not give the most probable tokens in order"),
    "named twice": (lambda a: name_twice(rows(a)[1]), "names one of the most probable tokens twice"),
    "negative id": (lambda a: rename(rows(a)[1], lambda e: e["rank"] == 3, "-1"), FORM),
    "id too large": (lambda a: rename(rows(a)[1], lambda e: e["rank"] == 3, "16384"), "names token 16384, and"),
    "nothing": (lambda _: {}, "gives no completion"),
    "an array": (lambda _: [1], "answers with a JSON list"),
    "nested": (lambda _: b"[" * 100_000, "nested too deeply"),
    "choices": (lambda a: a.update(choices=5), "gives no completion"),
    "choice": (lambda a: a.update(choices=[[]]), "gives no completion"),
    "usage": (lambda a: a.update(usage=5), FORM),
    "rows": (lambda a: a["choices"][0].update(prompt_logprobs="abcdefgh"), FORM),
    "a row": (lambda a: rows(a).__setitem__(1, [1]), "no log-probability for token"),
    "an entry": (lambda a: rows(a)[1].update({"7": 5}), FORM),
    "no rank": (lambda a: [e.pop("rank") for e in rows(a)[1].values()] and None, "'rank' is missing"),
    "no logprob": (lambda a: [e.pop("logprob") for e in rows(a)[1].values()] and None, "'logprob' is missing"),
    "words": (lambda a: set_all(rows(a)[1], logprob="-1.5"), "'-1.5' in place of a number"),
    "a web page": (lambda _: None, "answers with a web page"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_cannot_be_used_is_refused(name, saved_reference, scorer, command, tmp_path) -> None:
    change, message = REFUSED[name]
    fault = changed(change)
    if name == "a web page":
        fault = lambda handler, _: handler.send(b"<html>", content_type="text/html")  # noqa: E731
    with FakeServer(scorer, fault=fault).running() as server:
        out, root = tmp_path / "scores.json", server.url.removesuffix("/v1")
        code, printed, errors = command("evaluate", server.url, "--reference", saved_reference, "--out", out)
    assert (code, printed) == (2, "")
    assert message in errors
    assert root in errors or name == "id too large"
    assert ";" in errors  # the remedy follows
    assert errors.count("\n") == 1
    assert not out.exists()


def test_a_server_without_log_probabilities_is_refused_before_the_reference_is_computed(reference, scorer) -> None:
    stages: list[str] = []
    with (
        FakeServer(
            scorer, fault=changed(lambda answer: answer["choices"][0].update(prompt_logprobs=None))
        ).running() as server,
        pytest.raises(InputError, match="gives no log-probabilities"),
    ):
        evaluate(server.url, reference=reference, progress=lambda stage, *_: stages.append(stage), **TEXT)
    assert not [stage for stage in stages if "evaluating" in stage]


SGLANG_REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no log-probabilities": (lambda about: about.pop("input_token_logprobs") and None, "gives no log-probabilities"),
    "another count": (lambda about: about.update(prompt_tokens=9), "counts 9 tokens in a prompt of 8"),
    "other tokens": (lambda about: about["input_token_logprobs"][2].__setitem__(1, 7), "answers about token 7 where"),
    "truncated": (lambda about: about["input_top_logprobs"].pop() and None, "gives 7 input_top_logprobs"),
    "named twice": (
        lambda about: about["input_top_logprobs"][1][19].__setitem__(1, about["input_top_logprobs"][1][0][1]),
        "twice",
    ),
    "left out": (lambda about: about["input_token_logprobs"][1].__setitem__(0, -1e-9), "probable tokens out"),
    "another order": (lambda about: about["input_top_logprobs"][1].reverse(), "in order"),
    "fewer": (lambda about: about["input_top_logprobs"][1].pop() and None, "gives the 19 most probable tokens, and 20"),
    "words": (lambda about: about["input_token_logprobs"][1].__setitem__(0, "-1"), "in place of a number"),
    "a text as id": (lambda about: about["input_top_logprobs"][1][0].__setitem__(1, "5"), "in place of a whole number"),
    "rows": (lambda about: about.update(input_top_logprobs={"a": 1}), "in place of an array"),
    "a row": (lambda about: about["input_token_logprobs"].__setitem__(1, 5), "another form at /generate"),
}


@pytest.mark.parametrize("name", SGLANG_REFUSED)
def test_an_answer_of_sglang_that_cannot_be_used_is_refused(name, saved_reference, scorer) -> None:
    change, message = SGLANG_REFUSED[name]
    with (
        FakeServer(scorer, SGLANG, fault=changed(lambda answer: change(answer["meta_info"]))).running() as server,
        pytest.raises(InputError, match=message) as refused,
    ):
        evaluate(server.url, reference=saved_reference)
    assert server.url.removesuffix("/v1") in str(refused.value)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, "lists no model"),
        ({"data": 5}, "gives an answer of another form at /v1/models"),
        ({"data": [5, {"id": 5}]}, "lists no model"),
        ([], "answers with a JSON list"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, "has a, b; choose one with --served-model"),
        ({"data": [{"id": "tiny", "max_model_len": 20}]}, "the server takes 20 tokens"),
    ],
)
def test_a_list_of_models_that_cannot_be_used(models, message, saved_reference, scorer, command) -> None:
    with FakeServer(scorer).running() as server:
        server.models = models
        code, printed, errors = command("evaluate", server.url, "--reference", saved_reference)
        wrong = command("evaluate", server.url, "--reference", saved_reference, "--served-model", "c")
    assert (code, printed) == (2, "")
    assert message in errors
    assert wrong[0] == 2


def broken_off(handler: Handler, answer: dict[str, Any]) -> None:
    content = json.dumps(answer).encode()
    handler.send_response(200)
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])
    handler.close_connection = True


PASSING: dict[str, Fault] = {
    "429": lambda handler, _: handler.send({"error": "busy"}, status=429, retry_after="1"),
    "500": lambda handler, _: handler.send({"error": "a worker died"}, status=500),
    "broken off": broken_off,
    "half a document": lambda _, answer: json.dumps(answer).encode()[:-100],
    "no answer": lambda handler, _: time.sleep(1) or setattr(handler, "close_connection", True),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_asked_again_and_the_scores_are_the_same(name, saved_reference, scorer, served) -> None:
    def fault(handler: Handler, answer: dict[str, Any]) -> Any:
        return PASSING[name](handler, answer) if handler.count in (3, 6) else answer

    options = ServerOptions(concurrency=4, timeout=0.7)
    with FakeServer(scorer, fault=fault).running() as server:
        begin = time.monotonic()
        scores = evaluate(server.url, reference=saved_reference, server=options)
    assert same(scores, served)
    assert "2 requests to the server had to be sent again" in scores.notes
    if name == "429":
        assert time.monotonic() - begin > 1.0  # as the server asked


@pytest.mark.parametrize("name", ["500", "no answer", "half a document"])
def test_what_does_not_pass_is_refused_after_a_while(name, saved_reference, scorer, command) -> None:
    with FakeServer(scorer, fault=PASSING[name]).running() as server:
        options = ("--timeout", "0.3", "--patience", "1")
        code, printed, errors = command("evaluate", server.url, "--reference", saved_reference, *options)
    assert (code, printed) == (2, "")
    assert f"the server at {server.url.removesuffix('/v1')} did not answer for" in errors
    assert "--patience" in errors


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "http://no-such-host.invalid:8000/v1"])
def test_a_server_that_is_not_there_is_refused_at_once(url, saved_reference, command) -> None:
    command("--version")  # imports
    begin = time.monotonic()
    code, _, errors = command("evaluate", url, "--reference", saved_reference)
    assert code == 2
    assert f"the server at {url.removesuffix('/v1')} cannot be reached" in errors
    assert time.monotonic() - begin < 3


def hanging(*, after: int, then: Fault | None = None) -> tuple[Fault, threading.Event]:
    """Returns the fault by which requests hang after some, of which the next does something else; and its end."""
    end = threading.Event()

    def fault(handler: Handler, answer: dict[str, Any]) -> Any:
        if handler.count < after:
            return answer
        if handler.count == after + 3 and then is not None:
            return then(handler, answer)
        end.wait(60)
        handler.close_connection = True
        return None

    return fault, end


def test_an_error_ends_the_requests_that_wait(saved_reference, scorer) -> None:
    begin = [0.0]

    def forbidden(handler: Handler, _answer: dict[str, Any]) -> None:
        begin[0] = time.monotonic()
        handler.send({"error": "not for you"}, status=403)

    fault, end = hanging(after=2, then=forbidden)
    with FakeServer(scorer, fault=fault).running() as server:
        with pytest.raises(InputError, match="status 403: not for you; put the key"):
            evaluate(server.url, reference=saved_reference, server=ServerOptions(concurrency=8))
        assert time.monotonic() - begin[0] < 2
        end.set()
    assert [thread for thread in threading.enumerate() if thread.name.endswith("(_work)")] == []


def test_ctrl_c_ends_the_requests_that_wait(saved_reference, scorer) -> None:
    fault, end = hanging(after=2)
    pressed = [0.0]

    def press() -> None:
        until(lambda: server.prompts > 5)
        pressed[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    with FakeServer(scorer, fault=fault).running() as server:
        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            evaluate(server.url, reference=saved_reference)
        assert time.monotonic() - pressed[0] < 2
        end.set()
        thread.join()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_the_key_is_sent_to_the_server_and_seen_nowhere(
    saved_reference, scorer, served, command, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    out = tmp_path / "scores.json"
    words = ("--reference", saved_reference, "--api-key-env", "MY_KEY", "--out", out)
    forbidden: Fault = lambda handler, answer: (  # noqa: E731
        answer
        if handler.count < 5
        else handler.send({"error": f"{handler.headers['authorization']} is late"}, status=403)
    )
    with FakeServer(scorer, fault=forbidden).running() as server:
        server.key, server.entry["root"] = KEY, f"/models/{KEY}"
        stopped = command("evaluate", server.url, *words)
        kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        server.fault = None
        finished = command("evaluate", server.url, *words)
        assert all(headers["authorization"] == f"Bearer {KEY}" for _, headers, _ in server.asked)
        server.key = "another"
        refused = command("evaluate", server.url, *words)
    assert (stopped[0], finished[0], refused[0]) == (2, 0, 2)
    assert "status 403: Bearer *** is late" in stopped[2]
    assert "status 401: the key Bearer *** is not valid; put the key of the server into" in refused[2]
    assert "scores.json.answers" in kept
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    seen = [
        *kept.values(),
        out.read_bytes(),
        *(part.encode() for run in (stopped, finished, refused) for part in run[1:]),
    ]
    assert not any(KEY.encode() in part for part in seen)
    assert same(Scores.load(out), served)
    monkeypatch.delenv("MY_KEY")
    assert command("evaluate", server.url, *words)[2].startswith("error: the environment variable MY_KEY is not set")


def test_a_redirect_is_not_followed(saved_reference, scorer, command, monkeypatch) -> None:
    monkeypatch.setenv("FAIRBITS_API_KEY", KEY)
    with FakeServer(scorer).running() as other:
        where = f"http://127.0.0.1:{other.server_address[1]}/v1/completions"
        with FakeServer(
            scorer, fault=lambda handler, _: handler.send({}, status=307, location=where)
        ).running() as server:
            code, _, errors = command("evaluate", server.url, "--reference", saved_reference)
        assert other.asked == []
    assert code == 2
    assert "redirects are not followed: give the address of the server itself" in errors
    assert KEY not in errors


def test_answers_stay_until_the_scores_are_written(
    saved_reference, scorer, served, command, monkeypatch, tmp_path
) -> None:
    out = tmp_path / "scores.json"
    words = ("--reference", saved_reference, "--out", out)
    with FakeServer(scorer).running() as server:
        with monkeypatch.context() as patch:
            patch.setattr(Scores, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert command("evaluate", server.url, *words)[0] == 130
        assert out.with_name("scores.json.answers").exists()
        before = server.prompts
        other = command("evaluate", server.url, *words, "--top-k", "10")
        assert other[0] == 2
        assert "has the answers of another server, model or text" in other[2]
        assert command("evaluate", server.url, *words)[0] == 0
        assert server.prompts == before + 2  # the first question of both calls
    assert same(Scores.load(out), served)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]


def test_a_server_that_answers_differently_the_second_time(saved_reference, scorer, served) -> None:
    seen: set[tuple[int, ...]] = set()

    def fault(handler: Handler, answer: dict[str, Any]) -> Any:
        ids = tuple(answer["choices"][0]["prompt_token_ids"])
        if handler.count > 0 and ids in seen:  # not the first question
            for row in rows(answer)[1:]:
                for entry in row.values():
                    entry["logprob"] -= 0.25
                swap_ranks(row)
                first, second = (next(e for e in row.values() if e["rank"] == rank) for rank in (1, 2))
                second["logprob"] = first["logprob"]
        seen.add(ids)
        return answer

    with FakeServer(scorer, fault=fault).running() as server:
        scores = evaluate(server.url, reference=saved_reference, server=ServerOptions(concurrency=1))
    assert same(scores, served)  # of the first answers
    assert scores.measurement is not None
    for code in LANGUAGES:
        noise = scores.measurement.noise[code]
        assert noise.tokens >= 192
        assert noise.changed > 0.9
        assert noise.difference >= 0.249
    assert any("two answers of the server to the same request differ by" in note for note in scores.notes)
    assert Scores.load(saved(scores, saved_reference.parent / "noise.json")).measurement == scores.measurement


def saved(scores: Scores, path: Path) -> Path:
    scores.save(path)
    return path


def test_text_that_a_server_writes_counts_as_that_of_its_checkpoint(reference, quantized, scorer) -> None:
    asked = {**TEXT, "generate": 10, "new_tokens": 6}
    here = evaluate(quantized, reference=reference, **asked).generated
    with FakeServer(scorer).running() as server:
        served = evaluate(server.url, reference=reference, **asked).generated
        server.fault = lambda _, answer: (
            answer if "prompt_logprobs" in answer["choices"][0] else answer | {"choices": [{"text": 5}]}
        )
        with pytest.raises(InputError, match="gives no text"):
            evaluate(server.url, reference=reference, **asked)
    assert here is not None
    assert served is not None
    assert served.as_record() == here.as_record()


def test_kinds_of_divergence_are_not_mixed(local, served, command, tmp_path) -> None:
    exact, bound = saved(local, tmp_path / "exact.json"), saved(served, tmp_path / "bound.json")
    for scores, baseline in ((exact, bound), (bound, exact), (bound, bound)):
        code, _, errors = command("gate", scores, "--against", baseline)
        assert code == 2
        assert "of the kind 'lower bound'" in errors
        assert "--measure loss" in errors
        assert command("gate", scores, "--against", baseline, "--measure", "loss")[0] in (0, 1)
    failed, printed, _ = command("gate", bound, "--max-worst", "0.0001")
    undecided, words, _ = command("gate", bound, "--max-worst", "1000")
    assert (failed, undecided) == (1, 1)
    assert printed.startswith("fail")
    assert "lower bound" in words
    code, printed, errors = command("report", bound, "--out", tmp_path / "report.html")
    assert (code, "KL is a lower bound" in (tmp_path / "report.html").read_text("utf-8")) == (0, True)


def test_the_report_repeats_the_options_of_servers(local, served, command, tmp_path) -> None:
    assert served.measurement is not None
    written = replace(served, measurement=replace(served.measurement, kl=WRITTEN))
    states = Measurement("vLLM", url="http://a", model="tiny", hidden_states="/states", checkpoint="./w4")
    exact = replace(local, quantized=served.quantized, measurement=states)
    commands = []
    for number, scores in enumerate((served, written, exact)):
        file, page = saved(scores, tmp_path / f"{number}.json"), tmp_path / f"{number}.md"
        assert command("report", file, "--out", page)[0] == 0
        line = next(line for line in page.read_text("utf-8").splitlines() if "fairbits evaluate" in line)
        commands.append(words_of(line.strip()))
        parse(commands[-1])
    bound, estimate, whole = (" ".join(words) for words in commands)
    assert bound.endswith("--served-model tiny --top-k 20")
    assert estimate == f"{bound} --own-text"
    assert whole.endswith("--served-model tiny --hidden-states /states --checkpoint ./w4")
    assert bound.startswith(f"evaluate {served.quantized.target} --reference ")


@pytest.mark.parametrize(
    "words", [("--own-text",), ("--top-k", "5"), ("--served-model", "a"), ("--concurrency", "2"), ("--patience", "1")]
)
def test_options_of_servers_are_refused_for_a_checkpoint(words, quantized, reference, command) -> None:
    code, _, errors = command("evaluate", quantized.directory, "--reference", reference.directory, *WORDS, *words)
    assert code == 2
    assert f"{words[0]} is for running servers" in errors


class TestHiddenStates:
    """vLLM that writes hidden states."""

    @pytest.fixture
    def states(self, tmp_path, quantized, scorer) -> Iterator[tuple[FakeServer, StatesWriter, ServerOptions]]:
        directory = tmp_path / "states"
        directory.mkdir()
        writer = StatesWriter(scorer, quantized, directory)
        options = ServerOptions(hidden_states=directory, checkpoint=str(quantized.directory), concurrency=4)
        with FakeServer(scorer).running() as server:
            server.states = writer
            yield server, writer, options

    def test_divergence_is_exact_and_files_are_deleted(self, states, saved_reference, local) -> None:
        server, writer, options = states
        scores = evaluate(server.url, reference=saved_reference, server=options)
        assert scores.documents.kl == pytest.approx(local.documents.kl, rel=1e-4)
        assert scores.documents.nll_quantized == pytest.approx(local.documents.nll_quantized, rel=1e-5)
        assert np.array_equal(scores.documents.flips, local.documents.flips)
        assert scores.kl_kind == WHOLE
        assert list(writer.directory.iterdir()) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda t: t | {"hidden_states": t["hidden_states"][:, 0].contiguous()},
                "wrote hidden states of the shape",
            ),
            (lambda t: t | {"hidden_states": t["hidden_states"][1:].contiguous()}, "wrote hidden states of the shape"),
            (lambda t: t | {"token_ids": t["token_ids"] + 1}, "hidden states of other tokens"),
            (lambda t: {"token_ids": t["token_ids"]}, "cannot be read"),
        ],
    )
    def test_other_states_are_refused(self, change, message, states, saved_reference) -> None:
        server, writer, options = states
        writer.change = change
        with pytest.raises(InputError, match=message):
            evaluate(server.url, reference=saved_reference, server=options)

    def test_files_elsewhere_are_neither_read_nor_deleted(self, states, saved_reference, tmp_path) -> None:
        server, writer, options = states
        other = writer.directory = tmp_path / "other"
        other.mkdir()
        with pytest.raises(InputError, match="keeps its hidden states in"):
            evaluate(server.url, reference=saved_reference, server=options)
        until(lambda: [path for path in other.iterdir() if path.suffix == ".safetensors"])
        server.states = lambda _: str(options.hidden_states / "none.safetensors")
        with pytest.raises(InputError, match="is not on this machine"):
            evaluate(server.url, reference=saved_reference, server=options)
        server.states = None
        with pytest.raises(InputError, match="names no file of hidden states"):
            evaluate(server.url, reference=saved_reference, server=options)
