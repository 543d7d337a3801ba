"""Rows in another form, and what they save."""

from pathlib import Path

import pytest
import torch

from fairbits.models.io.safetensors_files import in_memory, read_header, write_tensors
from fairbits.models.scales.groups import dequantize_in_float32
from fairbits.serve.overlays.builder import Candidate, OverlayBuilder
from fairbits.serve.overlays.overlay_files import Form, Overlay

FORMS: tuple[Form, ...] = ("residual", "codes", "steps")


@pytest.fixture(scope="module")
def found(builder: OverlayBuilder) -> dict[Form, list[Candidate]]:
    """Returns every linear layer of the embedded model in every form, for Hebrew."""
    return {form: builder.candidates(("heb_Hebr",), form) for form in FORMS}


@pytest.mark.parametrize(("form", "share"), [("residual", 0.99), ("codes", 0.99), ("steps", 0.9)])
def test_every_form_lowers_the_error_of_rows(found: dict[Form, list[Candidate]], form: Form, share: float) -> None:
    saved = torch.cat([each.saved for each in found[form]])
    assert saved.isfinite().all()
    assert (saved > 0).double().mean() > share
    assert -saved[saved < 0].sum() < 1e-3 * saved.sum()


def test_saved_is_what_the_error_falls_by(builder: OverlayBuilder, found: dict[Form, list[Candidate]]) -> None:
    overlay_base = builder.overlay_base
    text, sensitivity = builder._fitting(("heb_Hebr",)), builder._sensitivity_of("heb_Hebr")
    place = {name: i for i, name in enumerate(overlay_base.schemes)}
    inputs = {name: known.H for name, known in overlay_base.input_statistics(text) if place[name] % 6 == 0}
    assert len(inputs) >= 3
    for name, H in inputs.items():
        assert H is not None
        W, base = overlay_base.original(name).double(), dequantize_in_float32(overlay_base.codes(name)).double()
        for form in FORMS:
            each = found[form][place[name]]
            assert each.name == name
            now = dequantize_in_float32(each.codes).double() + (base if form == "residual" else 0)
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
    assert found["residual"][0].row_bytes == weight * 2 / 8 + 2 + 4  # 2 bits each, a scale in float16, a row number


def test_codes_stay_where_steps_change(builder: OverlayBuilder, found: dict[Form, list[Candidate]]) -> None:
    for each in found["steps"][::5]:
        base = builder.overlay_base.codes(each.name)
        patch = each.patch(None)
        assert torch.equal(each.codes.codes, base.codes)
        assert patch.codes is None
        assert patch.base_scales is not None
        assert torch.equal(patch.base_scales, base.scales)
        assert patch.scales.dtype == base.scales.dtype
