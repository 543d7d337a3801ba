"""The verb `report` on the command line."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fairbits.cli import completion
from fairbits.cli.files import check_out
from fairbits.cli.options import Json, out_option
from fairbits.cli.terminal import out, stages
from fairbits.errors import InputError, printable

PAGE = "report.html"
FORMS = ("html", "md", "json")


def report(
    target: Annotated[
        Path, typer.Argument(help="The directory of a run, or a file of scores.", metavar="DIR|SCORES.json")
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="Scores to compare with; may be repeated. The headline compares with the first.", metavar="FILE"
        ),
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="The file that fairbits audit --out wrote.", metavar="FILE")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan.json of the quantized model.", metavar="FILE")] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="The file that fairbits sweep --out wrote.", metavar="FILE")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="html: a page; md: for a model card; json. By default the suffix of --out decides, else html.",
            metavar="html|md|json",
            autocompletion=completion.one_of(*FORMS),
        ),
    ] = None,
    out_file: Annotated[
        Path | None, out_option("FILE", help="The file to write. Without it md and json are printed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Report the measurements: as an HTML page, as a section for a model card, or as JSON.

    Examples:
      fairbits report run
      fairbits report scores.json --against baseline.json --audit audit.json
      fairbits report run --format md >> README.md
    """
    from fairbits.artifacts import write_files  # heavy: only when the verb runs
    from fairbits.reports.content import check_name, format_of
    from fairbits.verbs.report import report as make_report

    chosen = _form(form, as_json) or ("html" if out_file is None else format_of(out_file))
    if out_file is None and chosen == "html":
        out_file = (target if target.is_dir() else Path()) / PAGE
    if out_file is not None:
        check_name(out_file, chosen)
    check_out(out_file, f"report.{chosen}")  # before anything that takes time
    with stages("reading the measurements"):
        found = make_report(target, against=against or (), audit=audit, plan=plan, sweep=sweep)
        written = found.render(chosen)
    if out_file is not None:
        write_files({out_file.resolve(): written.encode()})
    if out_file is None or as_json:
        typer.echo(written, nl=False)
    else:
        out.print(Text(printable(f"wrote {out_file}")), soft_wrap=True)


def _form(form: str | None, as_json: bool) -> str | None:
    """Returns the form that an option names; None if no option does."""
    if as_json and form not in (None, "json"):
        raise InputError(f"--json and --format {form!r:.20} contradict each other; give one of them")
    if form is not None and form not in FORMS:
        raise InputError(f"--format is {form!r:.40}; it must be html, md or json")
    return "json" if as_json else form
