"""The scheduler alone, with the real model: who is decoded with whom, and when."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai
import pytest

from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server import scheduler as module
from fairbits.serve.server.decoding import ChoiceEvent, PendingChoice
from fairbits.serve.server.request import Limits, RequestError, Sampling
from fairbits.serve.server.scheduler import Metrics, Scheduler

from .conftest import PROMPTS, Running, until

GREEDY = Sampling(0.0, 1.0, None)


@contextmanager
def started(model: AdaptiveModel, **limits: int) -> Iterator[tuple[Scheduler, Metrics]]:
    metrics = Metrics()
    scheduler = Scheduler(model, Limits(**limits), metrics)
    scheduler.start()
    try:
        yield scheduler, metrics
    finally:
        scheduler.stop(10)


def row(
    model: AdaptiveModel,
    code: str,
    emit: Callable[[ChoiceEvent], None],
    *,
    tokens: int = 1,
    sampling: Sampling = GREEDY,
) -> PendingChoice:
    ids = tuple(model.tokenizer(PROMPTS[code])["input_ids"])
    return PendingChoice(0, ids, model.choose(PROMPTS[code]), tokens, (), sampling, False, emit)


def submit(scheduler: Scheduler, rows: list[PendingChoice]) -> None:
    scheduler.reserve(len(rows))
    scheduler.submit(rows)


def test_the_oldest_goes_first_with_others_of_its_overlay(model: AdaptiveModel) -> None:
    ended: list[str] = []

    def named(name: str) -> Callable[[ChoiceEvent], None]:
        return lambda _: ended.append(name)

    with started(model, max_batch=3) as (scheduler, metrics):
        with model.using("base"):
            submit(scheduler, [row(model, "fra_Latn", named("first"))])
            until(lambda: scheduler._running)
            line = ["heb 1", "jpn 1", "eng 1", "jpn 2", "heb 2", "eng 2", "heb 3", "fra 1", "eng 3"]
            codes = {"heb": "heb_Hebr", "jpn": "jpn_Jpan", "eng": "eng_Latn", "fra": "fra_Latn"}
            submit(scheduler, [row(model, codes[name[:3]], named(name)) for name in line])
        until(lambda: len(ended) == 10)
        # a batch is of one overlay, three rows at most, and begins with the oldest row
        batches = ["first", "heb 1", "eng 1", "heb 2", "jpn 1", "jpn 2", "eng 2", "heb 3", "eng 3", "fra 1"]
        assert ended == batches
        assert b"fairbits_batch_size_count 5.0" in metrics.text()
        assert b"fairbits_switches_total 4.0" in metrics.text()


def test_a_stream_of_one_language_delays_another_by_one_batch(model: AdaptiveModel) -> None:
    ended: list[str] = []
    with started(model, max_batch=2) as (scheduler, _):

        def again(_: ChoiceEvent) -> None:  # as a client that always has another request of the same language
            ended.append("eng")
            if len(ended) < 40:
                submit(scheduler, [row(model, "eng_Latn", again)])

        with model.using("a"):
            submit(scheduler, [row(model, "eng_Latn", again) for _ in range(4)])
            until(lambda: scheduler._running)
            submit(scheduler, [row(model, "jpn_Jpan", lambda _: ended.append("jpn"))])
        until(lambda: len(ended) >= 40)
    assert ended.index("jpn") == 4  # those that were there before it, and none that came after


def test_what_may_be_decoded_together(model: AdaptiveModel) -> None:
    def kind(code: str, *sampling: float | None) -> object:
        return row(model, code, print, sampling=Sampling(*sampling)).batch_key  # type: ignore[arg-type]

    assert kind("eng_Latn", 0, 1, None) == kind("heb_Hebr", 0, 1, 7) != kind("jpn_Jpan", 0, 1, None)
    assert kind("eng_Latn", 0.5, 1, None) == kind("heb_Hebr", 0.5, 1, None) != kind("heb_Hebr", 0.6, 1, None)
    one, other = (row(model, "eng_Latn", print, sampling=Sampling(0.5, 1, 7)) for _ in range(2))
    assert one.batch_key != other.batch_key


def test_a_row_that_ends_early_does_not_wait_for_the_others(model: AdaptiveModel) -> None:
    seen: list[list[int]] = []
    with started(model) as (scheduler, _):
        rows = [
            row(model, "eng_Latn", lambda _: seen.append([choice.tokens for choice in rows]), tokens=n) for n in (2, 30)
        ]
        submit(scheduler, rows)
        until(lambda: len(seen) == 2)
    (short, meanwhile), last = seen
    assert short == 2
    assert meanwhile < 3
    assert last == [2, 30]


def test_a_failure_is_told_and_the_next_batch_has_its_turn(server: Running, monkeypatch, caplog) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError("secret of the machine")

    with monkeypatch.context() as patch:
        patch.setattr(module, "decode", fails)
        with pytest.raises(openai.InternalServerError) as failed:
            server.complete(PROMPTS["eng_Latn"])
        assert failed.value.response.status_code == 500
        assert "secret" not in failed.value.response.text
        with pytest.raises(openai.APIError, match="see its log"):
            list(server.complete(PROMPTS["eng_Latn"], stream=True))
    assert "secret of the machine" in caplog.text
    assert server.complete(PROMPTS["eng_Latn"], max_tokens=2).usage.completion_tokens == 2


def test_no_more_wait_than_may(model: AdaptiveModel) -> None:
    with started(model, max_queue=2, max_batch=1) as (scheduler, _):
        ended: list[object] = []
        with model.using("base"):
            submit(scheduler, [row(model, "fra_Latn", ended.append)])
            until(lambda: scheduler._running)
            waiting = [row(model, "fra_Latn", ended.append) for _ in range(2)]
            submit(scheduler, waiting)
            with pytest.raises(RequestError) as full:
                scheduler.reserve(1)
            assert (full.value.status, full.value.headers) == (429, {"Retry-After": "1"})
            scheduler.cancel(waiting[:1])
            scheduler.reserve(1)
            with pytest.raises(RequestError):
                scheduler.reserve(1)
            scheduler.release(1)
            with pytest.raises(RequestError) as never:
                scheduler.reserve(3)
            assert never.value.status == 400
        until(lambda: len(ended) == 2)
        scheduler.closing = True
        with pytest.raises(RequestError) as closed:
            scheduler.reserve(1)
        assert closed.value.status == 503
