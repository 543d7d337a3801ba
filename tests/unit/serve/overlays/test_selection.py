"""Which rows an overlay holds."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.models.scales.groups import Codes
from fairbits.serve.overlays.builder import Candidate, patches_within
from fairbits.serve.overlays.overlay_files import Form, Overlay, Patch


def candidate(name: str, saved: list[float], *, columns: int, bits: int, groups: int, form: Form) -> Candidate:
    rows = len(saved)
    codes = Codes(torch.zeros(rows, columns, dtype=torch.int8), torch.ones(rows, groups, dtype=torch.float16), bits)
    return Candidate(form, name, codes, torch.tensor(saved, dtype=torch.float64), codes.scales, name, False)


def size_of(patches: tuple[Patch, ...]) -> int:
    return Overlay("a", (), patches).size_bytes


def chosen_rows(candidates: list[Candidate], patches: tuple[Patch, ...]) -> list[np.ndarray]:
    """Returns for every map which rows were taken."""
    taken = {patch.tensor: patch for patch in patches}
    found = []
    for each in candidates:
        mask = np.zeros(len(each.saved), dtype=bool)
        if each.name in taken:
            rows = taken[each.name].rows
            mask[slice(None) if rows is None else rows.numpy()] = True
        found.append(mask)
    return found


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
    found = [
        candidate(f"{i}.weight", saved, columns=columns, bits=bits, groups=groups, form=form)
        for i, (saved, columns, bits, groups) in enumerate(maps)
    ]
    budget = share * sum(each.row_bytes * len(each.saved) for each in found)
    patches = patches_within(found, budget)
    assert size_of(patches) <= budget
    taken = np.concatenate(chosen_rows(found, patches))
    size = np.concatenate([np.full(len(each.saved), each.row_bytes) for each in found])
    density = np.concatenate([each.saved.numpy() for each in found]) / size
    assert (density[taken] > 0).all()
    left = ~taken & (density > 0)
    if left.any():
        assert density[left].max() <= density[taken].min(initial=np.inf)
        best = np.flatnonzero(left)[density[left] == density[left].max()]
        assert size[taken].sum() + size[best].max() > budget  # the next does not fit


def test_without_a_budget_all_rows_are_taken() -> None:
    found = [candidate("a.weight", [-1.0, 0.0, 1.0], columns=16, bits=3, groups=1, form="codes")]
    (patch,) = patches_within(found, None)
    assert patch.rows is None
    assert patch.count == 3


def test_no_budget_takes_no_row() -> None:
    found = [candidate("a.weight", [1.0, 2.0], columns=16, bits=3, groups=1, form="codes")]
    assert patches_within(found, 0.0) == ()


def test_the_rows_of_a_patch_are_those_that_were_chosen() -> None:
    saved = [0.1, 5.0, -1.0, 4.0]
    each = candidate("a.weight", saved, columns=16, bits=8, groups=1, form="codes")
    each.codes.codes.copy_(torch.arange(4)[:, None].expand(4, 16))
    (patch,) = patches_within([each], 2 * each.row_bytes)
    assert patch.rows is not None
    assert patch.codes is not None
    assert patch.rows.tolist() == [1, 3]
    assert patch.codes[:, 0].tolist() == [1, 3]
