"""Estimates on the command line: the table or the JSON, and the error if the job does not fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairbits.cli.terminal import out, print_json
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.verbs.estimate.estimate import Estimate


def show_estimate(estimate: "Estimate", *, as_json: bool) -> None:
    """Prints an estimate; raises if the job certainly does not fit, so that scripts notice it."""
    show_estimates([estimate], as_json=as_json)


def show_estimates(estimates: Sequence["Estimate"], *, as_json: bool) -> None:
    """Prints estimates one after the other, as JSON in a list if there are several; raises if one does not fit."""
    from fairbits.cli.tables.estimate import estimate_table  # heavy: only when a verb runs

    if as_json:
        data = [each.as_data() for each in estimates]
        print_json(data if len(data) > 1 else data[0])
    else:
        for each in estimates:
            out.print(estimate_table(each))
    for each in estimates:
        certain = [shortage for shortage in each.shortages if shortage.certain]
        if certain:
            raise InputError("; ".join(filter(None, (str(certain[0]), each.advice))))
