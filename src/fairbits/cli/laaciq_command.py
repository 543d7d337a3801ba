"""The command `laaciq` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import compute, early_checks, options
from fairbits.cli.terminal import print_json, print_tables, stages


def laaciq(
    model: options.Model,
    languages: options.Languages = None,
    text: options.TextFrom = None,
    bits: options.Bits = 4,
    tokens: options.Tokens = 4096,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out_file: Annotated[Path | None, options.out_option("LAACIQ.json")] = None,
    details: Annotated[bool, options.flag("--details", help="Show every linear layer.")] = False,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Show the clip thresholds that LA-ACIQ gives every language.

    LA-ACIQ is a rule of the research notes. The exact threshold is shown next to it.

    Examples:
      fairbits laaciq embedded:tiny
      fairbits laaciq ./model --languages eng,fra,heb --out laaciq.json
      fairbits laaciq "embedded:tiny?outliers=3:125,7:148" --details
    """
    names = early_checks.check(locals(), example="laaciq.json")
    from fairbits.api.laaciq import laaciq as run_laaciq
    from fairbits.models.checkpoint import Checkpoint

    device = compute.choose_device(device)
    opened = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    with stages("opening the model") as show:
        result = run_laaciq(
            opened, languages=names, progress=show, **options.pick(locals(), "text bits tokens sequence seed device")
        )
    options.write_out(out_file, result.save)
    print_json(result.as_data()) if as_json else print_tables(result.tables(details=details))
