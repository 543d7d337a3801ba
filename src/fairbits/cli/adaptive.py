"""Verbs of adaptive models: overlay, generate."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

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
    names_of,
)
from fairbits.cli.terminal import err, out, print_json, print_notes, stages
from fairbits.errors import InputError, printable


def overlay(
    model: Model,
    base: Annotated[
        str,
        typer.Option(help="What fairbits quantize made of MODEL.", metavar="DIR", autocompletion=completion.model),
    ],
    out_directory: Annotated[
        Path | None,
        typer.Option("--out", help="The directory to write; overlays in --base if not given.", metavar="DIR"),
    ] = None,
    languages: Languages = None,
    budget: Annotated[
        str, typer.Option(help="The share of the base's bytes that one overlay may take.", metavar="SHARE")
    ] = "5%",
    clusters: Annotated[
        int | None, typer.Option(help="How many overlays; else text kept apart decides.", min=1)
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            help="What is stored of a row: what it lacks, the row anew, or its steps.",
            metavar="residual|codes|steps",
            autocompletion=completion.one_of(*completion.FORMS),
        ),
    ] = "residual",
    activations: Annotated[
        int | None,
        typer.Option(help="Round the inputs of linear maps too, to so many bits.", metavar="BITS", min=2, max=8),
    ] = None,
    text: TextFrom = None,
    tokens: Tokens = 2048,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Make small sets of rows that suit some languages better, to lie over a quantized base.

    A language that gains nothing on text kept apart stays with the base.

    Examples:
      fairbits overlay embedded:tiny --base tiny-w4 --budget 5%
      fairbits overlay ./model --base w4 --text texts --out overlays
      fairbits overlay ./model --base w4 --languages eng,fra,heb --clusters 2
    """
    from fairbits.checks import one_of
    from fairbits.cli.tables.languages import taken
    from fairbits.cli.tables.overlay import overlay_table
    from fairbits.model import Checkpoint
    from fairbits.overlays.files import MANIFEST  # heavy: only when the verb runs
    from fairbits.records import read_object
    from fairbits.verbs.overlay import overlay as overlaid

    share, named = share_of(budget), names_of(languages)
    one_of("--form", form, completion.FORMS)
    print_notes(taken(named or ()))
    below = Checkpoint(base, trust_remote_code=trust_remote_code)
    place = below.directory / "overlays" if out_directory is None else out_directory
    with stages("opening the model") as show:
        found = overlaid(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            base=below,
            out=place,
            languages=named,
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
    if as_json:
        print_json(read_object(place / MANIFEST))
        return
    out.print(overlay_table(found))
    command = f"fairbits generate {quote(base)} --overlays {quote(str(place))}"
    out.print(Text(f"wrote {printable(str(place))}; next: {printable(command)}"), soft_wrap=True)


def share_of(given: str) -> float:
    """Returns a share that is written in percent or as a number up to 1.

    >>> share_of("5%"), share_of("0.05")
    (0.05, 0.05)
    """
    written = given.strip()
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise InputError(f"--budget is {given!r:.40}; it must be a share of the base from 0 to 1: 5%, or 0.05")
    return share


def generate(
    base: Annotated[
        str,
        typer.Argument(
            help="The quantized model: a directory, or an id on the Hub.",
            metavar="BASE",
            autocompletion=completion.model,
        ),
    ],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to continue; else the lines of stdin.", metavar="[PROMPT]..."),
    ] = None,
    overlays: Annotated[
        Path | None, typer.Option(help="The overlays of the base; else it serves all languages.", metavar="DIR")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            help="Language of all prompts; else each is detected.",
            metavar="CODE",
            autocompletion=completion.language,
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each prompt, at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token; 1: as the model has it.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that have this share.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Decides what is drawn; the same text for the same seed.")] = 0,
    confidence: Annotated[float, typer.Option(help="A language less likely than this has the base.")] = 0.5,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Continue text with a quantized model that takes the weights of the language it is in.

    The language and the overlay that served it are printed on stderr.

    Examples:
      fairbits generate ./w4 "All human beings" --overlays ./overlays
      fairbits generate ./w4 --overlays ./overlays --json < prompts.txt
      fairbits generate ./w4 "Tous les" --overlays ./overlays --language fr
    """
    from fairbits.checks import in_range
    from fairbits.model import Checkpoint
    from fairbits.overlays.model import AdaptiveModel  # heavy: only when the verb runs

    in_range("--temperature", temperature, least=0.0)  # 0 is none of transformers
    in_range("--top-p", top_p, above=0.0, most=1.0)
    texts = prompts or _lines_of_stdin()
    drawn: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0, "seed": seed}
    with stages("loading the model") as show:
        model = AdaptiveModel(
            Checkpoint(base, trust_remote_code=trust_remote_code, revision=revision),
            overlays,
            confidence=confidence,
            device=device,
        )
        found = model.generate(
            texts,
            language=language,
            max_new_tokens=max_tokens,
            progress=show,
            **(drawn if temperature else {"do_sample": False}),
        )
    if as_json:
        print_json([{"prompt": text, **each.as_data()} for text, each in zip(texts, found, strict=True)])
        return
    for each in found:
        choice = each.choice
        sure = "" if choice.confidence is None else f" {choice.confidence:.2f}"
        tokens = f"{each.completion_tokens} tokens ({each.finish_reason})"
        print_notes([f"{choice.language or 'no language'}, {choice.reason}{sure}, by {choice.overlay}: {tokens}"])
        typer.echo("\n".join(map(printable, each.text.split("\n"))))


def _lines_of_stdin() -> list[str]:
    """Returns the lines that hold something."""
    stream = typer.get_binary_stream("stdin")
    if stream.isatty() and not err.quiet:
        print_notes(["one prompt per line; Ctrl-D ends"])
    try:
        text = stream.read().decode()
    except UnicodeDecodeError as problem:
        raise InputError(f"stdin is no UTF-8 ({problem.reason} at byte {problem.start:,}); convert it") from None
    found = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not found:
        raise InputError('there is no prompt; give one: fairbits generate BASE "All human beings", or lines on stdin')
    return found
