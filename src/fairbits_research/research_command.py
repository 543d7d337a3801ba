"""The command `research`: a list of all experiments with their results, or one experiment run and shown."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.cli import completion, compute
from fairbits.cli.options import (
    Device,
    EvaluationTokens,
    GroupOrChannel,
    Json,
    Languages,
    OutlierKappa,
    OutlierLayers,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    check_out,
    flag,
    out_option,
    parse_group,
    parse_layers,
    split_names,
    write_out,
)
from fairbits.cli.terminal import out, print_done, print_json, print_notes, stages
from fairbits.core.errors import InputError, printable
from fairbits.core.task_pool import Cluster, open_pool
from fairbits.quantization.policies.option import parse_numbers
from fairbits.text.language_codes import user_language
from fairbits.text.mix import parse_weights
from fairbits_research.experiments.result import EVERY, EXPERIMENTS, Answer, Result, ResultTable, cell_text
from fairbits_research.experiments.stored_results import MARKS, Records, all_records, as_markdown, overall_answer


def research(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An experiment, or all. Without a name: a list of the experiments and their results.",
            metavar="NAME",
            autocompletion=completion.one_of(*EXPERIMENTS, EVERY),
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
    groups: Annotated[
        str | None,
        typer.Option(
            help="resource-ratio: high- and low-resource languages, high=eng,fra;low=swh,yor, or a JSON file. Without "
            "it the languages are halved by --shares.",
            metavar="GROUPS",
        ),
    ] = None,
    outlier_layers: OutlierLayers = None,
    outlier_kappa: OutlierKappa = None,
    insert_outliers: Annotated[
        str | None,
        typer.Option(
            help="Give blocks this κ first, at the same function, such as 3:125,7:148 (BLOOM, Llama, Mistral, Qwen).",
            metavar="BLOCK:KAPPA",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("--k", help="gateway-layers: number of protected blocks in each set (default: 3).", metavar="N"),
    ] = None,
    sets: Annotated[
        str | None,
        typer.Option(help='gateway-layers: the sets of blocks to protect, such as "0,9,11;2,5,7".', metavar="SETS"),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="training-choices: the directory with the models of training/arms.py.", metavar="DIR"),
    ] = None,
    ray: compute.Ray = None,
    ray_cpus: compute.RayCpus = 1.0,
    ray_gpus: compute.RayGpus = 1.0,
    resume: Annotated[bool, flag("--resume", help="all: skip experiments whose result is in --out.")] = False,
    out_file: Annotated[
        Path | None, out_option("PATH", help="The file to write; for all experiments, an existing directory.")
    ] = None,
    markdown: Annotated[bool, flag("--markdown", help="Print the page docs/research/experiments.md.")] = False,
    as_json: Json = False,
) -> None:
    """Test a prediction of the research notes fairbits began with.

    It shows the question, tables with intervals, and the verdict.

    Examples:
      fairbits research
      fairbits research null-controls
      fairbits research correlations --model ./model --outlier-layers 5,21,22
      fairbits research outliers --model ./model --text texts --device cpu
    """
    cluster = compute.open_cluster(ray, ray_cpus, ray_gpus)  # before anything that takes time
    if markdown and (name is not None or out_file is not None):
        raise InputError("--markdown prints the results that fairbits brings; it takes no experiment and no --out")
    if markdown:
        typer.echo(as_markdown(EXPERIMENTS, all_records()), nl=False)
        return
    if name is None:
        out.print(experiment_list(EXPERIMENTS, all_records()))
        return

    from fairbits_research.experiments.all_experiments import experiments_named, finished_before

    names = experiments_named(name)
    places = (
        [None if out_file is None else out_file / f"{experiment}.json" for experiment in names]
        if name == EVERY
        else [out_file]
    )
    for place in places:
        check_out(place, "result.json")
    setting = {
        "model": model,
        "text": text,
        "languages": split_names(languages),
        "tokens": evaluation_tokens,
        "calibration": tokens,
        "sequence": sequence,
        "group": parse_group(group),
        "seed": seed,
        "device": compute.device_here(device, cluster),
        "shares": _parse_shares(shares),
        "groups": groups,
        "outlier_layers": parse_layers(outlier_layers),
        "outlier_kappa": outlier_kappa,
        "insert_outliers": parse_insertion(insert_outliers),
        "kept": k,
        "sets": parse_sets(sets),
    }
    left = dict(zip(names, places, strict=True))
    if resume:
        if name != EVERY or out_file is None:
            raise InputError("--resume continues `research all --out DIR`; give both, or leave it out")
        for experiment, place in list(left.items()):
            if place is not None and finished_before(experiment, place, setting | {"device": "cpu"}) is not None:
                print_notes([f"{place} already exists"])
                del left[experiment]
    _run(left, setting, models, cluster, as_json=as_json)


def _parse_shares(text: str | None) -> dict[str, float] | None:
    """Returns the share of each language, by its code.

    >>> _parse_shares("eng=0.4,fra=0.2")
    {'eng_Latn': 0.4, 'fra_Latn': 0.2}
    """
    if text is None:
        return None
    weights = parse_weights(text)
    if isinstance(weights, str) or not all(share > 0 for share in weights.values()):
        raise InputError(f"--shares is {text!r:.60}; it must be a positive number per language: eng=0.4,fra=0.2")
    return {user_language(name).code: share for name, share in weights.items()}


def parse_insertion(text: str | None) -> dict[int, float] | None:
    """Returns the κ that each block gets.

    >>> parse_insertion("3:125,7:148")
    {3: 125.0, 7: 148.0}
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d+:\d+(\.\d+)?(,\d+:\d+(\.\d+)?)*", text):
        raise InputError(f"--insert-outliers is {text!r:.40}; it must be BLOCK:KAPPA, such as 3:125,7:148")
    return {int(block): float(kappa) for block, kappa in (pair.split(":") for pair in text.split(","))}


