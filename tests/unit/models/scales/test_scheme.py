"""The record of how a linear layer is rounded."""

import pytest

from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Scheme


def test_names():
    assert Scheme().name == "W4 group 128 absmax"
    assert Scheme(3, "channel", "exact").name == "W3 per channel exact clip"
    assert Scheme(2, 64, grid="twos").name == "W2 group 64 absmax on twos"
    assert Scheme(4, "tensor", "gaussian").name == "W4 per tensor gaussian"
    assert Scheme(4, "tensor", 0.25).name == "W4 per tensor α=0.25"
    weighted = Scheme(4, 64, "exact", "twos", objective="worst", rounding="gptq")
    assert weighted.name == "W4 group 64 exact clip on twos, worst of languages, gptq"
    assert len({Scheme(), Scheme(4, 128), Scheme(3)}) == 2  # the key of what is measured for it


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"bits": 1}, "bits is 1; it must be 2 to 8"),
        ({"bits": 9}, "bits is 9"),
        ({"bits": 4.0}, "whole number"),
        ({"bits": True}, "whole number"),
        ({"group": 1}, "group is 1; it must be 2 or more"),
        ({"group": "64"}, "group is '64'"),
        ({"clip": "best"}, "clip is 'best'; it must be one of absmax, gaussian, laplace, kappa, exact"),
        ({"clip": 0.0}, "clip is 0; it must be finite, above 0"),
        ({"clip": 0.5, "objective": "mean"}, "only the exact clip can weigh"),
        ({"group": "row"}, "group is 'row'"),
        ({"grid": "midrise"}, "grid is 'midrise'"),
        ({"rounding": "up"}, "rounding is 'up'"),
        ({"clip": "exact", "objective": "loud"}, "objective is 'loud'"),
        ({"objective": "mean"}, "only the exact clip can weigh"),
    ],
)
def test_bad_settings_are_refused(bad, words):
    with pytest.raises(InputError, match=words):
        Scheme(**bad)


def test_rows_and_groups():
    assert Scheme(4, 16).fits(48)
    assert Scheme(4, "channel").fits(47)
    assert not Scheme(4, 32).fits(48)
    assert [Scheme(4, group).groups(48) for group in (16, "channel", "tensor")] == [3, 1, 1]
    with pytest.raises(InputError, match="rows of 48 weights cannot be cut into groups of 32"):
        Scheme(4, 32).groups(48)


def test_a_file_shows_bits_and_group_only():
    text = Scheme(3, 64, "exact", "twos", objective="mean", rounding="gptq")
    assert text.as_stored == Scheme(3, 64)
    assert Scheme(3, "tensor").as_stored == Scheme(3, "channel")
    assert [Scheme(3, group).group_size for group in (64, "channel", "tensor")] == [64, None, None]


def test_what_reads_text():
    assert not Scheme(clip="exact").reads_text
    assert Scheme(clip="exact", objective="mean").reads_text
    assert Scheme(rounding="gptq").reads_text
