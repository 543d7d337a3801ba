"""The probe against a plain second way: one window at a time, no padding, hooks at places that are written by hand."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fairbits.forward import statistics as run
from fairbits.forward.batches import batches
from fairbits.forward.statistics import ActivationStatistics, collect_statistics
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL, Window
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest

ENGLISH = (
    "Rain.",
    "The mill stands where two rivers meet, and nobody remembers who built it.",
    "She counted the boats twice.",
    "Bread, salt and a little patience were all that the long winter had left to the people of the upper valley, "
    "who mended their nets in the evening and spoke of the sea as if it were a relative who might come to visit.",
    "Who is there?",
    "An old map lies on the table; its corners are held by four stones.",
)
HEBREW = ("גשם.", "הטחנה עומדת במקום שבו נפגשים שני נהרות.", "היא ספרה את הסירות פעמיים.", "מי שם?", "לחם ומלח.")
HINDI = (
    "वर्षा।",
    "उसने नावों को दो बार गिना।",
    "पुरानी नक़्शा मेज़ पर है, उसके कोनों पर चार पत्थर रखे हैं।",
    "वहाँ कौन है?",
    "रोटी और नमक।",
)
MIXED = {"eng": ENGLISH, "heb": HEBREW, "hin": HINDI}
SETTINGS: dict[str, Any] = {"tokens": 400, "sequence": 48}
EXACT = {"rtol": 1e-5, "atol": 0.0}

GPT2 = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
LLAMA = ("self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
BLOOM = ("self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
XLMR = ("attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense")
PLACES = {
    "tiny": ("transformer.h", 12, BLOOM),
    "llama": ("model.layers", 2, LLAMA),
    "qwen2": ("model.layers", 2, LLAMA),
    "gemma3": ("model.layers", 2, LLAMA),
    "gpt2": ("transformer.h", 2, GPT2),
    "xlmr": ("roberta.encoder.layer", 2, XLMR),
}


@dataclass(frozen=True)
class Place:
    """Where a point lies: the input or the output of a module, on the positions of a stack."""

    module: str
    is_output: bool
    encoder: bool = False


def places(family: str) -> dict[str, Place]:
    if family == "mt5":
        return _mt5_places()
    prefix, depth, inside = PLACES[family]
    by_name = {}
    for i in range(depth):
        by_name |= _block(f"blocks.{i}", f"{prefix}.{i}", inside)
    return by_name


def _block(name: str, module: str, inside: tuple[str, ...], *, encoder: bool = False) -> dict[str, Place]:
    first, out, up, down = (f"{module}.{suffix}" for suffix in inside)
    return {
        name: Place(module, True, encoder),
        f"{name}.attention": Place(out, True, encoder),
        f"{name}.mlp": Place(down, True, encoder),
        f"{name}.attention.input": Place(first, False, encoder),
        f"{name}.attention_out.input": Place(out, False, encoder),
        f"{name}.mlp.input": Place(up, False, encoder),
        f"{name}.mlp_down.input": Place(down, False, encoder),
    }


def _mt5_places() -> dict[str, Place]:
    attention = ("layer.0.SelfAttention.v", "layer.0.SelfAttention.o")
    by_name = {}
    for i in range(2):
        mlp = ("layer.1.DenseReluDense.wi_1", "layer.1.DenseReluDense.wo")
        by_name |= _block(f"blocks.{i}", f"encoder.block.{i}", (*attention, *mlp), encoder=True)
        mlp = ("layer.2.DenseReluDense.wi_1", "layer.2.DenseReluDense.wo")
        name, module = f"blocks.{2 + i}", f"decoder.block.{i}"
        by_name |= _block(name, module, (*attention, *mlp))
        by_name[f"{name}.cross_attention.input"] = Place(f"{module}.layer.1.EncDecAttention.q", False)
        by_name[f"{name}.cross_attention_out.input"] = Place(f"{module}.layer.1.EncDecAttention.o", False)
    by_name["encoder_output.input"] = Place("encoder.final_layer_norm", True, encoder=True)
    return by_name


@dataclass
class Plain:
    """The sums of the slow way."""

    positions: np.ndarray
    norm: np.ndarray
    square: np.ndarray
    predicted: np.ndarray
    nll: np.ndarray
    entropy: np.ndarray
    second: dict[str, np.ndarray]


@torch.no_grad()
def plain(checkpoint: Checkpoint, corpus: Corpus, where: dict[str, Place], order: list[str]) -> Plain:
    text, model = tokenize_corpus(checkpoint, corpus, request=TextRequest(**SETTINGS)), checkpoint.load()
    modules, seen = dict(model.named_modules()), {}

    def keep(name: str, is_output: bool) -> Any:
        def hook(_module: Any, inputs: Any, output: Any) -> None:
            value = output if is_output else inputs
            seen[name] = value if isinstance(value, torch.Tensor) else value[0]

        return hook

    for name, place in where.items():
        modules[place.module].register_forward_hook(keep(name, place.is_output))
    n = len(text.lang)
    sums = Plain(*np.zeros((3, n, len(order))), *np.zeros((3, n)), second=defaultdict(lambda: np.zeros(())))
    for window in text.windows:
        log_p = model(**_inputs(window), use_cache=False).logits[0].double().log_softmax(-1)
        for t, label in enumerate(window.main.labels):
            if label != NO_LABEL:
                sums.predicted[window.document] += 1
                sums.nll[window.document] -= float(log_p[t, label])
                sums.entropy[window.document] -= float((log_p[t].exp() * log_p[t]).sum())
        for column, name in enumerate(order):
            part = window.encoder if where[name].encoder else window.main
            assert part is not None
            x = seen[name].double().reshape(len(part.ids), -1).numpy()[np.array(part.text)]
            sizes = np.linalg.norm(x, axis=1)
            sums.positions[window.document, column] += len(x)
            sums.norm[window.document, column] += sizes.sum()
            sums.square[window.document, column] += (sizes**2).sum()
            key = f"{text.lang[window.document]} {name}"
            sums.second[key] = sums.second[key] + x.T @ x
    return sums


def _inputs(window: Window) -> dict[str, torch.Tensor]:
    ids = torch.tensor([window.main.ids])
    if window.encoder is None:
        return {"input_ids": ids}
    return {"input_ids": torch.tensor([window.encoder.ids]), "decoder_input_ids": ids}


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows, however long, side by side in one batch: the most padding there can be."""
    monkeypatch.setattr(run, "positions_per_batch", lambda _model, _split: 10**9)


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize(
    "family", [pytest.param("tiny", marks=pytest.mark.long), "llama", "qwen2", "gemma3", "gpt2", "xlmr", "mt5"]
)
def test_every_sum_equals_the_plain_one(family, reading_model):
    checkpoint = Checkpoint("embedded:tiny") if family == "tiny" else reading_model(family)
    corpus, where = Corpus("mixed", MIXED, {}), places(family)
    measured = collect_statistics(checkpoint, corpus, request=TextRequest(**SETTINGS), second_moments=True)
    order = [point.name for point in measured.points]
    assert set(order) == set(where)
    slow = plain(checkpoint, corpus, where, order)
    for name in ("positions", "norm", "square", "predicted", "nll", "entropy"):
        np.testing.assert_allclose(getattr(measured, name), getattr(slow, name), **EXACT, err_msg=name)
    assert (measured.predicted >= 1).all()
    for point in measured.points:
        for i, code in enumerate(measured.languages):
            rows = measured.lang == code
            count = slow.positions[rows, order.index(point.name)].sum()
            H = slow.second[f"{code} {point.name}"] / count
            h = np.diag(H)
            quiet = 1e-7 * h.mean()  # float32 knows a quiet channel no better than the loud ones it is summed from
            np.testing.assert_allclose(measured.channels[point.name][i], h, rtol=1e-5, atol=quiet, err_msg=point.name)
            if point.kind == "input":
                error = np.abs(measured.inputs[point.name][i] - H)
                assert (error <= 1e-5 * np.sqrt(np.outer(h, h)) + quiet).all(), point.name
    assert set(measured.gradients) == set(measured.linears)
    assert all((gradients > 0).any(axis=1).all() for gradients in measured.gradients.values())


