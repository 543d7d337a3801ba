"""The verb `doctor` on the command line.

What doctor found, for a terminal of 80 columns or a bug report.
"""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.api.doctor import Examination, Package
from fairbits.cli.options import Json
from fairbits.cli.terminal import out, print_json, stages
from fairbits.core.errors import InputError, printable
from fairbits.core.units import gigabytes


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, memory, caches and missing packages, to paste into a bug report.

    Examples:
      fairbits doctor
      fairbits doctor --json
    """
    from fairbits.api.doctor import examine  # heavy: only when the verb runs

    with stages("checking packages and devices"):
        found = examine()
    if as_json:
        print_json(found.as_data())
    else:
        out.print(doctor_table(found))
    if found.problems:
        raise InputError("; ".join(found.problems))


def doctor_table(found: Examination) -> Group:
    """Returns the page."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for what, line in _lines(found):
        table.add_row(what, line)
    return Group(table)


def _lines(found: Examination) -> Iterator[tuple[str, Text]]:
    yield "fairbits", Text(f"{found.fairbits}, Python {found.python}, {found.system}")
    for i, package in enumerate(found.required):
        yield "packages" if i == 0 else "", _package(package)
    for extra in found.extras:
        if extra.missing:
            yield f"for {extra.name}", Text(f"missing {', '.join(extra.missing)}; {extra.command}", style="yellow")
        else:
            yield f"for {extra.name}", Text(", ".join(f"{each.name} {each.installed}" for each in extra.packages))
    for i, device in enumerate(found.devices):
        yield "devices" if i == 0 else "", Text(printable(device))
    yield "memory", Text(found.memory)
    for i, place in enumerate(found.places):
        holds = "" if place.holds is None else f", holds {gigabytes(place.holds)}"
        line = f"{place.what}: {printable(place.path)}{holds}, {gigabytes(place.free)} free on this disk"
        yield "disk" if i == 0 else "", Text(line)
    intact = found.embedded_intact
    yield (
        "embedded:tiny",
        Text("intact" if intact else "its files are not those of this version", style="" if intact else "red"),
    )
    yield "serving", Text(found.server)


def _package(package: Package) -> Text:
    """Returns a package with its version, and the problem if there is one."""
    if package.met:
        return Text.assemble(f"{package.name} {package.installed}", (f"  ({package.needed})", "dim"))
    if package.broken is not None:
        return Text(f"{package.name} {package.installed} cannot be imported: {printable(package.broken)}", style="red")
    return Text(f"{package.needed} is required, but {package.installed or 'no version'} is installed", style="red")