def parse_sets(text: str | None) -> list[list[int]] | None:
    """Returns sets of blocks.

    >>> parse_sets("0,9,11;2,5,7")
    [[0, 9, 11], [2, 5, 7]]
    """
    if text is None:
        return None
    form = 'sets of blocks such as "0,9,11;2,5,7"'
    return [parse_numbers(part, "--sets", form) for part in text.split(";")]


def _run(
    places: Mapping[str, Path | None],
    setting: dict[str, Any],
    models: Path | None,
    cluster: Cluster | None,
    *,
    as_json: bool,
) -> None:
    """Runs experiments, and writes and prints each result as soon as it is there."""
    from fairbits.api.trial_tasks import task_device
    from fairbits_research.experiments.all_experiments import ExperimentWork, run_experiments

    results: dict[str, Result] = {}

    def show(name: str) -> None:
        if as_json:
            print_json(results[name].as_data())
        else:
            out.print(result_panel(results[name]))

    def keep(name: str, result: Result) -> None:
        write_out(places[name], result.save)
        results[name] = result

    work = ExperimentWork(setting, models)
    if cluster is None:
        for name in places:  # one at a time, as a bar and a table cannot be on a terminal together
            start = perf_counter()
            with stages("reading text and model") as progress, open_pool(None) as pool:
                run_experiments([name], work, pool=pool, on_result=keep, progress=progress)
            print_done(name, perf_counter() - start)
            show(name)
        return
    with compute.show_progress(cluster, "") as (_, watched), open_pool(watched) as pool:
        work = ExperimentWork(setting | {"device": task_device(setting["device"], pool)}, models)
        run_experiments(list(places), work, pool=pool, on_result=keep)
    for name in places:
        show(name)


STYLES = {Answer.SUPPORTED: "green", Answer.NOT_SUPPORTED: "red", Answer.UNDECIDED: "cyan"}


def experiment_list(experiments: Mapping[str, str], records: Records) -> Group:
    """Returns the question of each experiment (name -> question), and its answer so far."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("experiment", "question", "found"):
        table.add_column(column)
    for name, question in experiments.items():
        verdict = Text("not run yet", style="dim")
        if name in records:
            answer = overall_answer(records[name])
            verdict = Text(f"{MARKS[answer]} {answer.value}", style=STYLES[answer])
        table.add_row(name, question, verdict)
    return Group(table, Text("\nfairbits research NAME runs one; fairbits research all runs all", style="dim"))


def result_panel(result: Result) -> Group:
    """Returns one result: question, prediction, tables, verdict, what it means."""
    subject = result.subject
    tested_on = (
        f"{subject.model}, {subject.text}: {subject.languages} languages, {subject.documents:,} documents, "
        f"{subject.tokens:,} tokens, seeds {', '.join(map(str, subject.seeds))}; intervals 95 %"
    )
    verdict = f"\n{MARKS[result.answer]} {result.answer.value}: {result.verdict}"
    parts: list[RenderableType] = [
        Text(result.question, style="bold"),
        Text(f"predicted: {result.predicted}"),
        Text(f"design: {result.design}", style="dim"),
        Text(printable(tested_on), style="dim"),
        *(part for table in result.tables for shown in _tables(table) for part in (Text(), shown)),
        Text(verdict, style=STYLES[result.answer]),
        Text(result.meaning),
    ]
    parts += [Text(line, style="dim") for line in (result.power, *result.notes) if line]
    return Group(*parts)


NARROW, LONGEST = 10, 30
"""Characters: headers are broken at NARROW or more; cells beyond LONGEST are sentences and may be broken."""


def _tables(table: ResultTable) -> list[Table]:
    """Returns a table, or several where one would be wider than the terminal; each has the columns that name its rows.

    An interval stays in one line, and its header is as narrow; words may be broken.
    """
    cells = [list(map(cell_text, column)) for column in zip(*table.rows, strict=True)] or [[] for _ in table.columns]
    longest = [max(map(len, column), default=0) for column in cells]
    words = [
        i == 0 or longest[i] > LONGEST or all(cell[:1].isalpha() for cell in column) for i, column in enumerate(cells)
    ]
    width = [
        max([min(longest[i], LONGEST), *map(len, name.split())]) if words[i] else max(longest[i], NARROW)
        for i, name in enumerate(table.columns)
    ]
    prefixes = range(1, len(table.columns))
    named = next((n for n in prefixes if len({row[:n] for row in table.rows}) == len(table.rows)), 1)
    parts: list[list[int]] = [[*range(named)]]
    for i in range(named, len(width)):
        if len(parts[-1]) > named and sum(width[j] + 2 for j in (*parts[-1], i)) > out.width:
            parts.append([*range(named)])
        parts[-1].append(i)
    shown = []
    for part in parts:
        shown.append(Table(box=None, pad_edge=False, header_style="bold", title=table.title, title_justify="left"))
        for i in part:
            if words[i]:
                shown[-1].add_column(table.columns[i], overflow="fold")
            else:
                header = fill(table.columns[i], width[i], break_on_hyphens=False)
                shown[-1].add_column(header, justify="right", no_wrap=True)
        for row in zip(*(cells[i] for i in part), strict=True):
            shown[-1].add_row(*row)
    return shown
