"""The wheel stands alone: what an environment needs that has the dependencies and the wheel, but not the clone."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
SMALL = ("--languages", "eng,swh", "--tokens", "128", "--evaluation-tokens", "512")
NOTEBOOK = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=".")
nbformat.write(notebook, "done.ipynb")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel, built of a copy, as building leaves files next to the sources."""
    place = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, place / name)
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "dist", ".")
    subprocess.run(build, cwd=place, check=True, capture_output=True, text=True)
    (wheel,) = (place / "dist").iterdir()
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the commands of an environment that sees the installed dependencies, and of fairbits the wheel alone."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", place), check=True)
    python = place / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    subprocess.run((*install, wheel), check=True, capture_output=True, text=True)
    (packages,) = (place / "lib").glob("python*/site-packages")
    # the files that lead to an editable clone are read in site-packages only, not in a path that is added to it
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


@pytest.fixture(scope="module")
def demo(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns where `fairbits run` has written its demonstration, in small, in `run`."""
    place = tmp_path_factory.mktemp("demo")
    done = call(place, environment / "fairbits", "run", "--out", "run", *SMALL)
    assert done.returncode == 0, done.stderr
    return place


def call(place: Path, *command: str | Path) -> "subprocess.CompletedProcess[str]":
    """Returns what a command printed outside the clone, without the variables that would lead back to it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)


def test_it_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = {name.split("/")[0] for name in names}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"fairbits", "fairbits_research"}
    assert not [name for name in names if re.search(r"\.(nb[ic]|pyc|png|ipynb)$|/tests?/", name)]
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    unneeded = re.compile(r"__pycache__|\.egg-info")
    assert {name for name in sources if not unneeded.search(name)} <= names
    assert wheel.stat().st_size < 30e6  # of which the weights of the embedded model are 25 MB


def test_the_package_is_the_installed_one(environment: Path, tmp_path: Path) -> None:
    code = "import fairbits, fairbits_research; print(fairbits.__file__, fairbits_research.__file__)"
    done = call(tmp_path, environment / "python", "-c", code)
    assert all(path.startswith(str(environment.parent)) for path in done.stdout.split()), done
    assert str(ROOT / "src") not in call(tmp_path, environment / "python", "-c", "import sys; print(sys.path)").stdout


def test_a_run_its_gate_and_its_report(environment: Path, demo: Path) -> None:
    assert (demo / "run" / "report.html").is_file()
    assert (demo / "run" / "model" / "config.json").is_file()
    for arguments in (("gate", "run/scores.json", "--max-worst", "100"), ("report", "run", "--out", "again.html")):
        code = f"import sys; sys.argv[1:] = {arguments!r}\nfrom fairbits.cli import main\n"
        code += "try:\n    main()\nfinally:\n    print('LOADED', *sys.modules)"
        done = call(demo, environment / "python", "-c", code)
        assert done.returncode == 0, done.stderr
        assert {"torch", "transformers"}.isdisjoint(done.stdout.rpartition("LOADED")[2].split())
    assert call(demo, environment / "fairbits", "gate", "run/scores.json", "--max-worst", "0").returncode == 1


def test_the_notebook_runs(environment: Path, tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel", "nbformat"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    source = ROOT / "examples" / "in_memory.ipynb"
    done = call(tmp_path, environment / "python", "-W", "ignore", "-c", NOTEBOOK, source)
    assert done.returncode == 0, done.stderr
    stored, shown = json.loads(source.read_text("utf-8")), json.loads((tmp_path / "done.ipynb").read_text("utf-8"))

    def kinds(notebook: dict) -> list[list[str]]:
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        return [[kind["output_type"] for kind in cell["outputs"] if kind.get("name") != "stderr"] for cell in cells]

    assert kinds(shown) == kinds(stored)
