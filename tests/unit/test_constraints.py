"""constraints.txt: a version for everything that fairbits and its tests install."""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def needed(name: str, *extras: str) -> set[str]:
    """Returns all packages that one needs on this system, directly or not."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, frozenset(extras))]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for line in requires(current[0]) or []:
            asked = Requirement(line)
            if asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in ("", *current[1])):
                waiting.append((canonicalize_name(asked.name), frozenset(asked.extras)))
    return {package for package, _ in seen} - {name}


@pytest.mark.skipif(sys.platform != "linux", reason="the versions are those of Linux")
def test_every_package_has_a_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert list(pinned) == sorted(pinned)
    assert pinned["torch"] == "2.13.0"  # without +cpu, which only one index has
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned.values())
    try:
        packages = needed("fairbits", "dev")
    except PackageNotFoundError as missing:
        pytest.skip(f"{missing} is not installed")
    assert packages - pinned.keys() == set()
    assert pinned.keys() - packages == {"ray"}
