"""Every name that the package promises can be had."""

import importlib
import pkgutil

import pytest

import fairbits


@pytest.mark.parametrize("name", fairbits.__all__)
def test_public_names(name) -> None:
    value = getattr(fairbits, name)
    assert isinstance(value, str) or callable(value)
    assert name in dir(fairbits)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'quantise'"):
        fairbits.quantise  # noqa: B018


def test_importing_submodules_does_not_hide_a_public_name() -> None:
    """A package `fairbits.quantize`, for example, would take the place of the function when it is imported."""
    for module in pkgutil.iter_modules(fairbits.__path__):
        assert module.name not in fairbits.__all__
    importlib.import_module("fairbits.quantization.plan")
    assert fairbits.quantize is importlib.import_module("fairbits.api.quantize").quantize
