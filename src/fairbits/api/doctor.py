"""Doctor: the machine, its packages, and what is missing."""

import hashlib
import platform
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from fairbits.core.errors import InputError
from fairbits.core.units import gigabytes
from fairbits.core.version import __version__

SCHEMA = "fairbits.doctor/1"
FOR_DEVELOPERS = ("dev", "docs")
SERVER = "vllm"  # which needs its own versions of packages, and so its own environment: it is not an extra
EMBEDDED = "bcc208af8cf242179f0d147301ba05a28041872e2f2982e15a3f67ec7ef7ef83"
"""The SHA-256 of the embedded model's files, as `digest_of` computes it."""
MODULES = {"pyyaml": "yaml"}
"""Packages whose module has another name."""


@dataclass(frozen=True)
class Package:
    """A package that is needed: `installed` is its version, `broken` why it cannot be imported."""

    name: str
    needed: str
    installed: str | None
    broken: str | None = None

    @property
    def met(self) -> bool:
        if self.installed is None or self.broken is not None:
            return False
        return Requirement(self.needed).specifier.contains(self.installed, prereleases=True)


@dataclass(frozen=True)
class Extra:
    """Packages that one part of fairbits needs, and the command that installs them."""

    name: str
    packages: tuple[Package, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(package.needed for package in self.packages if not package.met)

    @property
    def command(self) -> str:
        return f"pip install {shlex.join(self.missing)}"


@dataclass(frozen=True)
class Place:
    """A directory: its purpose, its size and the free space, in bytes."""

    what: str
    path: str
    holds: int | None
    free: int


@dataclass(frozen=True)
class Examination:
    """Everything that was found on this machine."""

    fairbits: str
    python: str
    system: str
    required: tuple[Package, ...]
    extras: tuple[Extra, ...]
    devices: tuple[str, ...]
    memory: str
    places: tuple[Place, ...]
    embedded_intact: bool
    server: str

    @property
    def problems(self) -> tuple[str, ...]:
        bad = [package for package in self.required if not package.met]
        problems = []
        for package in bad:
            state = "is not installed" if package.installed is None else f"{package.installed} is installed"
            state = state if package.broken is None else f"{package.installed} cannot be imported ({package.broken})"
            problems.append(f"{package.needed} is required, but {state}")
        if bad:
            wanted = " ".join(f'"{package.needed}"' for package in bad)
            problems.append(f"fix it with: pip install {wanted}")
        if not self.embedded_intact:
            problems.append("the files of embedded:tiny do not belong to this version; install fairbits again")
        return tuple(problems)

    def as_data(self) -> dict[str, Any]:
        extras = {extra.name: {"missing": extra.missing, "command": extra.command} for extra in self.extras}
        required = [{**asdict(package), "met": package.met} for package in self.required]
        return {"schema": SCHEMA, **asdict(self), "required": required, "extras": extras, "problems": self.problems}


def examine() -> Examination:
    """Returns what is installed here; only required packages are imported, to see whether they work."""
    required = tuple(_package(requirement, imported=True) for requirement in requirements(None))
    names = metadata.metadata("fairbits").get_all("Provides-Extra") or []
    names = sorted(names, key=lambda name: (name in FOR_DEVELOPERS, name))
    devices: tuple[str, ...] = ("unknown: torch cannot be imported",)
    if _import_problem("torch") is None:
        from fairbits.models.device import describe_devices

        devices = describe_devices()
    return Examination(
        fairbits=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        required=required,
        extras=tuple(Extra(name, tuple(map(_package, requirements(name)))) for name in names),
        devices=devices,
        memory=_memory(),
        places=tuple(_places()),
        embedded_intact=digest_of(Path(__file__).parents[1] / "assets" / "tiny") == EMBEDDED,
        server=_server(devices),
    )


def requirements(extra: str | None) -> list[Requirement]:
    """Returns the requirements of fairbits, or of one of its extras; extras of extras are included."""
    try:
        lines = metadata.requires("fairbits") or []
    except metadata.PackageNotFoundError:
        raise InputError("fairbits is not installed: install it, in its source tree with pip install -e .") from None
    listed: dict[str, Requirement] = {}
    for need in map(Requirement, lines):
        plain = need.marker is None or need.marker.evaluate({"extra": ""})
        if plain != (extra is None) or not (plain or (need.marker and need.marker.evaluate({"extra": extra or ""}))):
            continue
        inner = [requirements(name) for name in sorted(need.extras)] if need.name == "fairbits" else [[need]]
        listed |= {one.name: one for several in inner for one in several}
    return [listed[name] for name in sorted(listed)]


def digest_of(directory: Path) -> str:
    """Returns the SHA-256 of the files of a directory except its card; "" if there are none."""
    digest = hashlib.sha256()
    files = sorted(path for path in directory.glob("*") if path.is_file() and path.name != "README.md")
    for path in files:
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest() if files else ""


def _package(needed: Requirement, *, imported: bool = False) -> Package:
    wanted = f"{needed.name}{needed.specifier}"
    try:
        version = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        return Package(needed.name, wanted, None)
    return Package(needed.name, wanted, version, _import_problem(needed.name) if imported else None)


def _import_problem(name: str) -> str | None:
    try:
        import_module(MODULES.get(name, name.replace("-", "_")))
    except Exception as error:  # a broken package may raise anything
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    return None


def _memory() -> str:
    table = Path("/proc/meminfo")
    if not table.is_file():
        return "unknown"
    lines = dict(line.split(":", 1) for line in table.read_text().splitlines())
    total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return f"{gigabytes(free)} of {gigabytes(total)} free"


def _places() -> Iterator[Place]:
    if _import_problem("huggingface_hub") is None:
        from huggingface_hub import constants

        yield _place("models from the Hub", Path(constants.HF_HUB_CACHE))
    if _import_problem("fairbits.models.checkpoint") is None:  # which needs torch
        from fairbits.core.files import cache_directory

        yield _place("converted models", cache_directory())
    yield Place("this directory", ".", None, shutil.disk_usage(Path.cwd()).free)


def _place(what: str, path: Path) -> Place:
    existing = next(place for place in (path, *path.parents) if place.exists())
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    # without the name of the user, as a bug report is public
    shown = f"~/{path.relative_to(Path.home()).as_posix()}" if path.is_relative_to(Path.home()) else str(path)
    return Place(what, shown, size, shutil.disk_usage(existing).free)


def _server(devices: tuple[str, ...]) -> str:
    try:
        version = metadata.version(SERVER)
    except metadata.PackageNotFoundError:
        return f"{SERVER} is not installed here; it can serve from another environment (pip install {SERVER})"
    needs = map(Requirement, metadata.requires(SERVER) or ())
    packages = [_package(need) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    lacking = [package.needed for package in packages if not package.met]
    if lacking:
        return f"{SERVER} {version} cannot serve: it needs {', '.join(lacking)}"
    if not any(device.startswith("cuda") for device in devices):
        return f"{SERVER} {version} is installed, but there is no CUDA device to serve from"
    return f"{SERVER} {version} is installed with everything it needs"
