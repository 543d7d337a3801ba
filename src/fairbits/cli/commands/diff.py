"""The verb `diff` on the command line."""

from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import Json, Model, Trust
from fairbits.cli.terminal import out, print_json, stages


def diff(
    a: Model,
    b: Annotated[str, typer.Argument(help="The other model.", metavar="OTHER", autocompletion=completion.model)],
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show two models side by side: their architecture and the weights of their blocks.

    Examples:
      fairbits diff embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits diff ./model ./other --json
    """
    from fairbits.cli.tables.diff import diff_table
    from fairbits.model import Checkpoint  # heavy: only when the verb runs
    from fairbits.verbs.diff import diff as run_diff

    both = [Checkpoint(model, trust_remote_code=trust_remote_code) for model in (a, b)]
    with stages("reading weights") as show:
        found = run_diff(*both, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(diff_table(found))
