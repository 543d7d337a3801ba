"""The verb `inspect` on the command line."""

from typing import Annotated

from fairbits.cli.options import Json, Model, Revision, Trust, flag
from fairbits.cli.terminal import out, print_json, stages


def inspect(
    model: Model,
    tensors: Annotated[bool, flag("--tensors", help="One row per tensor instead of one per block.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show a model's blocks and the moments of their weights; the model is not run.

    Examples:
      fairbits inspect embedded:tiny
      fairbits inspect ./model --tensors
      fairbits inspect "embedded:tiny?outliers=5:125" --json
    """
    from fairbits.cli.tables.inspect import inspect_table
    from fairbits.model.hub_checkpoint import open_to_read  # heavy: only when the verb runs
    from fairbits.verbs.inspect import inspect as run_inspect

    with stages("opening the model") as show:
        checkpoint = open_to_read(model, trust_remote_code=trust_remote_code, revision=revision)
        found = run_inspect(checkpoint, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(inspect_table(found, tensors=tensors))