def test_block_points_are_the_hidden_states_that_transformers_gives():
    checkpoint, corpus = Checkpoint("embedded:tiny"), Corpus("mixed", MIXED, {})
    measured = collect_statistics(checkpoint, corpus, request=TextRequest(**SETTINGS))
    text, model = tokenize_corpus(checkpoint, corpus, request=TextRequest(**SETTINGS)), checkpoint.load()
    sums = np.zeros((len(text.lang), 11))  # the last one that transformers gives is normed
    with torch.no_grad():
        for window in text.windows:
            states = model(torch.tensor([window.main.ids]), output_hidden_states=True).hidden_states
            for block, state in enumerate(states[1:-1]):
                sums[window.document, block] += float(state[0, np.array(window.main.text)].double().norm(dim=1).sum())
    np.testing.assert_allclose(measured.sums("block", "norm")[:, :-1], sums, **EXACT)


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize("family", ["llama", "xlmr", "mt5"])
def test_a_long_neighbour_changes_nothing(family, reading_model):
    def of(corpus: dict[str, tuple[str, ...]]) -> ActivationStatistics:
        return collect_statistics(
            reading_model(family), Corpus("mixed", corpus, {}), request=TextRequest(tokens=1000, sequence=60)
        )

    long = " ".join(ENGLISH * 3)
    short = {"heb": HEBREW, "hin": HINDI}
    alone, together = of(short), of({**short, "eng": (long,) * 5})
    n = len(alone.lang)
    assert (together.lang[:n] == alone.lang).all()
    assert together.positions.max() > 20 * alone.positions.min()
    for name in ("positions", "norm", "square", "predicted", "nll", "entropy"):
        np.testing.assert_allclose(getattr(together, name)[:n], getattr(alone, name), **EXACT, err_msg=name)
    for name, expected in alone.channels.items():
        np.testing.assert_allclose(together.channels[name][:2], expected, **EXACT, err_msg=name)


def test_batches_mix_languages():
    text = tokenize_corpus(Checkpoint("embedded:tiny"), Corpus("mixed", MIXED, {}), request=TextRequest(**SETTINGS))
    several = [set(text.lang[batch.document.numpy()]) for batch in batches(text, positions=200)]
    assert len(several) > 1
    assert max(map(len, several)) == 3
