"""Log-probabilities over HTTP against transformers, which reads the same model by itself."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairbits.models.embedded import ASSETS
from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server.log_probabilities import LEAST, log_probabilities
from fairbits.serve.server.request import Limits, RequestError, parse_request

from .conftest import PROMPTS, Running

TINY = ASSETS / "tiny"
TEXTS = [*PROMPTS.values(), "A"]


@pytest.fixture(scope="module")
def tiny(running) -> Iterator[Running]:
    """Returns a server of the embedded model as it is, which gives all log-probabilities."""
    with running(served=AdaptiveModel("embedded:tiny", device="cpu"), max_logprobs=-1) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def expected(tokenizer) -> dict[str, np.ndarray]:
    """Returns log-softmax of the logits of transformers in float32, in which numpy sums, by text."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = {text: model(**tokenizer(text, return_tensors="pt")).logits[0].double().numpy() for text in TEXTS}
    return {text: values - np.logaddexp.reduce(values, axis=-1, keepdims=True) for text, values in logits.items()}


@pytest.mark.parametrize("count", [0, 3, -1])
def test_prompt_logprobs_are_those_of_transformers(tiny: Running, tokenizer, expected, count) -> None:
    texts = TEXTS if count >= 0 else TEXTS[1:2]
    answer = tiny.complete(texts, max_tokens=1, extra_body={"prompt_logprobs": count})
    by_ids = tiny.complete(tokenizer(texts).input_ids, max_tokens=1, extra_body={"prompt_logprobs": count})
    assert answer.usage == by_ids.usage
    assert answer.usage.prompt_tokens == sum(map(len, tokenizer(texts).input_ids))
    for text, choice, other in zip(texts, answer.choices, by_ids.choices, strict=True):
        assert choice.prompt_logprobs == other.prompt_logprobs
        assert choice.text == other.text
        assert choice.logprobs is None
        ids, values = tokenizer(text).input_ids, expected[text]
        assert choice.prompt_logprobs[0] is None
        assert len(choice.prompt_logprobs) == len(ids)
        for row, entries, token in zip(values, choice.prompt_logprobs[1:], ids[1:], strict=False):
            top = np.argsort(-row, kind="stable")[: count if count >= 0 else None]
            assert next(iter(entries)) == str(token)
            assert set(entries) == {str(token), *map(str, top)}
            for key, entry in entries.items():
                assert set(entry) == {"logprob", "rank", "decoded_token"}
                assert entry["logprob"] == pytest.approx(row[int(key)], abs=2e-5)
                assert (
                    abs(entry["rank"] - 1 - (row > row[int(key)]).sum()) <= (np.abs(row - row[int(key)]) < 4e-5).sum()
                )
                assert entry["decoded_token"] == tokenizer.decode([int(key)])


def test_echo_is_what_lm_eval_reads(tiny: Running, tokenizer, expected) -> None:
    """Its `local-completions` takes the entries from the end of the context to the last but one."""
    prompts = tokenizer(TEXTS).input_ids
    answer = tiny.complete(prompts, max_tokens=1, logprobs=1, echo=True, seed=1234)
    assert answer.usage.completion_tokens == len(prompts)
    for text, ids, choice in zip(TEXTS, prompts, answer.choices, strict=True):
        assert choice.text.startswith(text)
        scores = choice.logprobs
        size = len(ids) + 1  # one of them is new
        assert [len(part) for part in dict(scores).values()] == [size] * 4
        assert scores.tokens[:-1] == [tokenizer.decode([token]) for token in ids]
        assert (scores.token_logprobs[0], scores.top_logprobs[0]) == (None, None)
        values = [expected[text][place, token] for place, token in enumerate(ids[1:])]
        assert scores.token_logprobs[1:-1] == pytest.approx(values, abs=2e-5)
        assert scores.token_logprobs[-1] == pytest.approx(expected[text][-1].max(), abs=2e-5)  # temperature 0
        for place, (token, top) in enumerate(zip(ids[1:], scores.top_logprobs[1:], strict=False)):
            greedy = expected[text][place].argmax() == token
            assert (scores.token_logprobs[place + 1] == max(top.values())) == greedy
        assert scores.text_offset == sorted(scores.text_offset)
        assert scores.text_offset[0] == 0
        assert scores.text_offset[-1] == len(text)


