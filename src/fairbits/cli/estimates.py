"""Estimates on the command line: the table or the JSON, and the error if the job does not fit."""

from typing import TYPE_CHECKING

from fairbits.cli.terminal import out, print_json
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.verbs.estimate.estimate import Estimate


def show_estimate(estimate: "Estimate", *, as_json: bool) -> None:
    """Prints an estimate; raises if the job certainly does not fit, so that scripts notice it."""
    from fairbits.cli.tables.estimate import estimate_table  # heavy: only when a verb runs

    if as_json:
        print_json(estimate.as_data())
    else:
        out.print(estimate_table(estimate))
    certain = [each for each in estimate.shortages if each.certain]
    if certain:
        raise InputError("; ".join(filter(None, (str(certain[0]), estimate.advice))))
