"""The verb that looks at the machine and the packages: doctor."""

from fairbits.cli.options import Json
from fairbits.errors import InputError
from fairbits.terminal import out, print_json, stages


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, memory, caches and what is missing, on a page to paste into a report of a defect.

    Examples:
      fairbits doctor
      fairbits doctor --json
    """
    from fairbits.steps.doctor import examine  # heavy: only when the verb runs
    from fairbits.steps.doctor_table import doctor_table

    with stages("looking at packages and devices"):
        found = examine()
    if as_json:
        print_json(found.as_data())
    else:
        out.print(doctor_table(found))
    if found.problems:
        raise InputError("; ".join(found.problems))
