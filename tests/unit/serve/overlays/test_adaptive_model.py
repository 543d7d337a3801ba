"""AdaptiveModel: the weights that serve a text, and what they make of it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import fairbits.serve.overlays.switch as switching
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.adaptive_model import AdaptiveModel, Choice
from fairbits.serve.overlays.overlay_files import BASE, Overlay, Overlays
from fairbits.serve.overlays.switch import Switch
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import find_language

SERVED = {"eng_Latn": "a", "heb_Hebr": "a", "jpn_Jpan": "b", "fra_Latn": BASE}
NEW = 6


@pytest.fixture(scope="module")
def model(adaptive: tuple[Path, Path]) -> AdaptiveModel:
    return AdaptiveModel(*adaptive)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """Returns beginnings of several lengths in all languages, the languages in turn."""
    corpus = udhr(list(SERVED))
    return [corpus.evaluation[code][i][: 20 + 25 * i] for i in range(3) for code in SERVED]


@pytest.fixture(scope="module")
def static(adaptive: tuple[Path, Path]) -> Callable[[str, str], str]:
    """Returns the function that continues a text with plain transformers, by weights that are put in place once."""
    base = Checkpoint(adaptive[0])
    overlays, tokenizer = Overlays.load(adaptive[1], base), base.tokenizer()
    models = {name: base.load() for name in (BASE, "a", "b")}
    for name, model in models.items():
        Switch(model, overlays.overlays).to(name)

    def static(text: str, name: str) -> str:
        ids = tokenizer(text, return_tensors="pt")
        generated: Any = models[name].generate(**ids, max_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
        return str(tokenizer.decode(generated[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))

    return static


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def with_languages(adaptive: tuple[Path, Path], served: dict[str, str], **settings: Any) -> AdaptiveModel:
    base = Checkpoint(adaptive[0])
    overlays = Overlays.load(adaptive[1], base)
    return AdaptiveModel(base, Overlays(base.fingerprint, overlays.overlays, served), **settings)


def test_a_text_has_the_overlay_of_its_language(model: AdaptiveModel) -> None:
    assert model.names == (BASE, "a", "b")
    assert [language.code for language in model.languages] == list(SERVED)
    for code, overlay in SERVED.items():
        choice = model.choose(udhr([code]).evaluation[code][0])
        assert (choice.language, choice.overlay, choice.reason) == (find_language(code), overlay, "detected")
        assert choice.confidence is not None
        assert 0.9 < choice.confidence <= 1
    assert model.choose("Tous", language="ja") == Choice(find_language("jpn"), None, "b", "asked")
    assert model.choose("1, 2, 3 …") == Choice(None, None, BASE, "undetectable")
    far = "123 " * 5000 + "כל בני האדם נולדו"
    assert model.choose(far).overlay == "a"  # what comes first is no text
    unsure = model.choose("a")
    assert unsure.language is not None
    assert (unsure.overlay, unsure.reason) == (BASE, "unsure")


def test_languages_that_cannot_be_told_are_served_by_name(adaptive: tuple[Path, Path]) -> None:
    chinese = "人人生而自由，在尊严和权利上一律平等。"
    alike = with_languages(adaptive, {"zho_Hans": "a", "zho_Hant": "b", "eng_Latn": "b"})
    assert alike.choose(chinese) == Choice(None, None, BASE, "undetectable")
    assert alike.choose(chinese, language="zho_Hant").overlay == "b"
    same = with_languages(adaptive, {"zho_Hans": "a", "zho_Hant": "a", "eng_Latn": "b"})
    assert same.choose(chinese).overlay == "a"
    unknown = with_languages(adaptive, {"sat_Olck": "a", "eng_Latn": "b"})  # no choice is left among what is known
    assert unknown.choose("All human beings") == Choice(None, None, BASE, "undetectable")
    assert unknown.choose("All human beings", language="sat_Olck").overlay == "a"
    alone = AdaptiveModel(adaptive[0])
    assert (alone.names, alone.languages, alone.overlays) == ((BASE,), (), None)
    assert alone.choose("All human beings").reason == "undetectable"
    assert alone.generate("All human beings", max_new_tokens=NEW)[0].choice.overlay == BASE


def test_confidence_decides_who_is_sure(adaptive: tuple[Path, Path]) -> None:
    text = "la table"
    choice = with_languages(adaptive, SERVED, confidence=0.0).choose(text)
    assert choice.reason == "detected"
    assert choice.confidence is not None
    assert choice.confidence < 1
    sure = with_languages(adaptive, SERVED, confidence=1.0).choose(text)
    assert sure == Choice(choice.language, choice.confidence, BASE, "unsure")


def test_together_as_alone_and_as_weights_that_never_change(
    model: AdaptiveModel, prompts: list[str], static: Callable[[str, str], str]
) -> None:
    together = model.generate(prompts, max_new_tokens=NEW)
    assert [completion.choice.overlay for completion in together] == list(SERVED.values()) * 3
    assert together == [completion for text in prompts for completion in model.generate(text, max_new_tokens=NEW)]
    assert together == model.generate(prompts, max_new_tokens=NEW, batch=2)
    assert [completion.text for completion in together] == [
        static(text, SERVED[code]) for text, code in zip(prompts, [*SERVED] * 3, strict=True)
    ]
    assert {completion.completion_tokens for completion in together} == {NEW}
    assert {completion.finish_reason for completion in together} == {"length"}
    assert [completion.prompt_tokens for completion in together] == [
        len(model.tokenizer(text)["input_ids"]) for text in prompts
    ]
    # the overlays do change what is said, or nothing of this would show
    assert any(static(text, BASE) != static(text, "a") for text in prompts)


@pytest.mark.long
def test_threads_get_what_they_would_get_alone(adaptive: tuple[Path, Path], prompts: list[str]) -> None:
    model = AdaptiveModel(*adaptive)
    before = state(model.model)
    serial = {text: model.generate(text, max_new_tokens=NEW)[0] for text in prompts}
    start = threading.Barrier(16)

    def work(number: int) -> bool:
        rotated = prompts[number % 4 :] + prompts[: number % 4]
        start.wait()
        together = model.generate(rotated[:5], max_new_tokens=NEW)
        alone = [model.generate(text, max_new_tokens=NEW)[0] for text in rotated[5:]]
        return together + alone == [serial[text] for text in rotated]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    with model.using(BASE) as plain:
        assert equal(state(plain), before)


def test_the_overlay_in_place_comes_first(model: AdaptiveModel, prompts: list[str]) -> None:
    english, japanese = prompts[0], prompts[2]
    for first, last in (("a", "b"), ("b", "a")):
        with model.using(first):
            pass
        assert model.now == first
        completions = model.generate([english, japanese], max_new_tokens=1)
        # in the order of the prompts all the same
        assert [completion.choice.overlay for completion in completions] == ["a", "b"]
        assert model.now == last


def test_the_model_in_use_is_one_of_transformers(
    model: AdaptiveModel, prompts: list[str], static: Callable[[str, str], str]
) -> None:
    ids = model.tokenizer(prompts[0], return_tensors="pt")
    for name in ("a", BASE, "b"):
        with model.using(name) as now:
            generated: Any = now.generate(**ids, max_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
        assert model.tokenizer.decode(generated[0, ids["input_ids"].shape[1] :]) == static(prompts[0], name)


def test_a_block_inside_another_gives_back_what_that_had(model: AdaptiveModel, prompts: list[str]) -> None:
    with model.using("a"):
        assert model.generate(prompts[2], max_new_tokens=1)[0].choice.overlay == "b"
        assert model.now == "a"
    with pytest.raises(InputError, match="no overlay 'c'"), model.using("c"):
        pass
    assert model.now == "a"


def test_an_end_of_text_ends_it(model: AdaptiveModel, prompts: list[str]) -> None:
    longer, other = prompts[4], prompts[5]  # both of "a", of different lengths
    drawn: dict[str, Any] = {"do_sample": True, "seed": 3, "top_k": 0, "max_new_tokens": NEW}  # tokens that differ
    plain = model.generate([longer, other], **drawn)
    ids = model.tokenizer(longer + plain[0].text)["input_ids"][-NEW:]
    end = next(token for i, token in enumerate(ids) if i and token not in ids[:i])
    ended = model.generate([longer, other], **drawn, eos_token_id=end)
    assert ended[0].finish_reason == "stop"
    assert ended[0].completion_tokens == ids.index(end) + 1
    assert plain[0].text.startswith(ended[0].text)
    assert ended[0] == model.generate(longer, **drawn, eos_token_id=end)[0]
    stop = plain[0].text[:3]
    stopped = model.generate([longer, other], **drawn, stop_strings=[stop])[0]
    assert (stopped.finish_reason, stop in stopped.text) == ("stop", True)
    assert stopped.completion_tokens < NEW


def test_a_seed_decides_what_is_drawn_whoever_else_asks(model: AdaptiveModel, prompts: list[str]) -> None:
    drawn: dict[str, Any] = {"do_sample": True, "max_new_tokens": NEW, "top_k": 0}
    before = torch.random.get_rng_state()
    together = model.generate(prompts[:4], seed=3, **drawn)
    assert together[1] == model.generate(prompts[1], seed=3, **drawn)[0]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert together != model.generate(prompts[:4], seed=4, **drawn)


def test_progress_and_nothing_to_do(model: AdaptiveModel, prompts: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    model.generate(prompts[:4], max_new_tokens=1, progress=lambda _, done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert model.generate([]) == []


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, r"prompts\[0\] is ''; every prompt must be valid Unicode text, not empty"),
        (["a", "\ud800"], {}, r"prompts\[1\]"),
        ([3], {}, r"prompts\[0\] is 3"),
        (None, {}, "must be a list or a tuple"),
        ("a", {"language": "deu"}, "German .* must be one that is served: eng_Latn"),
        ("a", {"language": "nonsense"}, "is unknown"),
        ("a", {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ("a", {"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ("a", {"max_length": 9}, "give max_new_tokens"),
        ("a", {"num_return_sequences": 2}, "one continuation"),
        ("a", {"temperatur": 1.0}, "no option 'temperatur'"),
        ("a", {"temperature": float("nan"), "do_sample": True}, "temperature is nan"),
        ("a", {"top_p": 3.0, "do_sample": True}, "top_p is 3"),
        ("a", {"top_k": -1, "do_sample": True}, "transformers cannot generate with these options"),
        ("a", {"seed": -1}, "seed is -1"),
        ("a", {"batch": 0}, "batch is 0"),
    ],
)
def test_bad_requests_are_refused(model: AdaptiveModel, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.generate(prompt, **options)


def test_what_does_not_fit_is_refused(adaptive: tuple[Path, Path], reading_model) -> None:
    short = AdaptiveModel(reading_model("gpt2"))
    assert short.generate("All " * 20, max_new_tokens=4)[0].completion_tokens <= 4
    with pytest.raises(InputError, match=r"61 tokens, and up to 4 more .* has 64 positions: shorten it"):
        short.generate(" a" * 61, max_new_tokens=4)
    for family in ("mt5", "xlmr"):
        with pytest.raises(InputError, match="does not generate text"):
            AdaptiveModel(reading_model(family)).generate("All human beings")
    base = Checkpoint(adaptive[0])
    with pytest.raises(InputError, match="made for a base other than"):
        AdaptiveModel(base, Overlays("0" * 64, (), {}))
    with pytest.raises(InputError, match="confidence is 2"):
        AdaptiveModel(base, confidence=2)
    with pytest.raises(InputError, match="device is 'tpu'"):
        AdaptiveModel(base, device="tpu")


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "qwen2"])
def test_padding_changes_nothing_for_other_families(reading_model, family: str) -> None:
    model = AdaptiveModel(reading_model(family))
    texts = ["All human beings", "are", "born free and equal in dignity and rights"]
    together = model.generate(texts, max_new_tokens=4)
    assert together == [model.generate(text, max_new_tokens=4)[0] for text in texts]


@pytest.mark.parametrize("late", [False, True])
def test_a_switch_that_is_interrupted_leaves_the_base(
    adaptive: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    model = AdaptiveModel(*adaptive)
    assert model.overlays is not None
    before, write = state(model.model), switching._write
    overlay: Overlay = model.overlays.overlays[0]
    fatal = countdown = len(overlay.patches)
    while fatal:
        countdown = fatal

        def interrupted(*arguments: Any) -> None:
            nonlocal countdown
            countdown -= 1
            if late or countdown:
                write(*arguments)
            if not countdown:
                raise KeyboardInterrupt

        with model.using(BASE):
            pass
        monkeypatch.setattr(switching, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt), model.using("a"):
            pass
        monkeypatch.setattr(switching, "_write", write)
        assert model.now == BASE
        assert equal(state(model.model), before)
        fatal -= 1
    with model.using("a"):
        changed = state(model.model)
    countdown = 2
    monkeypatch.setattr(switching, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt), model.using(BASE):
        pass
    monkeypatch.setattr(switching, "_write", write)
    with model.using("a"):
        assert equal(state(model.model), changed)
    with model.using(BASE):
        assert equal(state(model.model), before)
