"""The verb `research` on the command line."""

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.files import check_out, write_out
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
    flag,
    out_option,
)
from fairbits.cli.parsing import group_of, names_of, shares_of
from fairbits.cli.terminal import chosen_device, out, print_done, print_json, stages
from fairbits.errors import InputError

EVERY = "all"


def research(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An experiment, or all. Without a name: a list of the experiments and their results.",
            metavar="NAME",
            autocompletion=completion.one_of(*completion.EXPERIMENTS, EVERY),
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="A directory, a model id on the Hub, or embedded:tiny.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ] = "embedded:tiny",
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 2048,
    evaluation_tokens: EvaluationTokens = 2048,
    sequence: Sequence = 512,
    group: GroupOrChannel = "channel",
    seed: Seed = 0,
    device: Device = "auto",
    shares: Annotated[
        str | None,
        typer.Option(help="Shares of the languages in the training data: eng=0.4,fra=0.2.", metavar="SHARES"),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="training-choices: the directory with the models of training/arms.py.", metavar="DIR"),
    ] = None,
    out_file: Annotated[
        Path | None,
        out_option("PATH", help="The file to write; for all experiments, an existing directory."),
    ] = None,
    markdown: Annotated[bool, flag("--markdown", help="Print the page docs/results.md.")] = False,
    as_json: Json = False,
) -> None:
    """Test a prediction of the founding documents on a model: question, tables with intervals, verdict.

    Examples:
      fairbits research
      fairbits research null-controls
      fairbits research outliers --model ./model --text texts --device cpu
    """
    from fairbits.cli.tables.research import experiment_list, result_panel  # heavy: only when the verb runs
    from fairbits.science.experiments import EXPERIMENTS, Laboratory, Setting, experiments_named, run_experiment
    from fairbits.science.experiments.stored_results import all_records, as_markdown

    if markdown and (name is not None or out_file is not None):
        raise InputError("--markdown prints the results that fairbits brings; it takes no experiment and no --out")
    if markdown:
        typer.echo(as_markdown(EXPERIMENTS, all_records()), nl=False)
        return
    if name is None:
        out.print(experiment_list(EXPERIMENTS, all_records()))
        return
    names = experiments_named(name)
    places = (
        [None if out_file is None else out_file / f"{each}.json" for each in names] if name == EVERY else [out_file]
    )
    for place in places:
        check_out(place, "result.json")  # before anything that takes time
    device = chosen_device(device)
    setting = Setting(
        model=model,
        text=text,
        languages=names_of(languages),
        tokens=evaluation_tokens,
        calibration=tokens,
        sequence=sequence,
        group=group_of(group),
        seed=seed,
        device=device,
        shares=shares_of(shares),
    )
    laboratory = Laboratory(setting)
    for each, place in zip(names, places, strict=True):
        start = perf_counter()
        with stages("reading text and model") as laboratory.progress:
            result = run_experiment(each, laboratory, models=models)
        write_out(place, result.save)
        print_done(each, perf_counter() - start)
        if as_json:
            print_json(result.as_data())
        else:
            out.print(result_panel(result))
