"""Writers: continuations by the most probable tokens and by drawn ones, whatever the batch."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.evaluation import writer
from fairbits.evaluation.writer import LocalWriter, drawn, end_tokens, write_text
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.included_texts import udhr

NEW = 12


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


@pytest.fixture(scope="module")
def prompts(tiny: Checkpoint) -> list[list[int]]:
    """Returns beginnings of different lengths in three languages."""
    corpus = udhr(["eng", "heb", "tha"])
    texts = [corpus.evaluation[code][i] for i in range(3) for code in corpus.evaluation]
    return [[1, *ids[: 6 + i]] for i, ids in enumerate(tiny.tokenizer()(texts, add_special_tokens=False)["input_ids"])]


@torch.no_grad()
def written_alone(model: Any, prompt: list[int], count: int) -> list[int]:
    """Returns the most probable tokens one by one, without a cache, a batch or `generate`."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] == 2:
            break
    return ids[len(prompt) :]


def test_most_probable_tokens_are_those_of_the_model_alone(tiny: Checkpoint, prompts: list[list[int]]) -> None:
    model = tiny.load()
    expected = [written_alone(model, prompt, NEW) for prompt in prompts]
    assert write_text(tiny, prompts, new_tokens=NEW, temperature=0) == expected


def test_drawn_tokens_depend_on_the_prompt_and_the_seed_alone(
    tiny: Checkpoint, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = write_text(tiny, prompts, new_tokens=NEW, seed=3)
    assert write_text(tiny, prompts[::-1], new_tokens=NEW, seed=3) == together[::-1]
    assert [write_text(tiny, [prompt], new_tokens=NEW, seed=3)[0] for prompt in prompts[:2]] == together[:2]
    monkeypatch.setattr(writer, "ROWS", 2)
    assert write_text(tiny, prompts, new_tokens=NEW, seed=3) == together
    assert write_text(tiny, prompts, new_tokens=NEW, seed=4) != together


def test_a_prompt_that_occurs_again_gets_another_text(tiny: Checkpoint, prompts: list[list[int]]) -> None:
    first, second = write_text(tiny, [prompts[0]] * 2, new_tokens=NEW)
    assert first != second


def test_drawn_tokens_have_the_probabilities_of_the_model(
    tiny: Checkpoint, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token of 600 draws after one prompt, against the softmax: Pearson's χ² of the ten likeliest."""
    count, prompt = 600, prompts[0]
    monkeypatch.setattr(writer, "ROWS", 200)
    with torch.no_grad():
        logits = tiny.load()(input_ids=torch.tensor([prompt])).logits[0, -1]
    p = (logits.double() / 1.3).softmax(-1)
    seen = Counter(new[0] for new in write_text(tiny, [prompt] * count, new_tokens=1, temperature=1.3))
    top = p.topk(10).indices.tolist()
    parts = [(seen[token], float(p[token])) for token in top]
    parts.append((count - sum(n for n, _ in parts), 1 - sum(share for _, share in parts)))
    chi2 = sum((n - count * share) ** 2 / (count * share) for n, share in parts)
    assert chi2 < 29.6  # exceeded with probability 0.001 at 10 degrees of freedom


def test_drawn_is_the_inverse_of_the_cumulative_distribution() -> None:
    rng = np.random.default_rng(0)
    logits, u = rng.normal(size=(50, 7)), rng.random(50)
    logits[:, 2] = -np.inf
    share = np.exp(logits / 0.7)
    share /= share.sum(axis=1, keepdims=True)
    expected = [int(np.flatnonzero(np.cumsum(row) > x)[0]) for row, x in zip(share, u, strict=True)]
    assert drawn(torch.tensor(logits), torch.tensor(u), temperature=0.7).tolist() == expected
    assert drawn(torch.tensor(logits), torch.zeros(50), temperature=0.7).eq(0).all()
    assert 2 not in expected


def test_text_stops_at_its_end_and_answers_say_so(tiny: Checkpoint, prompts: list[list[int]]) -> None:
    free = write_text(tiny, prompts, new_tokens=NEW, temperature=0)
    ends = {free[0][4]}
    answers = LocalWriter(tiny, ends=ends).answers(prompts, new_tokens=NEW)
    tokenizer = tiny.tokenizer()
    for prompt, whole, answer in zip(prompts, free, answers, strict=True):
        end = next((i + 1 for i, token in enumerate(whole) if token in ends), NEW)
        assert answer.ids == tuple(whole[:end])
        assert answer.ended == bool(ends & {*whole})
        assert tokenizer.decode(prompt, skip_special_tokens=True) + answer.text == tokenizer.decode(
            [*prompt, *whole[:end]], skip_special_tokens=True
        )
    assert answers[0].ended
    assert not all(answer.ended for answer in answers)


def with_generation_config(tiny: Checkpoint, directory: Path, **settings: Any) -> Checkpoint:
    shutil.copytree(tiny.directory, directory)
    (directory / "generation_config.json").write_text(json.dumps(settings))
    return Checkpoint(directory)


def test_settings_of_the_files_change_nothing_but_the_end(
    tiny: Checkpoint, prompts: list[list[int]], tmp_path: Path
) -> None:
    ends = [2, 17]
    checkpoint = with_generation_config(
        tiny, tmp_path / "m", eos_token_id=ends, do_sample=True, repetition_penalty=3.0, top_k=1, max_length=20
    )
    assert end_tokens(checkpoint) == {2, 17}
    plain = LocalWriter(tiny, ends=ends)
    for temperature in (0.0, 1.0):
        here = write_text(checkpoint, prompts, new_tokens=NEW, temperature=temperature)
        assert here == plain.tokens(prompts, new_tokens=NEW, temperature=temperature)


def test_end_tokens_of_the_wrong_type_are_refused(tiny: Checkpoint, tmp_path: Path) -> None:
    checkpoint = with_generation_config(tiny, tmp_path / "m", eos_token_id="2")
    with pytest.raises(InputError, match="eos_token_id = '2'"):
        end_tokens(checkpoint)


def test_progress_counts_tokens(tiny: Checkpoint, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROWS", 4)
    shown: list[tuple[str, float, float]] = []
    LocalWriter(tiny, ends=(), name="reference").tokens(
        prompts, new_tokens=3, progress=lambda *state: shown.append(state)
    )
    total = 3 * len(prompts)
    assert shown[0] == ("writing text, reference", 0, 0)
    assert [done for _, done, _ in shown[1:]] == [4, 8, 12, 16, 20, 24, 25, 26, 27]
    assert {amount for _, _, amount in shown[1:]} == {total}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"new_tokens": 0}, "new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"prompts": [[1], []]}, r"prompts\[1\] has no token"),
    ],
)
def test_bad_requests(tiny: Checkpoint, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        write_text(tiny, **{"prompts": [[1]], "new_tokens": 2, **settings})


def test_too_many_tokens_for_the_model(reading_model: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(InputError, match="has 64 positions"):
        write_text(reading_model("gpt2"), [[1] * 60], new_tokens=5)


@pytest.mark.parametrize("family", ["xlmr", "mt5"])
def test_models_that_do_not_continue_text(reading_model: Callable[[str], Checkpoint], family: str) -> None:
    with pytest.raises(InputError, match="does not continue text"):
        LocalWriter(reading_model(family))


def test_models_that_do_not_fit(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "fits_whole", lambda needed, _device: needed < 4e6)
    with pytest.raises(InputError, match=r"has 54\.7 MB of weights in float32, and twice as much is not free on cpu"):
        LocalWriter(tiny)


def test_no_prompt_loads_no_model(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "load", None)
    assert LocalWriter(tiny).answers([], new_tokens=3) == []
