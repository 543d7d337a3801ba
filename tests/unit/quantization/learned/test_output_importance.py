"""The importance of channels after blocks, against gradients that are computed window by window."""

import pytest
import torch

from fairbits.forward import statistics as run
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.quantization.learned.output_importance import LEAST_IMPORTANCE, output_importance
from fairbits.text.corpus import Corpus, TextRequest

WEATHER = Corpus(
    "weather",
    {
        "eng": [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(12)],
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(12)],
    },
    {},
)


@pytest.fixture(scope="module")
def read(reading_model):
    checkpoint = reading_model("llama")
    return checkpoint, tokenize_corpus(checkpoint, WEATHER, request=TextRequest(tokens=2048))


def test_importance_has_mean_one_and_no_channel_is_free(read):
    checkpoint, text = read
    importance = output_importance(checkpoint, text, device="cpu", seed=0)
    assert sorted(importance) == list(range(checkpoint.architecture.n_blocks))
    for block_importance in importance.values():
        assert block_importance.shape == (checkpoint.config.get_text_config().hidden_size,)
        assert block_importance.mean().item() == pytest.approx(1 + LEAST_IMPORTANCE, rel=1e-4)
        assert block_importance.min() > 0


def test_streamed_and_whole_models_agree(read, monkeypatch):
    whole = output_importance(*read, device="cpu", seed=0)
    monkeypatch.setattr(run, "WHOLE_MODEL_BYTES", 0)
    streamed = output_importance(*read, device="cpu", seed=0)
    for index, importance in whole.items():
        assert torch.corrcoef(torch.stack((importance, streamed[index])))[0, 1] > 0.99


def test_it_is_the_fisher_gradient_of_relative_changes(read):
    """Exactly: Σ over windows of ‖y‖² E[g²], with E[g²] from the Jacobian of all logits."""
    checkpoint, text = read
    block = checkpoint.architecture.n_blocks - 1
    model = checkpoint.load()
    kept = []
    module = model.get_submodule(checkpoint.architecture.blocks[block].module)
    module.register_forward_hook(lambda _module, _args, y: kept.append(y[0] if isinstance(y, tuple) else y))
    sums = torch.zeros(len(text.languages), checkpoint.config.get_text_config().hidden_size)
    lengths = torch.zeros(len(text.languages))
    for window in text.windows:
        language = text.language_of[window.document]
        lengths[language] += window.length
        ids = torch.tensor(window.main.ids)[None]
        base = model(ids).logits[0].detach()
        labelled = [i for i, label in enumerate(window.main.labels) if label >= 0]
        y = kept.pop()[0].detach()
        for at in labelled:  # after the last block a position acts on itself alone
            jacobian = model.lm_head.weight @ torch.func.jacrev(model.model.norm)(y[at])
            p = base[at].softmax(0)
            fisher = p @ jacobian.square() - (p @ jacobian).square()  # the diagonal of Jᵀ(diag(p) − p pᵀ)J
            sums[language] += y[at].square().sum() * fisher
    exact = (sums / lengths[:, None]).sum(0)
    exact = exact / exact.mean() + LEAST_IMPORTANCE
    draws = [output_importance(checkpoint, text, device="cpu", seed=seed)[block] for seed in range(6)]
    mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 6**0.5
    assert ((mean - exact).abs() < 5 * spread + 0.02).all()


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "mt5", "xlmr", "mixtral"])
def test_every_family_has_it(reading_model, family):
    checkpoint = reading_model(family)
    text = tokenize_corpus(checkpoint, WEATHER, request=TextRequest(tokens=96))
    importance = output_importance(checkpoint, text, device="cpu", seed=0)
    assert sorted(importance) == list(range(checkpoint.architecture.n_blocks))
    assert all(torch.isfinite(block_importance).all() for block_importance in importance.values())
