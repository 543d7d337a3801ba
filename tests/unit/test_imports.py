"""The mathematics imports no deep-learning framework, and the command line starts without it."""

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "package",
    ["fairbits.theory", "fairbits.stats", "fairbits.science.claims", "fairbits.language", "fairbits.model.scheme"],
)
def test_no_torch_or_transformers(package) -> None:
    loaded = modules_after(f"import {package}")
    assert package in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "transformers")}


def test_asking_for_help_loads_no_mathematics() -> None:
    assert not {name for name in modules_after("import fairbits.cli") if name.split(".")[0] in ("numba", "scipy")}
