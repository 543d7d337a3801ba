"""Rows in another form, and what they save."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fairbits.model.codes import Codes
from fairbits.model.files.safetensors_header import read_header
from fairbits.model.files.safetensors_writing import in_memory, write_tensors
from fairbits.overlays.base_model import dense
from fairbits.overlays.builder import Workshop
from fairbits.overlays.forms import Candidate, fitted_steps
from fairbits.overlays.overlay import Form, Overlay

FORMS: tuple[Form, ...] = ("residual", "codes", "steps")


@pytest.fixture(scope="module")
def found(workshop: Workshop) -> dict[Form, list[Candidate]]:
    """Returns every linear map of the embedded model in every form, for Hebrew."""
    return {form: workshop.candidates(("heb_Hebr",), form) for form in FORMS}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fitted_steps_are_those_that_a_search_finds(groups: int) -> None:
    rng = torch.Generator().manual_seed(groups)
    W, X = torch.randn(12, 16, generator=rng), torch.randn(40, 16, generator=rng) @ torch.randn(16, 16, generator=rng)
    H, size = X.T @ X / 40, 16 // groups
    old = W.reshape(12, groups, size).abs().amax(2) / 4
    codes = Codes((W.reshape(12, groups, size) / old[:, :, None]).round().reshape(12, 16).to(torch.int8), old, 4)
    steps = fitted_steps(W, codes, H)
    tried = torch.linspace(0, 2, 1001) * float(old.max())
    for group in range(groups):
        part = slice(group * size, (group + 1) * size)

        def error(step: Tensor, part: slice = part) -> Tensor:
            """Returns the errors of all rows for steps (…, 1)."""
            left = W[:, part] - step[..., None] * codes.codes[:, part]
            return ((left @ H[part, part]) * left).sum(-1)

        searched = torch.stack([error(step.expand(12)) for step in tried])
        fitted = error(steps[:, group])
        assert (fitted <= searched.amin(0) * (1 + 1e-4) + 1e-5).all()
        nearest = tried[searched.argmin(0)]
        assert torch.allclose(steps[:, group], nearest, atol=float(tried[1]))


def test_a_step_stays_where_no_other_helps() -> None:
    codes = Codes(torch.tensor([[0, 0], [1, 1], [1, 2]], dtype=torch.int8), torch.full((3, 1), 0.25), 4)
    W = torch.tensor([[0.1, 0.1], [-0.5, -0.5], [0.5, 1.0]])
    assert fitted_steps(W, codes, torch.eye(2)).tolist() == [[0.25], [0.25], [0.5]]


@pytest.mark.parametrize(("form", "share"), [("residual", 0.99), ("codes", 0.99), ("steps", 0.9)])
def test_every_form_lowers_the_error_of_rows(found: dict[Form, list[Candidate]], form: Form, share: float) -> None:
    saved = torch.cat([each.saved for each in found[form]])
    assert saved.isfinite().all()
    assert (saved > 0).double().mean() > share
    assert -saved[saved < 0].sum() < 1e-3 * saved.sum()


def test_saved_is_what_the_error_falls_by(workshop: Workshop, found: dict[Form, list[Candidate]]) -> None:
    ground = workshop.ground
    text, sensitivity = workshop._fitting(("heb_Hebr",)), workshop._sensitivity_of("heb_Hebr")
    place = {name: i for i, name in enumerate(ground.treatments)}
    inputs = {name: known.H for name, known in ground.known(text) if place[name] % 6 == 0}
    assert len(inputs) >= 3
    for name, H in inputs.items():
        assert H is not None
        W, base = ground.original(name).double(), dense(ground.codes(name)).double()
        for form in FORMS:
            each = found[form][place[name]]
            assert each.name == name
            now = dense(each.codes).double() + (base if form == "residual" else 0)
            errors = [torch.einsum("ri,ij,rj->r", W - V, H.double(), W - V) for V in (base, now)]
            expected = 0.5 * sensitivity[name] * (errors[0] - errors[1])
            assert torch.allclose(each.saved, expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


def test_rows_take_as_many_bytes_of_a_file_as_they_say(found: dict[Form, list[Candidate]], tmp_path: Path) -> None:
    for form in FORMS:
        each = found[form][0]
        for count in (1, 7):
            overlay = Overlay("a", (), (each.patch(torch.arange(count)),))
            write_tensors(tmp_path / "a.safetensors", in_memory(overlay.tensors()))
            stored = sum(info.nbytes for info in read_header(tmp_path / "a.safetensors").values())
            assert stored == count * each.row_bytes == overlay.size_bytes
    weight = found["residual"][0].codes.codes.shape[1]
    assert found["residual"][0].row_bytes == weight * 2 / 8 + 2 + 4  # 2 bits each, a step in float16, a row number


def test_codes_stay_where_steps_change(workshop: Workshop, found: dict[Form, list[Candidate]]) -> None:
    for each in found["steps"][::5]:
        base = workshop.ground.codes(each.name)
        patch = each.patch(None)
        assert torch.equal(each.codes.codes, base.codes)
        assert patch.codes is None
        assert patch.base_steps is not None
        assert torch.equal(patch.base_steps, base.steps)
        assert patch.steps.dtype == base.steps.dtype
