"""Fisher gradients and predicted damage against labels one by one, finite differences and the written-out A ⊗ G."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from fairbits.forward.batches import batches
from fairbits.forward.fisher import SignDraws, fisher_direction
from fairbits.forward.recorder import FORMS, Recorder, measuring_points, observable_linears
from fairbits.forward.statistics import collect_statistics, column_errors, weight_errors
from fairbits.forward.windows import NO_LABEL, TokenizedText, Window, WindowPart
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import Corpus, TextRequest

WORDS = 24
TOKENS = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZE = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32, **TOKENS}
MT5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, **TOKENS}
TOYS: dict[str, Callable[[], Any]] = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZE)),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=32, **TOKENS)),
    "xlmr": lambda: t.XLMRobertaForMaskedLM(t.XLMRobertaConfig(**SIZE, max_position_embeddings=32)),
    "mt5": lambda: t.MT5ForConditionalGeneration(t.MT5Config(**MT5, decoder_start_token_id=0)),
}
SCHEME = Scheme(3, 16)

CAUSAL = (
    Window(0, WindowPart([1, 5, 9, 7], [False, True, True, True], [5, 9, 7, NO_LABEL])),
    Window(1, WindowPart([1, 8], [False, True], [8, NO_LABEL])),
)
MASKED = (
    Window(0, WindowPart([1, 4, 9, 4, 2], [False, True, True, True, False], [NO_LABEL, 6, NO_LABEL, 7, NO_LABEL])),
    Window(1, WindowPart([1, 4, 2], [False, True, False], [NO_LABEL, 8, NO_LABEL])),
)
COMPLETION = (
    Window(
        0, WindowPart([0, 9], [False, True], [9, 7]), WindowPart([6, 5, 8, 2], [True] * 3 + [False], [NO_LABEL] * 4)
    ),
    Window(1, WindowPart([0], [False], [5]), WindowPart([8, 2], [True, False], [NO_LABEL] * 2)),
)
WINDOWS = {"llama": CAUSAL, "gpt2": CAUSAL, "xlmr": MASKED, "mt5": COMPLETION}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Returns the function that gives a toy with a tokenizer of words w3, w4, …"""
    checkpoints: dict[str, Checkpoint] = {}

    def toy(family: str) -> Checkpoint:
        if family not in checkpoints:
            directory = tmp_path_factory.mktemp(family)
            torch.manual_seed(1)
            model = TOYS[family]()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
            model.save_pretrained(directory)
            _save_words(directory)
            checkpoints[family] = Checkpoint(directory)
        return checkpoints[family]

    t.logging.disable_progress_bar()
    return toy


def _save_words(directory: Path) -> None:
    names = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, WORDS - 1)), "a"]
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    tokenizer.pre_tokenizer = Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(directory)


def enumerated(checkpoint: Checkpoint, windows: tuple[Window, ...]) -> Recorder:
    """The recorder after one backward pass for every predicted position and every column of (diag p − p pᵀ)^½."""
    model = _frozen(checkpoint)
    documents = len({window.document for window in windows})
    text = TokenizedText(("eng",), np.array(["eng"] * documents), np.arange(documents), np.ones(documents), windows, 0)
    (batch,) = batches(text, positions=10**6)
    linears = observable_linears(checkpoint.architecture, model)[0]
    recorder = Recorder(
        model,
        measuring_points(checkpoint.architecture, model),
        linears,
        documents=torch.zeros(documents, dtype=torch.long),
        schemes=(SCHEME,),
        second_moments=False,
    )
    with recorder.attached():
        for row, position in (batch.labels != NO_LABEL).nonzero().tolist():
            for word in range(WORDS):
                recorder.start(batch)
                logits = model(**batch.inputs, use_cache=False).logits
                p = logits.detach()[row, position].softmax(-1)
                direction = torch.zeros_like(logits)
                direction[row, position] = (torch.eye(WORDS, dtype=p.dtype)[word] - p) * p[word].sqrt()
                logits.backward(direction)
                recorder.finish()
    return recorder


def _frozen(checkpoint: Checkpoint) -> Any:
    model = checkpoint.load(torch.float64)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.enable_input_require_grads()
    return model


