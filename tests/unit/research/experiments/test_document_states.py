"""Hidden states of documents: what is averaged, in models of every kind, before and after rounding."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fairbits.forward.batches import batches
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.document_states import (
    document_states,
    parallel_text,
    rounded_states,
    standardize,
    state_layers,
)
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, Setting

LANGUAGES = "eng", "fra", "heb"


def beginnings(parallel: bool = True, documents: int = 6) -> Corpus:
    """The beginning of some sections of the declaration."""
    whole = udhr(LANGUAGES)
    parts = [
        {code: tuple(text[: 30 + 8 * i] for i, text in enumerate(texts[:documents])) for code, texts in split.items()}
        for split in (whole.calibration, whole.evaluation)
    ]
    return Corpus("beginnings", *parts, parallel=parallel)


def lab_of(checkpoint: Checkpoint, **settings: object) -> ModelLab:
    setting = {"text": beginnings(), "tokens": 400, "calibration": 400, "sequence": 48, "device": "cpu", **settings}
    return Laboratory(Setting(str(checkpoint.target), **setting)).lab()  # type: ignore[arg-type]


class TestDocumentStates:
    @pytest.mark.parametrize("family", ["llama", "xlmr", "mt5"])
    def test_the_states_are_those_that_transformers_returns(
        self, reading_model: Callable[[str], Checkpoint], family: str
    ) -> None:
        lab = lab_of(reading_model(family))
        text = parallel_text(lab)
        states = document_states(lab, text)
        expected = _plain_means(lab, text)
        names = [layer.name for layer in states.layers]
        assert names == list(expected)
        for name, means in zip(names, states.means, strict=True):
            # the last state that transformers returns has passed the final norm
            if name not in _last_of_stacks(names):
                assert means == pytest.approx(expected[name], rel=1e-4, abs=1e-5)

    def test_both_stacks_have_names(self, reading_model: Callable[[str], Checkpoint]) -> None:
        layers = state_layers(reading_model("mt5").architecture)
        assert [layer.name for layer in layers][:2] == ["encoder embedding", "encoder block 0"]
        assert {layer.stack for layer in layers} == {"encoder", "decoder"}
        assert sum(layer.is_block for layer in layers) == reading_model("mt5").architecture.n_blocks

    def test_the_text_has_both_splits_and_the_same_sections_in_every_language(
        self, reading_model: Callable[[str], Checkpoint]
    ) -> None:
        lab = lab_of(reading_model("llama"), tokens=4000, calibration=4000)
        text = parallel_text(lab)
        assert [sorted(text.document[text.lang == code].tolist()) for code in text.languages] == [list(range(12))] * 3

    def test_text_that_is_not_parallel_gives_way_to_the_declaration(
        self, reading_model: Callable[[str], Checkpoint]
    ) -> None:
        lab = lab_of(reading_model("llama"), text=beginnings(parallel=False), tokens=100, calibration=100)
        text = parallel_text(lab)
        assert len({tuple(sorted(text.document[text.lang == code].tolist())) for code in text.languages}) == 1

    def test_rows_are_languages_and_sections(self, reading_model: Callable[[str], Checkpoint]) -> None:
        lab = lab_of(reading_model("llama"))
        states = document_states(lab, parallel_text(lab))
        table = states.by_language(1)
        rows = (states.lang == "fra_Latn") & (states.document == np.unique(states.document)[2])
        assert np.array_equal(table[states.languages.index("fra_Latn"), 2], states.means[1][rows][0])

    def test_rounding_moves_states_after_blocks_and_is_undone(self, reading_model: Callable[[str], Checkpoint]) -> None:
        lab = lab_of(reading_model("llama"))
        text = parallel_text(lab)
        before = document_states(lab, text)
        rounded, damage = rounded_states(lab, text, 2)
        after = document_states(lab, text)
        assert np.array_equal(before.means[0], rounded.means[0])
        assert not np.allclose(before.means[1], rounded.means[1], rtol=1e-3)
        assert np.array_equal(before.means[1], after.means[1])
        assert damage.languages == lab.languages

    def test_tokens_belong_to_their_documents(self, reading_model: Callable[[str], Checkpoint]) -> None:
        lab = lab_of(reading_model("llama"))
        states = document_states(lab, parallel_text(lab))
        assert set(states.token_rows[0].tolist()) == set(range(len(states.lang)))
        assert states.tokens[0].shape == (len(states.token_rows[0]), states.means[0].shape[1])


def test_constant_coordinates_stay_zero() -> None:
    X = np.random.default_rng(0).normal(size=(5, 4, 3)) * (1.0, 1e4, 0.0) + 7.0
    scaled = standardize(X)
    assert scaled.reshape(-1, 3).std(axis=0) == pytest.approx([1, 1, 0])
    assert scaled.reshape(-1, 3).mean(axis=0) == pytest.approx([0, 0, 0], abs=1e-9)


def _last_of_stacks(names: list[str]) -> set[str]:
    stacks = {name.split(" block ")[0] if " block " in name else "" for name in names if "block" in name}
    return {[name for name in names if name.startswith(f"{stack} block" if stack else "block")][-1] for stack in stacks}


@torch.no_grad()
def _plain_means(lab: ModelLab, text: object) -> dict[str, np.ndarray]:
    """The means by transformers' own `output_hidden_states`, one window at a time."""
    model = lab.trial.swapped.model
    sums: dict[str, dict[int, list[np.ndarray]]] = {}
    for batch in batches(text, positions=1):  # type: ignore[arg-type]
        output = model(**batch.inputs_for(model), output_hidden_states=True)
        if batch.encoder is None:
            stacks = {"": (output.hidden_states, batch.main)}
        else:
            stacks = {
                "encoder ": (output.encoder_hidden_states, batch.encoder),
                "decoder ": (output.decoder_hidden_states, batch.main),
            }
        for prefix, (hidden, positions) in stacks.items():
            for number, x in enumerate(hidden):
                name = f"{prefix}embedding" if number == 0 else f"{prefix}block {number - 1}"
                kept = x[0][positions.text[0].bool()].double().numpy()
                sums.setdefault(name, {}).setdefault(int(batch.document[0]), []).append(kept)
    return {
        name: np.array([np.concatenate(by[document]).mean(axis=0) for document in sorted(by)])
        for name, by in sums.items()
    }
