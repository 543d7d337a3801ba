import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rich.console import Console

from fairbits.api import doctor
from fairbits.api.doctor import EMBEDDED, Extra, Package, digest_of, examine, requirements
from fairbits.cli.doctor_command import doctor_table

TINY = Path(doctor.__file__).parents[1] / "assets" / "tiny"


@pytest.fixture(scope="module")
def examination() -> doctor.Examination:
    return examine()


def page(examination) -> str:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(doctor_table(examination).terminal())
    console.file.close()
    return console.export_text()


def test_what_is_required_is_what_the_package_says(examination) -> None:
    declared = {Requirement(line).name for line in metadata.requires("fairbits") if "extra ==" not in line}
    assert {package.name for package in examination.required} == declared >= {"torch", "transformers", "safetensors"}
    assert examination.problems == ()
    assert all(package.installed == metadata.version(package.name) for package in examination.required)


def test_extras_within_extras_are_followed() -> None:
    names = {requirement.name for requirement in requirements("dev")}
    assert {"datasets", "pytest"} <= names
    assert "fairbits" not in names


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (Package("torch", "torch>=2.6", None), "torch>=2.6 is required, but is not installed"),
        (Package("torch", "torch>=2.6", "2.5.1"), "torch>=2.6 is required, but 2.5.1 is installed"),
        (Package("torch", "torch>=2.6", "2.6.0", "OSError: no libc"), "cannot be imported (OSError: no libc)"),
    ],
)
def test_what_must_be_mended(examination, package, problem) -> None:
    ill = replace(examination, required=(package,))
    assert problem in ill.problems[0]
    assert ill.problems[1] == 'fix it with: pip install "torch>=2.6"'
    assert ill.as_data()["required"][0]["met"] is False
    assert "torch" in page(ill)


def test_a_package_that_is_not_there_or_does_not_load(tmp_path, monkeypatch) -> None:
    assert doctor._package(Requirement("no-such-package>=1"), imported=True).installed is None
    (tmp_path / "half_installed.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor._import_problem("half-installed") == "ModuleNotFoundError: No module named 'no_such_library'"
    assert doctor._import_problem("json") is None


def test_an_extra_names_what_is_missing_and_the_command(examination) -> None:
    extra = Extra("serve", (Package("uvicorn", "uvicorn>=0.34", None), Package("fastapi", "fastapi>=0.115", "0.116")))
    assert extra.missing == ("uvicorn>=0.34",)
    printed = " ".join(page(replace(examination, extras=(extra,))).split())
    assert "for serve missing uvicorn>=0.34; pip install 'uvicorn>=0.34'" in printed
    assert examination.problems == replace(examination, extras=(extra,)).problems  # nothing that must be mended


def test_the_embedded_model_is_known_by_its_bytes(examination, tmp_path) -> None:
    assert examination.embedded_intact
    copy = tmp_path / "tiny"
    shutil.copytree(TINY, copy)
    assert digest_of(copy) == EMBEDDED
    (copy / "README.md").unlink()
    assert digest_of(copy) == EMBEDDED
    weights = copy / "model-00002-of-00002.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert digest_of(copy) != EMBEDDED
    assert digest_of(tmp_path / "none") == ""
    assert "install fairbits again" in replace(examination, embedded_intact=False).problems[0]


def test_caches_are_counted_and_the_user_is_not_named(tmp_path, monkeypatch) -> None:
    cache = tmp_path / ".cache" / "fairbits"
    cache.mkdir(parents=True)
    (cache / "weights").write_bytes(bytes(1000))
    (cache / "again").symlink_to(cache / "weights")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    place = next(place for place in doctor._places() if place.what == "converted models")
    assert (place.path, place.holds) == ("~/.cache/fairbits", 1000)
    assert place.free > 0
    assert doctor._place("nowhere", tmp_path / "a" / "b").holds == 0


def test_the_page_fits_80_columns(examination) -> None:
    lines = page(examination).splitlines()
    assert max(map(len, lines)) <= 80
    for word in ("fairbits", "torch", "for serve", "cpu", "memory", "disk", "embedded:tiny", "vllm"):
        assert any(word in line for line in lines), word


def test_vllm_needs_packages_and_a_device(monkeypatch, tmp_path) -> None:
    assert "not installed" in doctor._server(("cpu",))
    home = tmp_path / "vllm-9.9.dist-info"
    home.mkdir()
    needs = "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\nRequires-Dist: torch>=2.6\n"
    (home / "METADATA").write_text(needs)
    monkeypatch.syspath_prepend(tmp_path)
    assert "no CUDA device" in doctor._server(("cpu",))
    assert doctor._server(("cpu", "cuda:0, a card")).endswith("is installed with everything it needs")
    (home / "METADATA").write_text(needs + "Requires-Dist: no-such-package>=1\n")
    assert "cannot serve: it needs no-such-package>=1" in doctor._server(("cuda:0",))
