"""The verb `overlay` on the command line."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.text import Text

from fairbits.cli import completion
from fairbits.cli.options import (
    Device,
    Json,
    Languages,
    Model,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    out_option,
)
from fairbits.cli.parsing import budget_of, names_of
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages
from fairbits.core.errors import printable


def overlay(
    model: Model,
    base: Annotated[
        str,
        typer.Option(
            help="The quantized model that fairbits quantize made from MODEL.",
            metavar="DIR",
            autocompletion=completion.model,
        ),
    ],
    out_directory: Annotated[
        Path | None,
        out_option("DIR", help="The directory to write; by default overlays/ in --base."),
    ] = None,
    languages: Languages = None,
    budget: Annotated[
        str, typer.Option(help="Largest size of one overlay, as a share of the base's bytes.", metavar="SHARE")
    ] = "5%",
    clusters: Annotated[
        int | None, typer.Option(help="Number of overlays; by default held-out text decides.", metavar="N", min=1)
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            help="What an overlay stores of a row: its residual, new codes, or new scales.",
            metavar="residual|codes|steps",
            autocompletion=completion.one_of(*completion.FORMS),
        ),
    ] = "residual",
    activations: Annotated[
        int | None,
        typer.Option(
            help="Also round the inputs of linear layers to this many bits, 2 to 8.", metavar="BITS", min=2, max=8
        ),
    ] = None,
    text: TextFrom = None,
    tokens: Tokens = 2048,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Make overlays: small sets of rows that replace rows of a quantized model for some languages.

    A language that gains nothing on held-out text stays with the base.

    Examples:
      fairbits overlay embedded:tiny --base tiny-w4 --budget 5%
      fairbits overlay ./model --base w4 --text texts --out overlays
      fairbits overlay ./model --base w4 --languages eng,fra,heb --clusters 2
    """
    from fairbits.api.overlay import overlay as run_overlay
    from fairbits.cli.languages_command import language_notes
    from fairbits.cli.overlay_table import overlay_table
    from fairbits.core.checks import one_of
    from fairbits.core.records import read_object
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.serve.overlays.overlay_files import MANIFEST  # heavy: only when the verb runs
    from fairbits.text.detect import undetectable_notes
    from fairbits.text.language_codes import language_from_code

    share, names = budget_of(budget), names_of(languages)
    one_of("--form", form, completion.FORMS)
    print_notes(language_notes(names or ()))
    below = Checkpoint(base, trust_remote_code=trust_remote_code)
    place = below.directory / "overlays" if out_directory is None else out_directory
    device = chosen_device(device)
    with stages("opening the model") as show:
        found = run_overlay(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            base=below,
            out=place,
            languages=names,
            text=text,
            budget=share,
            clusters=clusters,
            form=form,  # type: ignore[arg-type]
            activations=activations,
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            device=device,
            progress=show,
        )
    print_notes(undetectable_notes(map(language_from_code, found.languages)))
    if as_json:
        print_json(read_object(place / MANIFEST))
        return
    out.print(overlay_table(found))
    command = f"fairbits generate {quote(base)} --overlays {quote(str(place))}"
    out.print(Text(f"wrote {printable(str(place))}; next: {printable(command)}"), soft_wrap=True)
