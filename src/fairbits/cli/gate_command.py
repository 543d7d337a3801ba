"""The verb `gate` on the command line."""

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from fairbits.cli.options import Json, Measure, Unit, check_out, write_out
from fairbits.cli.parsing import languages_by_task
from fairbits.cli.terminal import out, print_json, print_notes, print_signature
from fairbits.core.errors import InputError, printable


def gate(
    scores: Annotated[
        Path | None,
        typer.Argument(help="The file that fairbits evaluate --out wrote; not with --samples.", metavar="SCORES.json"),
    ] = None,
    samples: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="In place of scores: the directories of two runs of lm_eval --log_samples, before and after.",
            metavar="BEFORE AFTER",
        ),
    ] = None,
    max_worst: Annotated[
        float | None, typer.Option(help="Limit on the damage of the worst language.", metavar="X")
    ] = None,
    max_mean: Annotated[
        float | None, typer.Option(help="Limit on the mean damage of the languages.", metavar="X")
    ] = None,
    max_gap: Annotated[
        float | None, typer.Option(help="Limit on the gap between the worst and the best language.", metavar="X")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Scores of a baseline. No language may be significantly worse.", metavar="BASELINE.json"),
    ] = None,
    max_worse: Annotated[
        float | None, typer.Option(help="Limit on how much worse than --against a language may be.", metavar="X")
    ] = None,
    measure: Measure = "divergence",
    unit: Unit = "bits_per_byte",
    metric: Annotated[
        str | None,
        typer.Option(
            help="With --samples: the metric of the tasks; by default acc, else exact_match, else bits_per_byte.",
            metavar="NAME",
        ),
    ] = None,
    filter_name: Annotated[
        str | None,
        typer.Option("--filter", help="With --samples: the filter of answers, if tasks have several.", metavar="NAME"),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="With --samples: only these tasks, such as 'belebele_*'.", metavar="PATTERN")
    ] = None,
    language_of: Annotated[
        list[str] | None,
        typer.Option(
            help="With --samples: the language of tasks whose names do not tell: xwinograd_jp=jpn. Can be repeated.",
            metavar="TASK=LANG",
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="The JUnit XML file to write, for a CI system.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a release: exit code 0 if every limit is certainly met, 1 if one is exceeded or the text cannot decide.

    Examples:
      fairbits gate scores.json --max-worst 0.02 --max-gap 0.01
      fairbits gate scores.json --against baseline.json --max-worse 0.005
      fairbits gate scores.json --max-mean 0.01 --junit gate.xml --json
      fairbits gate --samples before after --max-worst 0.02
    """
    from fairbits.core.files import write_files
    from fairbits.evaluation.gate import gate as run_gate  # heavy: only when the verb runs
    from fairbits.evaluation.gate import junit

    check_out(junit_file, "gate.xml")
    limits = {"max_worst": max_worst, "max_mean": max_mean, "max_gap": max_gap}
    of_samples = {"--metric": metric, "--filter": filter_name, "--tasks": tasks, "--language-of": language_of}
    of_scores = {
        "--against": against,
        "--max-worse": max_worse,
        "--measure": measure != "divergence" and measure,
        "--unit": unit != "bits_per_byte" and unit,
    }
    if samples is not None:
        _refuse(of_scores | {"SCORES.json": scores}, "cannot be given with --samples, which reads runs of lm-eval")
        _gate_samples(*samples, junit_file=junit_file, as_json=as_json, options=of_samples, limits=limits)
    _refuse(of_samples, "needs --samples BEFORE AFTER")
    if scores is None:
        raise InputError("SCORES.json is missing; give the file that fairbits evaluate --out wrote, or --samples")
    verdict = run_gate(scores, measure=measure, unit=unit, against=against, max_worse=max_worse, **limits)
    write_out(junit_file, lambda path: write_files({path.resolve(): junit(verdict)}))
    print_notes(verdict.notes)
    if as_json:
        print_json(verdict.as_data())
    else:
        out.print(Text(printable(verdict.reason)), soft_wrap=True)
        print_signature(verdict.signature)
    raise typer.Exit(verdict.exit_code)


def _refuse(options: dict[str, Any], why: str) -> None:
    """Raises if one of the options is given."""
    for name, value in options.items():
        if value:
            raise InputError(f"{name} {why}")


def _gate_samples(
    before: Path,
    after: Path,
    *,
    junit_file: Path | None,
    as_json: bool,
    options: dict[str, Any],
    limits: dict[str, float | None],
) -> NoReturn:
    """Gates two runs of lm-eval, and ends the command."""
    # before numpy is loaded; the matrices are small, and threads that wait for each other take longer than they save
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from fairbits.cli.samples_table import samples_table
    from fairbits.core.files import write_files
    from fairbits.evaluation.gate import junit
    from fairbits.evaluation.lm_eval.gate_samples import gate_samples  # heavy: only when the verb runs

    found = gate_samples(
        before,
        after,
        metric=options["--metric"],
        filter_name=options["--filter"],
        tasks=options["--tasks"],
        language_of=languages_by_task(options["--language-of"] or ()),
        **limits,
    )
    write_out(junit_file, lambda path: write_files({path.resolve(): junit(found.verdict)}))
    print_notes(found.verdict.notes)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(samples_table(found))
        out.print(Text(printable(found.verdict.reason)), soft_wrap=True)
    raise typer.Exit(found.verdict.exit_code)
