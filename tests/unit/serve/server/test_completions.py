"""Completions over HTTP, by the real client of OpenAI: the same text as the model gives alone."""

import asyncio
from typing import Any

import openai
import pytest

from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.text.included_texts import udhr

from .conftest import OVERLAYS, PROMPTS, Running, until


def test_an_answer_is_what_the_model_gives(server: Running, model: AdaptiveModel) -> None:
    for code, prompt in PROMPTS.items():
        answer, alone = server.complete(prompt, max_tokens=8), model.generate(prompt, max_new_tokens=8)[0]
        assert (answer.object, answer.model) == ("text_completion", "tiny")
        choice = answer.choices[0]
        assert (choice.index, choice.text, choice.finish_reason) == (0, alone.text, alone.finish_reason)
        served = choice.fairbits
        assert (served["language"], served["overlay"], served["reason"]) == (code, OVERLAYS[code], "detected")
        assert served["confidence"] > 0.5
        assert answer.usage.prompt_tokens == alone.prompt_tokens
        assert answer.usage.completion_tokens == alone.completion_tokens
        assert answer.usage.total_tokens == alone.prompt_tokens + alone.completion_tokens


@pytest.mark.long
def test_two_hundred_at_once_in_four_languages(server: Running, model: AdaptiveModel) -> None:
    texts = udhr(list(PROMPTS)).evaluation
    prompts = [texts[code][at][:30] for code in PROMPTS for at in range(10)]
    order = [prompts[(i * 67) % 40] for i in range(200)]  # languages mixed, every prompt five times
    before, switched = server.number("fairbits_completions_total"), server.number("fairbits_switches_total")

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            jobs = (client.completions.create(model="tiny", prompt=p, max_tokens=3, temperature=0) for p in order)
            return await asyncio.gather(*jobs)

    answers = asyncio.run(ask())
    alone = dict(zip(prompts, model.generate(prompts, max_new_tokens=3, batch=1), strict=True))
    for prompt, answer in zip(order, answers, strict=True):
        single = alone[prompt]
        assert answer.choices[0].text == single.text
        assert answer.choices[0].fairbits["overlay"] == single.choice.overlay
        assert answer.choices[0].finish_reason == single.finish_reason
    assert {answer.choices[0].fairbits["overlay"] for answer in answers} == {"a", "b", "base"}
    assert server.number("fairbits_completions_total") - before == 200
    assert server.number("fairbits_switches_total") - switched < 150  # rows of one overlay go together


