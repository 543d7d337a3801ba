"""Overlays made from text, and evaluated on held-out text."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import dequantize_in_float32
from fairbits.models.swapped_model import SwappedModel
from fairbits.serve.overlays.base_model import OverlayBase
from fairbits.serve.overlays.builder import HOLDOUT_EVERY, OverlayBuilder, held_out_documents
from fairbits.serve.overlays.overlay_files import Overlay

BUDGET = 0.05


@pytest.fixture(scope="module")
def overlays(builder: OverlayBuilder) -> dict[str, Overlay]:
    """Returns an overlay of every language."""
    made = {}
    for code in builder.text.languages:
        found = builder.candidates((code,), "residual")
        made[code] = builder.overlay(code, (code,), found, BUDGET)
    return made


@pytest.mark.long
def test_an_overlay_lowers_the_damage_of_its_language_on_text_held_out(
    builder: OverlayBuilder, overlays: dict[str, Overlay]
) -> None:
    before = builder.damage(builder.text.languages)
    for code, overlay in overlays.items():
        after = builder.damage((code,), overlay)
        assert after.keys() == {code}
        assert after[code] < 0.9 * before[code]
        assert 0.9 * BUDGET < overlay.size_bytes / builder.overlay_base.size_bytes <= BUDGET
    assert builder.damage(builder.text.languages) == before


def test_the_base_is_in_the_model_afterwards_bit_for_bit(builder: OverlayBuilder, overlays: dict[str, Overlay]) -> None:
    builder.damage(builder.text.languages, next(iter(overlays.values())))
    base = builder.overlay_base.base.load().state_dict()
    now = builder.overlay_base.model.state_dict()
    assert now.keys() == base.keys()
    assert all(torch.equal(now[name].view(torch.int32), base[name].view(torch.int32)) for name in base)


def test_an_overlay_that_fails_leaves_the_base(builder: OverlayBuilder, overlays: dict[str, Overlay]) -> None:
    before = builder.damage(("eng_Latn",))
    patch = overlays["eng_Latn"].patches[0]
    with pytest.raises(InputError, match="has no matrix there"):
        builder.damage(("eng_Latn",), Overlay("x", (), (replace(patch, module="not.there"),)))
    assert builder.damage(("eng_Latn",)) == before


def test_a_third_of_the_documents_of_every_language_is_held_out(builder: OverlayBuilder) -> None:
    text = builder.text
    apart = held_out_documents(text)
    used = {window.document for window in text.windows}
    every = Counter(str(text.lang[document]) for document in used)
    for code, count in Counter(str(text.lang[document]) for document in apart).items():
        assert count == every[code] // HOLDOUT_EVERY
    fitting = {window.document for window in builder._fitting(text.languages).windows}
    assert fitting | apart == used
    assert not fitting & apart


def test_too_few_documents_are_told(builder: OverlayBuilder) -> None:
    text = builder.text
    own = sorted({window.document for window in text.windows if text.lang[window.document] == "heb_Hebr"})
    windows = tuple(window for window in text.windows if window.document not in own[2:])
    with pytest.raises(InputError, match=r"2 document\(s\) in heb_Hebr; .* takes 3 of every language"):
        held_out_documents(replace(text, windows=windows))


def test_the_originals_repair_the_base_and_its_codes_restore_it(builder: OverlayBuilder) -> None:
    overlay_base, before = builder.overlay_base, builder.damage(("eng_Latn",))
    swapped = SwappedModel(overlay_base.checkpoint, overlay_base.model)
    swapped.replace({name: overlay_base.original(name) for name in overlay_base.schemes})
    try:
        assert builder.damage(("eng_Latn",))["eng_Latn"] < 0.8 * before["eng_Latn"]
    finally:
        swapped.replace({name: dequantize_in_float32(overlay_base.codes(name)) for name in overlay_base.schemes})
    assert builder.damage(("eng_Latn",)) == before


def test_a_base_of_other_weights_is_refused(llama_base: Checkpoint) -> None:
    with pytest.raises(InputError, match="has other weights"):
        OverlayBase(Checkpoint("embedded:tiny"), llama_base)
    with pytest.raises(InputError, match=r"has no plan\.json"):
        OverlayBase(Checkpoint("embedded:tiny"), Checkpoint("embedded:tiny"))
