"""E[x²] of inputs in every language, against sums over the windows of text one by one."""

from collections import defaultdict

import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization import channel_importance as module
from fairbits.quantization.channel_importance import channel_importance
from fairbits.text.corpus import Corpus, TextRequest

WEATHER = Corpus(
    "weather",
    {
        "eng": [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(6)],
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(5)],
    },
    {},
)


def text_of(checkpoint: Checkpoint) -> TokenizedText:
    return tokenize_corpus(checkpoint, WEATHER, request=TextRequest(tokens=64))


def by_hooks(checkpoint: Checkpoint, text: TokenizedText) -> dict[str, np.ndarray]:
    """Returns E[x²] (languages, in) of all linear layers, window by window in the whole model."""
    model, sums, count = checkpoint.load(), defaultdict(lambda: 0.0), np.zeros(len(text.languages))
    for window in text.windows:
        lang = text.language_of[window.document]
        holds_text = torch.tensor(window.main.text)
        count[lang] += int(holds_text.sum())
        handles = []
        for path, part in model.named_modules():
            if isinstance(part, torch.nn.Linear):

                def hook(_part, args, path=path, lang=lang, holds_text=holds_text) -> None:
                    sums[f"{path}.weight", lang] += args[0][0][holds_text].double().square().sum(0).numpy()

                handles.append(part.register_forward_pre_hook(hook))
        with torch.no_grad():
            model(torch.tensor([window.main.ids]))
        for handle in handles:
            handle.remove()
    names = {name for name, _ in sums}
    return {name: np.stack([sums[name, lang] / count[lang] for lang in range(len(count))]) for name in names}


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_it_is_the_mean_square_of_what_the_model_computes(family: str, reading_model) -> None:
    checkpoint = reading_model(family)
    text = text_of(checkpoint)
    importance, expected = channel_importance(checkpoint, text), by_hooks(checkpoint, text)
    assert importance.languages == ("eng_Latn", "heb_Hebr")
    assert importance.squares.keys() == expected.keys() - {"lm_head.weight"}
    assert importance.left_out == {}
    for name, squares in importance.squares.items():
        np.testing.assert_allclose(squares, expected[name], rtol=1e-4)


def test_positions_are_those_of_text(reading_model) -> None:
    text = text_of(reading_model("llama"))
    held = [sum(sum(w.main.text) for w in text.windows if text.lang[w.document] == code) for code in text.languages]
    assert channel_importance(reading_model("llama"), text).positions.tolist() == held


def test_experts_in_one_tensor_are_left_out_and_named(reading_model) -> None:
    checkpoint = reading_model("mixtral")
    importance = channel_importance(checkpoint, text_of(checkpoint))
    assert "model.layers.0.self_attn.q_proj.weight" in importance.squares
    experts = [why for name, why in importance.left_out.items() if "experts" in name]
    assert experts
    assert set(experts) == {"experts stacked in one tensor are not separate modules"}


def test_activations_that_are_not_finite_are_refused(reading_model, monkeypatch) -> None:
    checkpoint = reading_model("llama")
    monkeypatch.setattr(module.HessianAccumulator, "_counts", lambda *_: np.zeros(2))
    with np.errstate(divide="ignore"), pytest.raises(InputError, match="is NaN or infinite on this text"):
        channel_importance(checkpoint, text_of(checkpoint))


def test_progress_counts_batches_and_blocks(reading_model) -> None:
    seen = []
    checkpoint = reading_model("llama")
    channel_importance(checkpoint, text_of(checkpoint), progress=lambda *call: seen.append(call))
    assert seen[-1][0] == "reading text"
    assert seen[0][1:] == (0, 0)  # the moment it begins
    assert seen[-1][1] == seen[-1][2] == len(seen) - 1
