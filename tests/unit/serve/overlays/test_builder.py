"""Overlays as they are built: clusters, forms of rows, and the rows that fit a budget."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import in_memory, read_header, write_tensors
from fairbits.models.scales.groups import Codes, dequantize_in_float32
from fairbits.models.swapped_model import SwappedModel
from fairbits.serve.overlays.base_model import OverlayBase
from fairbits.serve.overlays.builder import (
    HOLDOUT_EVERY,
    Candidate,
    OverlayBuilder,
    best_count,
    clusters,
    held_out_documents,
    patches_within,
)
from fairbits.serve.overlays.overlay_files import Form, Overlay, Patch

BUDGET = 0.05


@pytest.fixture(scope="module")
def overlays(builder: OverlayBuilder) -> dict[str, Overlay]:
    """Returns an overlay of every language."""
    built = {}
    for code in builder.text.languages:
        candidates = builder.candidates((code,), "residual")
        built[code] = builder.overlay(code, (code,), candidates, BUDGET)
    return built


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
    documents = sorted({window.document for window in text.windows if text.lang[window.document] == "heb_Hebr"})
    windows = tuple(window for window in text.windows if window.document not in documents[2:])
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


values = st.integers(0, 3)  # few, so that languages are often alike


@settings(max_examples=100, deadline=None)
@given(table=st.lists(st.tuples(values, values), min_size=1, max_size=9))
def test_clusters_are_nested_and_have_every_language_once(table: list[tuple[int, int]]) -> None:
    patterns = {chr(97 + i): np.repeat(pair, 10).astype(float) for i, pair in enumerate(table)}
    partitions = [clusters(patterns, count) for count in range(1, len(patterns) + 1)]
    for count, partition in enumerate(partitions, start=1):
        assert len(partition) == count
        assert sorted(code for cluster in partition for code in cluster) == sorted(patterns)
        sizes = [len(cluster) for cluster in partition]
        assert sizes == sorted(sizes, reverse=True)
    for coarse, fine in itertools.pairwise(partitions):
        assert all(any(set(small) <= set(large) for large in coarse) for small in fine)
    assert clusters(patterns, len(patterns) + 5) == tuple((code,) for code in patterns)


def test_languages_that_are_alike_are_together() -> None:
    rng = np.random.default_rng(0)
    kinds = {"a": 0.0, "b": 3.0, "c": -3.0}
    patterns = {f"{kind}{i}": mean + 0.1 * rng.standard_normal(50) for i in range(3) for kind, mean in kinds.items()}
    assert set(clusters(patterns, 3)) == {tuple(f"{kind}{i}" for i in range(3)) for kind in kinds}


def test_what_all_have_in_common_parts_no_languages() -> None:
    rng = np.random.default_rng(1)
    patterns = {str(i): rng.standard_normal(20) for i in range(6)}
    moved = {code: pattern + 100 * np.arange(20) for code, pattern in patterns.items()}
    assert all(clusters(patterns, count) == clusters(moved, count) for count in range(1, 7))


def test_patterns_say_which_inputs_matter_to_a_language(builder: OverlayBuilder) -> None:
    patterns = builder.patterns()
    assert tuple(patterns) == builder.text.languages
    overlay_base = builder.overlay_base
    seen = {str(overlay_base.weight(name).sees): overlay_base.weight(name).shape[1] for name in overlay_base.schemes}
    for pattern in patterns.values():
        assert pattern.shape == (sum(seen.values()),)
        assert np.isfinite(pattern).all()
        starts = np.cumsum([0, *seen.values()])
        assert all(abs(pattern[a:b].mean()) < 1e-9 for a, b in itertools.pairwise(starts))
    assert len({pattern.tobytes() for pattern in patterns.values()}) == len(patterns)


@pytest.mark.parametrize(("spare", "count"), [(0.0, 4), (0.02, 2), (1.0, 1)])
def test_fewer_clusters_are_taken_where_the_worst_language_loses_little(spare: float, count: int) -> None:
    damages = {1: {"a": 0.3, "b": 0.1}, 2: {"a": 0.2, "b": 0.1}, 4: {"a": 0.1, "b": 0.199}}
    assert best_count(damages, spare=spare) == count


FORMS: tuple[Form, ...] = ("residual", "codes", "steps")


@pytest.fixture(scope="module")
def hebrew_candidates(builder: OverlayBuilder) -> dict[Form, list[Candidate]]:
    """Returns every linear layer of the embedded model in every form, for Hebrew."""
    return {form: builder.candidates(("heb_Hebr",), form) for form in FORMS}


@pytest.mark.parametrize(("form", "share"), [("residual", 0.99), ("codes", 0.99), ("steps", 0.9)])
def test_every_form_lowers_the_error_of_rows(
    hebrew_candidates: dict[Form, list[Candidate]], form: Form, share: float
) -> None:
    saved = torch.cat([candidate.saved for candidate in hebrew_candidates[form]])
    assert saved.isfinite().all()
    assert (saved > 0).double().mean() > share
    assert -saved[saved < 0].sum() < 1e-3 * saved.sum()


def test_saved_is_what_the_error_falls_by(
    builder: OverlayBuilder, hebrew_candidates: dict[Form, list[Candidate]]
) -> None:
    overlay_base = builder.overlay_base
    text, sensitivity = builder._fitting(("heb_Hebr",)), builder._sensitivity["heb_Hebr"]
    place = {name: i for i, name in enumerate(overlay_base.schemes)}
    inputs = {name: statistics.H for name, statistics in overlay_base.input_statistics(text) if place[name] % 6 == 0}
    assert len(inputs) >= 3
    for name, H in inputs.items():
        assert H is not None
        W, base = overlay_base.original(name).double(), dequantize_in_float32(overlay_base.codes(name)).double()
        for form in FORMS:
            candidate = hebrew_candidates[form][place[name]]
            assert candidate.name == name
            now = dequantize_in_float32(candidate.codes).double() + (base if form == "residual" else 0)
            errors = [torch.einsum("ri,ij,rj->r", W - V, H.double(), W - V) for V in (base, now)]
            expected = 0.5 * sensitivity[name] * (errors[0] - errors[1])
            assert torch.allclose(candidate.saved, expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


def test_rows_take_as_many_bytes_of_a_file_as_they_say(
    hebrew_candidates: dict[Form, list[Candidate]], tmp_path: Path
) -> None:
    for form in FORMS:
        candidate = hebrew_candidates[form][0]
        for count in (1, 7):
            overlay = Overlay("a", (), (candidate.patch(torch.arange(count)),))
            write_tensors(tmp_path / "a.safetensors", in_memory(overlay.tensors()))
            stored = sum(info.nbytes for info in read_header(tmp_path / "a.safetensors").values())
            assert stored == count * candidate.row_bytes == overlay.size_bytes
    weight = hebrew_candidates["residual"][0].codes.codes.shape[1]
    # 2 bits each, a scale in float16, a row number
    assert hebrew_candidates["residual"][0].row_bytes == weight * 2 / 8 + 2 + 4


def test_codes_stay_where_steps_change(builder: OverlayBuilder, hebrew_candidates: dict[Form, list[Candidate]]) -> None:
    for candidate in hebrew_candidates["steps"][::5]:
        base = builder.overlay_base.codes(candidate.name)
        patch = candidate.patch(None)
        assert torch.equal(candidate.codes.codes, base.codes)
        assert patch.codes is None
        assert patch.base_scales is not None
        assert torch.equal(patch.base_scales, base.scales)
        assert patch.scales.dtype == base.scales.dtype


def candidate(name: str, saved: list[float], *, columns: int, bits: int, groups: int, form: Form) -> Candidate:
    rows = len(saved)
    codes = Codes(torch.zeros(rows, columns, dtype=torch.int8), torch.ones(rows, groups, dtype=torch.float16), bits)
    return Candidate(form, name, codes, torch.tensor(saved, dtype=torch.float64), codes.scales, name, False)


def size_of(patches: tuple[Patch, ...]) -> int:
    return Overlay("a", (), patches).size_bytes


def chosen_rows(candidates: list[Candidate], patches: tuple[Patch, ...]) -> list[np.ndarray]:
    """Returns for every map which rows were taken."""
    taken = {patch.tensor: patch for patch in patches}
    masks = []
    for candidate in candidates:
        mask = np.zeros(len(candidate.saved), dtype=bool)
        if candidate.name in taken:
            rows = taken[candidate.name].rows
            mask[slice(None) if rows is None else rows.numpy()] = True
        masks.append(mask)
    return masks


maps = st.lists(
    st.tuples(
        st.lists(st.floats(-1, 1, allow_subnormal=False) | st.just(0.0), min_size=1, max_size=6),
        st.sampled_from([16, 32, 48]),
        st.integers(2, 8),
        st.sampled_from([1, 2]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(maps=maps, share=st.floats(0, 1.2), form=st.sampled_from(["residual", "codes", "steps"]))
def test_the_best_rows_are_taken_as_far_as_the_budget_reaches(maps: list, share: float, form: Form) -> None:
    candidates = [
        candidate(f"{i}.weight", saved, columns=columns, bits=bits, groups=groups, form=form)
        for i, (saved, columns, bits, groups) in enumerate(maps)
    ]
    budget = share * sum(layer.row_bytes * len(layer.saved) for layer in candidates)
    patches = patches_within(candidates, budget)
    assert size_of(patches) <= budget
    taken = np.concatenate(chosen_rows(candidates, patches))
    size = np.concatenate([np.full(len(layer.saved), layer.row_bytes) for layer in candidates])
    density = np.concatenate([layer.saved.numpy() for layer in candidates]) / size
    assert (density[taken] > 0).all()
    left = ~taken & (density > 0)
    if left.any():
        assert density[left].max() <= density[taken].min(initial=np.inf)
        best = np.flatnonzero(left)[density[left] == density[left].max()]
        assert size[taken].sum() + size[best].max() > budget  # the next does not fit


def test_without_a_budget_all_rows_are_taken() -> None:
    candidates = [candidate("a.weight", [-1.0, 0.0, 1.0], columns=16, bits=3, groups=1, form="codes")]
    (patch,) = patches_within(candidates, None)
    assert patch.rows is None
    assert patch.count == 3


def test_no_budget_takes_no_row() -> None:
    candidates = [candidate("a.weight", [1.0, 2.0], columns=16, bits=3, groups=1, form="codes")]
    assert patches_within(candidates, 0.0) == ()


def test_the_rows_of_a_patch_are_those_that_were_chosen() -> None:
    saved = [0.1, 5.0, -1.0, 4.0]
    layer = candidate("a.weight", saved, columns=16, bits=8, groups=1, form="codes")
    layer.codes.codes.copy_(torch.arange(4)[:, None].expand(4, 16))
    (patch,) = patches_within([layer], 2 * layer.row_bytes)
    assert patch.rows is not None
    assert patch.codes is not None
    assert patch.rows.tolist() == [1, 3]
    assert patch.codes[:, 0].tolist() == [1, 3]
