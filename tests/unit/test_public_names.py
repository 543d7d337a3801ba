"""Every name that the package promises can be had."""

import pytest

import fairbits


@pytest.mark.parametrize("name", fairbits.__all__)
def test_public_names(name) -> None:
    found = getattr(fairbits, name)
    assert isinstance(found, str) or callable(found)
    assert name in dir(fairbits)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'quantise'"):
        fairbits.quantise  # noqa: B018