def test_a_stream_is_the_answer_in_pieces(server: Running) -> None:
    for prompt in PROMPTS.values():
        whole = server.complete(prompt, max_tokens=12)
        with server.complete(prompt, max_tokens=12, stream=True, stream_options={"include_usage": True}) as stream:
            assert stream.response.headers["X-Fairbits-Overlay"] == whole.choices[0].fairbits["overlay"]
            chunks = list(stream)
        *pieces, last = chunks
        assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text
        assert len(pieces) > 3
        assert [chunk.choices[0].finish_reason for chunk in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert pieces[-1].choices[0].fairbits == whole.choices[0].fairbits
        assert (last.choices, last.usage) == ([], whole.usage)
        assert not any("\ufffd" in chunk.choices[0].text for chunk in pieces)


def test_several_prompts_and_several_choices(server: Running) -> None:
    prompts = list(PROMPTS.values())
    raw = server.client.completions.with_raw_response.create(
        model="tiny", prompt=prompts, n=2, max_tokens=4, temperature=0
    )
    answer = raw.parse()
    assert [choice.index for choice in answer.choices] == list(range(8))
    singles = [server.complete(prompt, max_tokens=4) for prompt in prompts]
    assert [choice.text for choice in answer.choices[::2]] == [completion.choices[0].text for completion in singles]
    assert [choice.text for choice in answer.choices[1::2]] == [completion.choices[0].text for completion in singles]
    assert answer.usage.prompt_tokens == sum(completion.usage.prompt_tokens for completion in singles)
    assert answer.usage.completion_tokens == 2 * sum(completion.usage.completion_tokens for completion in singles)
    assert raw.headers["X-Fairbits-Overlay"] == "a, a, a, a, b, b, base, base"
    assert raw.headers["X-Fairbits-Language"].split(", ")[::2] == list(PROMPTS)


def test_a_stop_string_ends_the_text_before_it(server: Running) -> None:
    whole = server.complete(PROMPTS["eng_Latn"], max_tokens=24).choices[0].text
    stop = whole[10:13]
    expected = whole[: whole.index(stop)]
    cut = server.complete(PROMPTS["eng_Latn"], max_tokens=24, stop=["not there", stop])
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (expected, "stop")
    assert cut.usage.completion_tokens < 24
    with server.complete(PROMPTS["eng_Latn"], max_tokens=24, stop=stop, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == expected
    never = server.complete(PROMPTS["eng_Latn"], max_tokens=24, stop=whole[-3:] + "never")
    assert (never.choices[0].text, never.choices[0].finish_reason) == (whole, "length")


def test_the_same_seed_gives_the_same_text_in_any_company(server: Running) -> None:
    asked = {"max_tokens": 8, "temperature": 1.2, "top_p": 0.95}
    first = [server.complete(PROMPTS["fra_Latn"], seed=seed, **asked).choices[0].text for seed in (1, 1, 2)]
    assert first[0] == first[1] != first[2]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            arguments = {"model": "tiny", "prompt": PROMPTS["fra_Latn"], **asked}
            jobs = [client.completions.create(**arguments, **({"seed": 1} if i % 3 == 0 else {})) for i in range(12)]
            return [answer.choices[0].text for answer in await asyncio.gather(*jobs)]

    texts = asyncio.run(ask())
    assert texts[::3] == [first[0]] * 4
    assert len(set(texts)) > 3
    several = server.complete(PROMPTS["fra_Latn"], seed=1, n=2, **asked).choices
    assert several[0].text == first[0] != several[1].text


def test_a_language_can_be_named(server: Running) -> None:
    answer = server.complete("1, 2, 3", max_tokens=2)
    assert answer.choices[0].fairbits == {
        "language": None,
        "confidence": None,
        "overlay": "base",
        "reason": "undetectable",
    }
    answer = server.complete("1, 2, 3", max_tokens=2, extra_body={"language": "ja"})
    assert answer.choices[0].fairbits == {
        "language": "jpn_Jpan",
        "confidence": None,
        "overlay": "b",
        "reason": "asked",
    }
    with pytest.raises(openai.BadRequestError, match="served") as refused:
        server.complete("hallo", extra_body={"language": "deu_Latn"})
    assert refused.value.param == "language"


def test_models(server: Running) -> None:
    (one,) = server.client.models.list().data
    assert (one.id, one.object, one.owned_by) == ("tiny", "model", "fairbits")
    assert {language["code"]: language["overlay"] for language in one.fairbits["languages"]} == OVERLAYS
    assert one.fairbits["overlays"] == ["a", "b"]
    assert server.client.models.retrieve("tiny") == one
    for ask in (lambda: server.client.models.retrieve("large"), lambda: ask_other(server)):
        with pytest.raises(openai.NotFoundError) as refused:
            ask()
        assert refused.value.code == "model_not_found"


def ask_other(server: Running) -> None:
    server.client.completions.create(model="large", prompt="a")


def test_a_client_that_leaves_frees_its_place(running: Any, model: AdaptiveModel) -> None:
    with running(max_batch=1) as server:
        stream = server.complete(PROMPTS["eng_Latn"], max_tokens=512, stream=True)
        next(iter(stream))
        stream.close()
        until(lambda: server.number("fairbits_cancelled_total") == 1)
        generated = server.number("fairbits_generated_tokens_total")
        assert 0 < generated < 512
        hasty = server.client.with_options(timeout=0.3).completions
        with pytest.raises(openai.APITimeoutError):
            hasty.create(model="tiny", prompt=PROMPTS["jpn_Jpan"], max_tokens=512, temperature=0)
        until(lambda: server.number("fairbits_cancelled_total") == 2)
        with model.using("base"), pytest.raises(openai.APITimeoutError):  # this one leaves while it waits
            hasty.create(model="tiny", prompt=[PROMPTS["jpn_Jpan"]] * 3, max_tokens=9, temperature=0)
        until(lambda: not server.number("fairbits_queue_length") and not server.number("fairbits_running"))
        assert server.complete(PROMPTS["jpn_Jpan"], max_tokens=2).usage.completion_tokens == 2
