"""Log-likelihoods of continuations are those that transformers gives, one request at a time."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from fairbits.core.errors import InputError
from fairbits.evaluation import hidden_states, request_likelihoods
from fairbits.evaluation.request_likelihoods import LikelihoodModel, RequestTokenizer

PAIRS = [
    ("The wind came", " from the north"),
    ("The wind came  ", "from the sea"),  # whose spaces belong to the continuation
    ("", "Rain"),
    ("On day one\n", "הרוח באה"),
    ("The wind came", " from the north"),
]


@torch.no_grad()
def alone(model, before: list[int], after: list[int]) -> tuple[float, bool]:
    """Returns the log-likelihood of tokens after others, and whether each is the first choice; no batch, all logits."""
    ids = torch.tensor([[*before, *after[:-1]]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 :].double()
    chosen = logits.log_softmax(-1)[range(len(after)), after]
    return float(chosen.sum()), logits.argmax(-1).tolist() == after


def asked(checkpoint, pairs):
    tokens = RequestTokenizer(checkpoint)
    model = LikelihoodModel(checkpoint, tokens, device="cpu")
    return model.likelihoods([tokens.pair(*pair) for pair in pairs])


@pytest.mark.parametrize("too_large", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_likelihoods_are_those_of_transformers(reading_model, family, too_large, monkeypatch) -> None:
    monkeypatch.setattr(hidden_states, "fits_whole", lambda _bytes, _device: not too_large)
    checkpoint = reading_model(family)
    tokenizer, model = checkpoint.tokenizer(), checkpoint.load()
    results = asked(checkpoint, PAIRS)
    for (context, continuation), (nats, greedy) in zip(PAIRS, results, strict=True):
        before = (
            tokenizer(context.rstrip(" "))["input_ids"]
            if context != PAIRS[3][0]
            else tokenizer("On day one")["input_ids"]
        )
        after = tokenizer(context + continuation)["input_ids"][len(before) :]
        expected = alone(model, before or [1], after)
        assert nats == pytest.approx(expected[0], rel=1e-5)
        assert greedy == expected[1]
    assert results[0] == results[4]


def test_the_most_probable_continuation_is_greedy(reading_model) -> None:
    checkpoint = reading_model("llama")
    model = LikelihoodModel(checkpoint, RequestTokenizer(checkpoint), device="cpu")
    before, after = [5, 9, 20], []
    for _ in range(3):
        with torch.no_grad():
            after.append(int(checkpoint.load()(torch.tensor([before + after])).logits[0, -1].argmax()))
    other = [*after[:-1], (after[-1] + 1) % 1024]
    assert [greedy for _, greedy in model.likelihoods([(before, after), (before, other)])] == [True, False]


def test_choices_of_one_token_pass_the_model_once(reading_model, monkeypatch) -> None:
    checkpoint, texts = reading_model("llama"), []
    original = request_likelihoods.evaluated_model
    monkeypatch.setattr(
        request_likelihoods, "evaluated_model", lambda *args, **more: texts.append(args[1]) or original(*args, **more)
    )
    model = LikelihoodModel(checkpoint, RequestTokenizer(checkpoint), device="cpu")
    pairs = [([7, 8, 9], [label]) for label in (10, 11, 12)] + [([7, 8], [9, 13])]
    values = model.likelihoods(pairs)
    assert len(texts[0].windows) == 1
    assert [value for value, _ in values] == pytest.approx([alone(checkpoint.load(), *pair)[0] for pair in pairs])
    assert model.likelihoods(pairs[:1])[0][0] == pytest.approx(values[0][0])  # the same model reads another text
    assert len(texts) == 1


def test_a_long_context_is_cut_at_its_beginning(reading_model) -> None:
    checkpoint = reading_model("gpt2")  # of 64 positions
    before, after = list(range(10, 110)), [200, 201, 202]
    tokens = RequestTokenizer(checkpoint)
    assert tokens.length == 64
    value, _ = LikelihoodModel(checkpoint, tokens, device="cpu").likelihoods([(before, after)])[0]
    assert value == pytest.approx(alone(checkpoint.load(), before[-62:], after)[0], rel=1e-5)
    with pytest.raises(InputError, match=r"has \d+ tokens, and the model accepts 64"):
        tokens.pair("a", " wind from the north" * 40)


def test_windows_roll_over_a_long_text(reading_model) -> None:
    checkpoint = reading_model("gpt2")
    tokens = RequestTokenizer(checkpoint)
    text = "On day one the wind came from the north and brought rain. " * 12
    ids = checkpoint.tokenizer()(text)["input_ids"]
    pairs = list(tokens.rolling(text))
    assert [token for _, after in pairs for token in after] == ids
    assert all(len(before) + len(after) == 65 for before, after in pairs)
    assert [len(before) for before, _ in pairs[:-1]] == [1] * (len(pairs) - 1)
    assert pairs[0][0] == [1]
    for number, (before, after) in enumerate(pairs[1:], 1):
        end = min(64 * number, len(ids))
        assert before == ids[end - len(before) : end]
        assert after == ids[end : end + 64]


def merging() -> PreTrainedTokenizerFast:
    """Returns a tokenizer that merges an a and a b that follow each other."""
    vocabulary = {"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")], unk_token=None))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>")


def test_a_token_over_the_boundary_belongs_to_the_context(reading_model) -> None:
    tokens = RequestTokenizer(reading_model("llama"), merging())
    assert tokens.pair("ca", "cb") == ([3, 1], [3, 2])
    assert tokens.pair("ca", "bc") == ([3, 1], [3])  # together c, ab, c
    assert tokens.pair("", "ab") == ([0], [4])
    assert tokens.pair("", "<s>b") == ([0], [2])  # it begins with the start token
    with pytest.raises(InputError, match="no token stands for the continuation 'b'"):
        tokens.pair("ca", "b")
    with pytest.raises(InputError, match="no token stands for the context"):
        tokens.pair("  ", "b")
    with pytest.raises(InputError, match="no token stands for the text"):
        list(tokens.rolling(""))


def adding(template: str) -> PreTrainedTokenizerFast:
    """Returns the tokenizer that merges, which adds special tokens as the template says."""
    tokenizer = merging()
    tokenizer.eos_token = "c"
    special = [("<s>", 0), ("c", 3)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


def test_the_start_token_is_not_predicted(reading_model) -> None:
    checkpoint = reading_model("llama")
    assert adding("<s> $A")("ba")["input_ids"] == [0, 2, 1]
    pairs = [list(RequestTokenizer(checkpoint, tokenizer).rolling("ba")) for tokenizer in (merging(), adding("<s> $A"))]
    assert pairs[1] == [([0], [2, 1])]
    assert [after for _, after in pairs[0]] == [after for _, after in pairs[1]]


def test_a_tokenizer_that_ends_every_text_is_refused(reading_model) -> None:
    """Else all choices of one token would be that end."""
    with pytest.raises(InputError, match="ends every text with 'c'"):
        RequestTokenizer(reading_model("llama"), adding("$A c"))


def test_models_that_cannot_be_asked_are_refused(reading_model) -> None:
    with pytest.raises(InputError, match="does not predict the next token"):
        RequestTokenizer(reading_model("xlmr"))
    nameless = merging()
    nameless.bos_token = nameless.eos_token = None
    with pytest.raises(InputError, match="neither a start nor an end token"):
        RequestTokenizer(reading_model("llama"), nameless)


def test_weights_that_are_no_numbers_are_named(saved, reading_model) -> None:
    model = reading_model("llama").load()
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    checkpoint = saved(model)
    assert json.loads((checkpoint.directory / "config.json").read_text())["vocab_size"] == 1024
    with pytest.raises(InputError, match="contain NaN or infinity"):
        asked(checkpoint, PAIRS[:1])
