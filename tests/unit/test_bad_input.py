"""Every public function refuses bad input with a reason, whatever the argument.

The tables in bad_input/ say, per public callable, a good value and the kinds of bad ones per argument:

    ROWS["clip_law"] = clip_law, {"source": (Gaussian(), "object"), "tolerance": (1e-6, "positive", {"huge": 1e400})}

A kind is a name of KINDS, which stands for many bad values, or a dict of further ones by label. One argument at a time,

1. every bad value takes the place of the good one, and the call must raise an InputError "what; what must hold";
2. numbers and arrays are also replaced by extreme but valid ones (EXTREMES), which must give numbers or a reason.

A row named "name, variant" calls the same function with other options fixed. Two tests keep the tables complete: every
public name must have a row, and every row must cover every argument. A test is one argument of one function, and names
every value that fails. To run one: `pytest -k "clip_law and tolerance"`.
"""

import dataclasses
import importlib
import inspect
import re
import runpy
import typing
from pathlib import Path

import numpy as np
import pytest

from fairbits.errors import FairbitsError, InputError

pytestmark = pytest.mark.usefixtures("watchdog")

ROWS = {}
for table in sorted((Path(__file__).parent / "bad_input").glob("*.py")):
    ROWS |= runpy.run_path(str(table))["ROWS"]

PACKAGES = ("theory", "theory.allocation", "stats", "science.theory", "science.stats")
MODULES = (
    *(f"theory.{name}" for name in ("grid", "distributions", "moments", "noise")),
    *(f"theory.clipping.{name}" for name in ("blocks", "exact", "formulas")),
    *(f"science.theory.{name}" for name in ("bounds", "thresholds", "redundancy", "mediation")),
)
FLAGS = {"signed", "relative", "simultaneous"}
"""Yes or no: anything is one of them."""
RESULTS = {
    *("Certified", "Shared", "BlockSteps", "SharedSteps", "Noise", "Allocation", "Protection"),
    *("CausalEffects", "Draws", "LossCurves", "Contrast", "Correlation", "Link", "Mediation", "PartialCorrelation"),
    *("PermutationTest", "Replicates"),
}
"""Plain records that functions return and nobody else makes."""
EXCEPTIONS = RESULTS | {
    *("Distribution", "Symmetric"),  # abstract: their families are listed
    *("SEED_CONSTANTS", "REFITTED_CONSTANTS"),  # numbers
    "LanguageFrame.plot",  # takes a title only
    "code_sums",  # the inner loop of mse, which checks what it hands over
}

NOT_NUMBERS = {"string": "1", "none": None, "object": object(), "complex": 1 + 1j, "list": [1.0], "array": np.ones(2)}
NOT_FINITE = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf, "beyond float64": 10**400}
NOT_WHOLE = {"nan": np.nan, "half": 2.5, "float": 4.0, "string": "4", "none": None, "true": True, "list": [4]}
NOT_WHOLE |= {"beyond int64": 10**30}


def _arrays(good):
    array = np.atleast_1d(np.asarray(good, dtype=np.float64))
    return {
        "nan": np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array),
        "inf": np.where(np.arange(array.size).reshape(array.shape) == array.size - 1, np.inf, array),
        "empty": np.zeros((0, *array.shape[1:])),
        "empty list": [],
        "string": "abc",
        "strings": np.full(array.shape, "1.0"),
        "objects": np.full(array.shape, object()),
        "dict": {"a": 1.0},
        "complex": array + 1j,
        "ragged": [[1.0], [1.0, 2.0]],
    }


def _longer(good):
    array = np.asarray(good)
    return {"longer": np.concatenate([array, array[..., -1:]], axis=-1)}


KINDS = {
    "array": _arrays,
    "required": {"none": None},
    "shaped": _longer,
    "flat": lambda good: {"one axis more": np.asarray(good)[None], "scalar": np.asarray(good).flat[0]},
    "nonnegative": lambda good: {"negative": -1.0 - np.asarray(good)},
    "not all zero": lambda good: {"zeros": 0.0 * np.asarray(good)},
    "number": NOT_NUMBERS | NOT_FINITE,
    "positive": NOT_NUMBERS | NOT_FINITE | {"zero": 0.0, "negative": -1.0},
    "at least 0": NOT_NUMBERS | NOT_FINITE | {"negative": -1e-300},
    "share": NOT_NUMBERS | NOT_FINITE | {"zero": 0.0, "one": 1.0, "negative": -0.1, "percent": 95},
    "whole": NOT_WHOLE | {"negative": -1},
    "count": NOT_WHOLE | {"negative": -1, "zero": 0},
    "bits": NOT_WHOLE | {"one": 1, "nine": 9, "zero": 0},
    "choice": lambda good: {"unknown": "other", "none": None, "number": 3, "list": [good]},
    "object": lambda good: {"none": None, "number": 4, "string": "symmetric", "class": type(good)},
    "objects": lambda good: {"none": None, "number": 4, "empty": [], "class": [type(good[0])], "mixed": [*good, None]},
    "generator": {"none": None, "half": 0.5, "negative": -1, "string": "0", "class": np.random.Generator},
}
EXTREMES = {"1e300": 1e300, "1e150": 1e150, "1e-150": 1e-150, "1e-310": 1e-310, "-1e300": -1e300, "0": 0.0}


