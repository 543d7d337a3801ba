"""The verb `doctor` on the command line."""

from fairbits.cli.options import Json
from fairbits.cli.terminal import out, print_json, stages
from fairbits.errors import InputError


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, memory, caches and missing packages, to paste into a bug report.

    Examples:
      fairbits doctor
      fairbits doctor --json
    """
    from fairbits.cli.tables.doctor import doctor_table
    from fairbits.verbs.doctor import examine  # heavy: only when the verb runs

    with stages("checking packages and devices"):
        found = examine()
    if as_json:
        print_json(found.as_data())
    else:
        out.print(doctor_table(found))
    if found.problems:
        raise InputError("; ".join(found.problems))
