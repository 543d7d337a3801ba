"""The command `doctor` on the command line."""

from collections.abc import Iterator

from fairbits.api.doctor import Examination, Package, examine
from fairbits.cli import options
from fairbits.cli.terminal import print_json, print_tables, stages
from fairbits.core.errors import InputError
from fairbits.core.table import Cell, Table
from fairbits.core.units import gigabytes


def doctor(as_json: options.Json = False) -> None:
    """Check the installation: versions, devices, memory, packages.

    Paste the output into a bug report.

    Examples:
      fairbits doctor
      fairbits doctor --json
    """
    with stages("checking packages and devices"):
        examination = examine()
    print_json(examination.as_data()) if as_json else print_tables([doctor_table(examination)])
    if examination.problems:
        raise InputError("; ".join(examination.problems))


def doctor_table(examination: Examination) -> Table:
    """Returns one row per fact; rows of the same kind follow each other."""
    rows: list[tuple[Cell, ...]] = []
    kind = ""
    for label, fact in _facts(examination):
        rows.append(([("" if label == kind else label, "bold")], fact))
        kind = label
    return Table("", rows=tuple(rows), wrap=(1,))


def _facts(examination: Examination) -> Iterator[tuple[str, Cell]]:
    yield "fairbits", f"{examination.fairbits}, Python {examination.python}, {examination.system}"
    yield from (("packages", _package(package)) for package in examination.required)
    for extra in examination.extras:
        if extra.missing:
            yield f"for {extra.name}", [(f"missing {', '.join(extra.missing)}; {extra.command}", "yellow")]
        else:
            yield f"for {extra.name}", ", ".join(f"{package.name} {package.installed}" for package in extra.packages)
    yield from (("devices", device) for device in examination.devices)
    yield "memory", examination.memory
    for place in examination.places:
        holds = "" if place.holds is None else f", holds {gigabytes(place.holds)}"
        yield "disk", f"{place.what}: {place.path}{holds}, {gigabytes(place.free)} free on this disk"
    intact = examination.embedded_intact
    yield "embedded:tiny", "intact" if intact else [("its files are not the files of this version", "red")]
    yield "serving", examination.server


def _package(package: Package) -> Cell:
    if package.met:
        return [f"{package.name} {package.installed}", (f"  ({package.needed})", "dim")]
    if package.broken is not None:
        return [(f"{package.name} {package.installed} cannot be imported: {package.broken}", "red")]
    return [(f"{package.needed} is required, but {package.installed or 'no version'} is installed", "red")]
