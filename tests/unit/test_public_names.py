"""Every name that the package promises can be had."""

import importlib

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


def test_the_package_of_the_same_name_does_not_hide_the_verb() -> None:
    importlib.import_module("fairbits.quantize.plan")
    assert fairbits.quantize is importlib.import_module("fairbits.verbs.quantize").quantize
