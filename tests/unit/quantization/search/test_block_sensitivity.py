"""What blocks cost: measured in memory and put back exactly, or predicted; on small random models."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fairbits.forward.statistics import document_losses
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import rounding_error
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.search.block_sensitivity import (
    BitsTrial,
    LossTrial,
    measured_damage,
    measured_sensitivity,
    nearest_scheme,
    per_token,
    predicted_sensitivity,
)
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

LANGUAGES = ("eng_Latn", "heb_Hebr")
REQUEST = TextRequest("calibration", 64, 32)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return udhr(LANGUAGES)


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture(scope="module")
def text(llama: Checkpoint, corpus: Corpus) -> TokenizedText:
    return tokenize_corpus(llama, corpus, request=REQUEST)


def rounded_by_hand(checkpoint: Checkpoint, text: TokenizedText, bits: dict[int, int], group: int | None) -> np.ndarray:
    """Returns the damage of another copy of the model, rounded without the workbench."""
    model = checkpoint.load()
    before, predicted = document_losses(model, text)
    with torch.no_grad():
        for block, width in bits.items():
            for weight in checkpoint.architecture.blocks[block].linears.values():
                target = model.get_submodule(weight.module).weight
                W = target.T if weight.transposed else target
                target += (lambda e: e.T if weight.transposed else e)(
                    rounding_error(W, Scheme(width, group, "absmax", "twos"))
                )
    return per_token(document_losses(model, text)[0] - before, predicted, text)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_measured_is_the_loss_of_the_rounded_model(
    reading_model: Callable[[str], Checkpoint], corpus: Corpus, family: str
) -> None:
    checkpoint = reading_model(family)
    text = tokenize_corpus(checkpoint, corpus, request=REQUEST)
    trial = BitsTrial(checkpoint, text, group=16)
    table = measured_sensitivity(trial, bits=(2, 8))
    assert (table.how, table.languages, table.bits) == ("measured", LANGUAGES, (2, 8))
    assert table.at(2)[:, 1] == pytest.approx(rounded_by_hand(checkpoint, text, {1: 2}, 16), abs=1e-6)
    whole = measured_damage(trial, [(2, 8), (8, 2)])
    assert whole[1] == pytest.approx(rounded_by_hand(checkpoint, text, {0: 8, 1: 2}, 16), abs=1e-6)
    assert np.abs(table.at(8)).max() < 0.1 * np.abs(table.at(2)).max()


def test_order_and_history_do_not_matter(llama: Checkpoint, text: TokenizedText) -> None:
    trial = BitsTrial(llama, text, group="channel")
    first = trial.damage({0: 2})
    trial.damage((3, 3))
    assert trial.damage({}).tolist() == [0.0, 0.0]  # all is restored exactly
    assert trial.damage({0: 2}).tolist() == first.tolist()


def test_progress_counts_every_block_and_number_of_bits(llama: Checkpoint, text: TokenizedText) -> None:
    seen: list[tuple[str, float, float]] = []
    trial = BitsTrial(llama, text, group="channel")
    measured_sensitivity(trial, bits=(3, 4), progress=lambda *at: seen.append(at))
    assert seen == [("measuring blocks", done, 4) for done in (1, 2, 3, 4)]


def test_predicted_grows_as_bits_fall(llama: Checkpoint, corpus: Corpus) -> None:
    table = predicted_sensitivity(llama, corpus, bits=(2, 4), group=16, request=REQUEST)
    assert table.notes == ()
    assert table.damage.shape == (2, 2, 2)
    assert (table.at(2) > 4 * table.at(4)).all()
    assert (table.at(4) > 0).all()


def test_predicted_leaves_out_what_is_not_rounded(reading_model: Callable[[str], Checkpoint], corpus: Corpus) -> None:
    mixtral = reading_model("mixtral")
    table = predicted_sensitivity(mixtral, corpus, bits=(4,), group="channel", request=REQUEST)
    assert table.damage.shape == (2, 2, 1)
    assert (table.damage > 0).all()


def test_one_scale_per_tensor_is_measured_per_channel(llama: Checkpoint, corpus: Corpus) -> None:
    assert nearest_scheme(3, "tensor") == Scheme(3, "channel", "absmax", "twos")
    table = predicted_sensitivity(llama, corpus, bits=(4,), group="tensor", request=REQUEST)
    assert "per channel" in table.notes[0]


def test_a_trial_restores_the_named_weights(llama: Checkpoint, text: TokenizedText) -> None:
    trial = LossTrial(llama, text)
    one, other = (f"model.layers.0.{name}.weight" for name in ("self_attn.o_proj", "mlp.down_proj"))
    trial.swapped.replace({name: torch.zeros(llama.architecture.weights[name].shape) for name in (one, other)})
    both = trial.damage()
    trial.swapped.restore([one])
    assert trial.damage().tolist() != both.tolist()
    trial.swapped.restore()
    assert not trial.added_nll().any()