def change(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """ΔW of a linear layer as (out, in), by the grid of the theory."""
    W = checkpoint.read(name).double().numpy()
    groups = (W.T if checkpoint.architecture.weights[name].transposed else W).reshape(-1, 16)
    grid = Grid(3)
    rounded = grid.quantize(groups, grid.step(np.abs(groups).max(1, keepdims=True)))
    return (rounded - groups).reshape(checkpoint.architecture.weights[name].shape)


def label_by_label(checkpoint: Checkpoint, window: Window) -> dict[str, tuple[np.ndarray, dict[str, float]]]:
    """Σ_s Σ_y p_sy of g² over text and of the damage in every form, g = ∂log p_sy/∂(W x_t), without padding."""
    model, kept = _frozen(checkpoint), {}
    linears = observable_linears(checkpoint.architecture, model)[0]
    for name, weight in linears.items():
        model.get_submodule(weight.module).register_forward_hook(
            lambda _module, inputs, output, name=name: kept.__setitem__(name, (inputs[0].detach(), output))
        )
    ids = {"input_ids": torch.tensor([window.main.ids])}
    if window.encoder is not None:
        ids = {"input_ids": torch.tensor([window.encoder.ids]), "decoder_input_ids": ids["input_ids"]}
    log_p = model(**ids, use_cache=False).logits[0].log_softmax(-1)
    weighted: dict[str, list[Any]] = {name: [] for name in linears}
    for position in [at for at, label in enumerate(window.main.labels) if label != NO_LABEL]:
        for word in range(WORDS):
            outputs = [kept[name][1] for name in linears]
            gradients = torch.autograd.grad(log_p[position, word], outputs, retain_graph=True)
            root = log_p[position, word].detach().exp().sqrt()
            for name, (g,) in zip(linears, gradients, strict=True):
                weighted[name].append((root * g).numpy())
    return {
        name: _summed(np.array(weighted[name]), kept[name][0][0].numpy(), change(checkpoint, name), window)
        for name in linears
    }


def _summed(g: np.ndarray, x: np.ndarray, delta: np.ndarray, window: Window) -> tuple[np.ndarray, dict[str, float]]:
    """Sums over labels of √p·g (labels, T, out), with x (T, in) and ΔW (out, in)."""
    part = window.encoder if window.encoder is not None and len(x) == len(window.encoder.ids) else window.main
    shift = x @ delta.T
    alone = np.square((g * shift).sum(2)).sum(0) / 2
    text = np.array(part.text)
    A, G = x[text].T @ x[text] / max(text.sum(), 1), np.einsum("yti,ytj->ij", g[:, text], g[:, text])
    vec = delta.T.ravel()  # columns one after another
    damage = {
        "token": alone.sum(),
        "diagonal": np.square(g * shift).sum() / 2,
        "kronecker": vec @ np.kron(A, G) @ vec / 2 + alone[~text].sum(),
    }
    return np.square(g[:, text]).sum((0, 1)), damage


@pytest.mark.parametrize("family", list(TOYS))
def test_all_directions_together_are_the_fisher_information(family, toy):
    checkpoint, windows = toy(family), WINDOWS[family]
    recorder = enumerated(checkpoint, windows)
    assert len(recorder.linears) == sum(len(block.linears) for block in checkpoint.architecture.blocks)
    expected = [label_by_label(checkpoint, window) for window in windows]
    for column, name in enumerate(recorder.linears):
        squares = sum(layers[name][0] for layers in expected)
        np.testing.assert_allclose(recorder.gradients[name][0], squares, rtol=1e-4, atol=1e-9, err_msg=name)
        for document, layers in enumerate(expected):
            assert set(layers[name][1]) == set(FORMS)
            for form, value in layers[name][1].items():
                sums = recorder.damage[SCHEME][form]
                assert float(sums[document, column]) == pytest.approx(value, rel=1e-4, abs=1e-9), (name, form)
    assert recorder.damage[SCHEME]["token"].sum() > 0.01


def test_directions_have_the_covariance_of_the_fisher_information():
    p, asked = torch.linspace(-2, 2, 6).softmax(-1), 60_000
    xi = fisher_direction(p.repeat(asked, 1), SignDraws(0).draw(asked, len(p))).double()
    F = (torch.diag(p) - p[:, None] * p).double()
    error = 4 * ((torch.outer(F.diag(), F.diag()) + F**2) / asked).sqrt()  # of normal variables; smaller for signs
    assert ((xi.T @ xi / asked - F).abs() <= error).all()
    assert (xi.sum(1).abs() < 1e-5).all()
    assert (xi.mean(0).abs() <= 4 * (F.diag() / asked).sqrt()).all()


@pytest.mark.parametrize("width", [7, 64, 1000])
def test_signs_do_not_depend_on_how_many_are_drawn_at_a_time(width):
    one, many = SignDraws(3), SignDraws(3)
    parts = torch.cat([many.draw(positions, width) for positions in (1, 63, 64, 72)])
    assert torch.equal(parts, one.draw(200, width))
    assert set(parts.unique().tolist()) == {-1.0, 1.0}
    assert (parts.mean(0).abs() <= 4.5 / 200**0.5).all()
    assert not torch.equal(parts, SignDraws(4).draw(200, width))


def test_the_mean_over_draws_is_the_fisher_information(toy):
    """One text 1500 times: every copy has a draw of its own, and their mean must be the sum over all labels."""
    checkpoint, copies = toy("llama"), 1500
    corpus = Corpus("copies", {"eng": ["w5 w9 w7"] * copies}, {})
    measured = collect_statistics(
        checkpoint, corpus, request=TextRequest(tokens=10**5), schemes=(SCHEME,), dtype=torch.float64
    )
    expected = label_by_label(checkpoint, CAUSAL[0])
    assert measured.predicted.tolist() == [3] * copies
    for column, name in enumerate(measured.linears):
        for form, value in expected[name][1].items():
            draws = measured.damage[SCHEME][form][:, column]
            assert abs(draws.mean() - value) <= 4.5 * draws.std() / copies**0.5, (name, form)
        of_text = expected[name][0] / 3  # per predicted token
        np.testing.assert_allclose(measured.gradients[name][0].sum(), of_text.sum(), rtol=0.2)


def one_position(checkpoint: Checkpoint) -> Recorder:
    return enumerated(checkpoint, (Window(0, WindowPart([6], [True], [9])),))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_damage_is_the_limit_of_the_divergence(family, toy):
    """KL(p ‖ p_ε)/ε² with one tensor changed by ε·ΔW tends to the token form where only one position exists."""
    checkpoint = toy(family)
    recorder, model = one_position(checkpoint), checkpoint.load(torch.float64)
    ids, epsilon, seen = torch.tensor([[6]]), 1e-3, 0
    with torch.no_grad():
        before = model(ids).logits[0, 0].log_softmax(-1)
        for column, (name, weight) in enumerate(recorder.linears.items()):
            W = model.get_submodule(weight.module).weight
            delta = torch.from_numpy(change(checkpoint, name))
            delta = delta.T if weight.transposed else delta
            divergences = []
            for sign in (1, -1):  # the mean of both has no third-order term
                W.add_(delta, alpha=sign * epsilon)
                after = model(ids).logits[0, 0].log_softmax(-1)
                W.sub_(delta, alpha=sign * epsilon)
                divergences.append(float((before.exp() * (before - after)).sum()) / epsilon**2)
            predicted, factored = (float(recorder.damage[SCHEME][form][0, column]) for form in ("token", "kronecker"))
            assert factored == pytest.approx(predicted, rel=1e-5)  # one position is independent of itself
            assert np.mean(divergences) == pytest.approx(predicted, rel=0.01, abs=1e-7), name
            seen += predicted > 1e-4
    assert seen >= 6  # one key alone leaves nothing for queries and keys to say


def test_gradients_are_finite_differences_of_the_log_probabilities(toy):
    """Σ_y p_y (∂log p_y/∂y_i)² of every output i, by central differences; Llama's norms would round to float32."""
    checkpoint = toy("gpt2")
    recorder, model = one_position(checkpoint), checkpoint.load(torch.float64)
    ids, delta = torch.tensor([[6]]), 1e-4
    with torch.no_grad():
        p = model(ids).logits[0, 0].softmax(-1)
        for name, weight in recorder.linears.items():
            module = model.get_submodule(weight.module)
            for channel in (0, 3, 15):
                shift = torch.zeros(weight.shape[0], dtype=torch.float64)
                shift[channel] = delta
                sides = []
                for sign in (1, -1):
                    handle = module.register_forward_hook(lambda _m, _x, y, moved=sign * shift: y + moved)
                    sides.append(model(ids).logits[0, 0].log_softmax(-1))
                    handle.remove()
                slope = (sides[0] - sides[1]) / (2 * delta)
                measured = float(recorder.gradients[name][0, channel])
                assert measured == pytest.approx(float((p * slope**2).sum()), rel=1e-4, abs=1e-9), name


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_weight_errors_are_those_of_the_grid(family, toy):
    checkpoint = toy(family)
    linears = tuple(name for block in checkpoint.architecture.blocks for name in block.linears)
    for name, error in weight_errors(checkpoint, linears, scheme=SCHEME):
        np.testing.assert_allclose(error, change(checkpoint, name), atol=1e-6)
    for name, columns in column_errors(checkpoint, linears, scheme=SCHEME).items():
        np.testing.assert_allclose(columns, (change(checkpoint, name) ** 2).sum(0), rtol=1e-4)