def test_no_new_tokens_and_only_new_tokens(tiny: Running) -> None:
    text = PROMPTS["eng_Latn"]
    none = tiny.complete(text, max_tokens=0, echo=True, logprobs=2, extra_body={"prompt_logprobs": 0})
    assert (none.choices[0].text, none.choices[0].finish_reason) == (text, "length")
    assert none.usage.completion_tokens == 0
    own = [next(iter(entries.values()))["logprob"] for entries in none.choices[0].prompt_logprobs[1:]]
    assert none.choices[0].logprobs.token_logprobs == [None, *own]
    assert tiny.complete(text, max_tokens=0, echo=True).choices[0].text == text
    with tiny.complete(text, max_tokens=0, echo=True, stream=True) as stream:
        assert [chunk.choices[0].text for chunk in stream] == [text]
    new, plain = tiny.complete(text, max_tokens=5, logprobs=0), tiny.complete(text, max_tokens=5)
    assert new.choices[0].text == plain.choices[0].text == "".join(new.choices[0].logprobs.tokens)
    assert all(list(top.values()) == [value] for top, value in scored(new))
    both = tiny.complete(text, max_tokens=5, logprobs=0, echo=True, n=2).choices
    assert [choice.text for choice in both] == [text + plain.choices[0].text] * 2
    assert both[0].logprobs.token_logprobs[-5:] == new.choices[0].logprobs.token_logprobs
    with tiny.complete(text, max_tokens=5, echo=True, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == both[0].text


def scored(answer: Any) -> list[tuple[dict[str, float], float]]:
    scores = answer.choices[0].logprobs
    return list(zip(scores.top_logprobs, scores.token_logprobs, strict=True))


def test_the_overlay_of_the_text_is_scored(server: Running, model: AdaptiveModel) -> None:
    for text in PROMPTS.values():
        choice = server.complete(text, max_tokens=0, extra_body={"prompt_logprobs": 0}).choices[0]
        ids = model.tokenizer(text)["input_ids"]
        with model.using(choice.fairbits["overlay"]) as weights, torch.no_grad():
            values = weights(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [next(iter(entries.values()))["logprob"] for entries in choice.prompt_logprobs[1:]]
        assert own == pytest.approx([float(values[i, token]) for i, token in enumerate(ids[1:])], abs=1e-5)


def test_more_than_the_server_gives(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs is 21; it must be a whole number from 0 to 20"):
        server.complete("a", max_tokens=1, extra_body={"prompt_logprobs": 21})
    with pytest.raises(openai.BadRequestError, match="token id 16384; the last one is 16383"):
        server.complete([1, 16384], max_tokens=1)
    with pytest.raises(RequestError, match="of at least -1, which stands for all"):
        parse_request(b'{"model": "a", "prompt": "a", "logprobs": -2}', Limits(max_logprobs=-1))


def test_a_probability_of_zero_is_a_number_in_json(tokenizer) -> None:
    class Certain:
        device = torch.device("cpu")

        def __call__(self, input_ids: torch.Tensor, **_: bool) -> Any:
            logits = torch.full((*input_ids.shape, 9), -math.inf)
            logits[..., 4] = 0.0
            return type("Output", (), {"logits": logits})

    request = parse_request(b'{"model": "a", "prompt": [1, 4, 5], "prompt_logprobs": 1}', Limits())
    data = log_probabilities(Certain(), tokenizer, request, [1, 4, 5], prompt=3, pieces=["", "", ""])
    assert [{k: (v["logprob"], v["rank"]) for k, v in row.items()} for row in data["prompt_logprobs"][1:]] == [
        {"4": (0.0, 1)},
        {"5": (LEAST, 2), "4": (0.0, 1)},
    ]
