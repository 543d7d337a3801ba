"""The verb that tests the predictions of the founding documents: research."""

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import (
    Device,
    EvaluationTokens,
    GroupOrChannel,
    Json,
    Languages,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    check_out,
    flag,
    group_of,
    names_of,
    shares_of,
    write_out,
)
from fairbits.cli.terminal import done, out, print_json, stages
from fairbits.errors import InputError

EVERY = "all"


def research(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An experiment, or all; without one, what each asks and has found.",
            metavar="[NAME]",
            autocompletion=completion.one_of(*completion.EXPERIMENTS, EVERY),
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A directory, an id on the Hub, or embedded:tiny.", autocompletion=completion.model)
    ] = "embedded:tiny",
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 2048,
    evaluation_tokens: EvaluationTokens = 2048,
    sequence: Sequence = 512,
    group: GroupOrChannel = "channel",
    seed: Seed = 0,
    device: Device = "cpu",
    shares: Annotated[
        str | None,
        typer.Option(help="Shares of languages in the training text: eng=0.4,fra=0.2.", metavar="SHARES"),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="training-choices: where the models of training/arms.py lie.", metavar="DIR"),
    ] = None,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write the result; for all, a directory that exists.", metavar="PATH"),
    ] = None,
    markdown: Annotated[bool, flag("--markdown", help="Print the page docs/results.md.")] = False,
    as_json: Json = False,
) -> None:
    """Test a prediction of the founding documents on a model: question, tables with intervals, verdict.

    Examples:
      fairbits research
      fairbits research null-controls
      fairbits research outliers --model ./model --text texts --device cuda
    """
    from fairbits.science.experiments import (  # heavy: only when the verb runs
        EXPERIMENTS,
        Laboratory,
        Setting,
        conduct,
        named,
    )
    from fairbits.science.experiments.page import as_markdown
    from fairbits.science.experiments.records import all_records
    from fairbits.science.experiments.render import as_list, as_panel

    if markdown and (name is not None or out_file is not None):
        raise InputError("--markdown prints what was found before; it takes no experiment and no --out")
    if markdown:
        typer.echo(as_markdown(EXPERIMENTS, all_records()), nl=False)
        return
    if name is None:
        out.print(as_list(EXPERIMENTS, all_records()))
        return
    names = named(name)
    places = (
        [None if out_file is None else out_file / f"{each}.json" for each in names] if name == EVERY else [out_file]
    )
    for place in places:
        check_out(place, "result.json")  # before anything that takes time
    setting = Setting(
        model=model,
        text=text,
        languages=names_of(languages),
        tokens=evaluation_tokens,
        calibration=tokens,
        sequence=sequence,
        group=group_of(group) or "channel",
        seed=seed,
        device=device,
        shares=shares_of(shares),
    )
    laboratory = Laboratory(setting)
    for each, place in zip(names, places, strict=True):
        start = perf_counter()
        with stages("reading text and model") as laboratory.progress:
            result = conduct(each, laboratory, models=models)
        write_out(place, result.save)
        done(each, perf_counter() - start)
        if as_json:
            print_json(result.as_data())
        else:
            out.print(as_panel(result))