def _good(arguments):
    return {argument: value[0] for argument, value in arguments.items()}


def _bad_values(good, kinds):
    values = {}
    for kind in kinds:
        found = kind if isinstance(kind, dict) else KINDS[kind]
        values |= found(good) if callable(found) else found
    return values


def _extreme_values(good, kinds):
    if not any(kind in ("array", "number", "positive", "at least 0", "share") for kind in kinds):
        return {}
    if "array" not in kinds:
        return EXTREMES
    array = np.asarray(good, dtype=np.float64)
    one = np.arange(array.size).reshape(array.shape) == 0
    return {f"times {label}": array * factor for label, factor in EXTREMES.items()} | {
        f"with one {label}": np.where(one, factor, array) for label, factor in EXTREMES.items()
    }


def numbers_in(result):
    """All numbers of a result, however nested."""
    if dataclasses.is_dataclass(result):
        return [n for field in dataclasses.fields(result) for n in numbers_in(getattr(result, field.name))]
    if isinstance(result, dict):
        return numbers_in(list(result.values()))
    if isinstance(result, list | tuple):
        return [n for item in result for n in numbers_in(item)]
    array = np.asarray(result)
    return array.ravel().tolist() if array.dtype.kind in "fiub" else []


def public_names():
    """The exported names, the public names of the modules, and the methods that take arguments."""
    found = {}
    for path in PACKAGES:
        package = importlib.import_module(f"fairbits.{path}")
        found |= {name: getattr(package, name) for name in package.__all__}
    for path in MODULES:
        module = importlib.import_module(f"fairbits.{path}")
        own = {name: item for name, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__}
        found |= {name: item for name, item in own.items() if callable(item) and not name.startswith("_")}
    classes = [item for item in found.values() if inspect.isclass(item)]
    return set(found).union(*(_methods(item) for item in classes))


def _methods(item):
    members = {name: getattr(member, "__func__", member) for name, member in vars(item).items()}
    return {
        f"{item.__name__}.{name}"
        for name, member in members.items()
        if inspect.isfunction(member)
        and (not name.startswith("_") or name == "__add__")
        and not getattr(member, "__isabstractmethod__", False)
        and set(inspect.signature(member).parameters) - FLAGS - {"self", "cls"}
    }


def _cases(values_of):
    """The function's row, the argument and what takes the place of its good value, by label."""
    return [
        pytest.param(name, argument, values, id=f"{name}: {argument}")
        for name, (_, arguments) in ROWS.items()
        for argument, (good, *kinds) in arguments.items()
        if (values := values_of(good, kinds))
    ]


def _failures(name, argument, values, *, fault):
    """What is wrong with each value that fails, by label."""
    call, arguments = ROWS[name]
    found = {label: fault(call, _good(arguments) | {argument: value}) for label, value in values.items()}
    return {label: what for label, what in found.items() if what}


def _not_refused(call, arguments):
    try:
        result = call(**arguments)
    except InputError as error:
        return None if re.search(r".+; .+", str(error)) else f"a reason of one part: {error}"
    except Exception as error:
        return f"another error: {error!r}"
    return f"accepted: {result!r}"


def _not_finite(call, arguments):
    try:
        found = np.asarray(numbers_in(call(**arguments)), dtype=np.float64)
    except FairbitsError:
        return None
    except Exception as error:
        return f"another error: {error!r}"
    return None if np.isfinite(found).all() else f"not all finite: {found[~np.isfinite(found)][:5]}"


@pytest.mark.parametrize("name", ROWS)
def test_the_good_values_are_good(name):
    call, arguments = ROWS[name]
    call(**_good(arguments))


@pytest.mark.parametrize(("name", "argument", "values"), _cases(_bad_values))
def test_bad_input_is_refused_with_a_reason(name, argument, values):
    assert _failures(name, argument, values, fault=_not_refused) == {}


@pytest.mark.parametrize(("name", "argument", "values"), _cases(_extreme_values))
def test_extreme_input_gives_numbers_or_a_reason(name, argument, values):
    assert _failures(name, argument, values, fault=_not_finite) == {}


def test_every_public_name_has_a_row():
    assert public_names() - set(ROWS) - EXCEPTIONS == set()
    assert set(ROWS) & EXCEPTIONS == set()


def test_every_argument_has_bad_values():
    lacking = {
        name: uncovered
        for name, (call, arguments) in ROWS.items()
        if ", " not in name and (uncovered := (_arguments(call) - FLAGS) ^ set(arguments))
    }
    assert lacking == {}


def _arguments(call):
    """The names of the arguments; of `**settings`, those that its type has."""
    found = inspect.signature(call).parameters
    settings = [each for each in found.values() if each.kind is each.VAR_KEYWORD]
    names = {name for each in settings for kind in typing.get_args(each.annotation) for name in kind.__annotations__}
    return set(found) - {each.name for each in settings} | names
