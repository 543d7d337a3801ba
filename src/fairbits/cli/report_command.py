"""The command `report` on the command line."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion, options
from fairbits.cli.terminal import print_notes, print_written, stages
from fairbits.core.errors import InputError
from fairbits.core.files import write_files

HUB = "hub"
FORMS = ("html", "md", "json", HUB)
PLACES = {"html": "report.html", HUB: "model"}
"""Where a report of a run is written without --out: the page in its directory, files for the Hub with its model."""


def report(
    target: Annotated[Path, options.argument("The directory of a run, or a file of scores.", "DIR|SCORES.json")],
    against: Annotated[
        list[Path] | None,
        options.option("Scores to compare with; can be repeated. The headline compares with the first.", "FILE"),
    ] = None,
    audit: Annotated[Path | None, options.option("The file that fairbits audit --out wrote.", "FILE")] = None,
    plan: Annotated[Path | None, options.option("The plan.json of the quantized model.", "FILE")] = None,
    sweep: Annotated[Path | None, options.option("The file that fairbits sweep --out wrote.", "FILE")] = None,
    groups: options.LanguageGroups = None,
    form: Annotated[
        str | None,
        options.option(
            "html: a page; md: for a model card; json; hub: README.md, recipe.yaml and report.html for the Hub. "
            "By default the suffix of --out decides, else html.",
            "html|md|json|hub",
            completion.one_of(*FORMS),
            flag="--format",
        ),
    ] = None,
    out_file: Annotated[
        Path | None,
        options.out_option(
            "FILE",
            help="The file to write; for hub a directory, by default the model of the run. Without it md and json are "
            "printed.",
        ),
    ] = None,
    base_model: Annotated[
        str | None, options.option("hub: the id of the model before quantization.", "OWNER/NAME")
    ] = None,
    license: Annotated[
        str | None, options.option("hub: the licence; by default the licence in the files of the base model.", "ID")
    ] = None,
    repo: Annotated[str | None, options.option("hub: where you will upload the model.", "OWNER/NAME")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a report: a page, Markdown, JSON, or files for the Hub.

    Examples:
      fairbits report run
      fairbits report scores.json --against baseline.json --audit audit.json
      fairbits report run --format md >> README.md
      fairbits report run --format hub --base-model org/model
    """
    from fairbits.api.report import report as make_report
    from fairbits.reports.content import check_name, report_format

    named = {"base_model": base_model, "license": license, "repository": repo}
    chosen = _form(form, as_json) or ("html" if out_file is None else report_format(out_file))
    if chosen != HUB and any(value is not None for value in named.values()):
        raise InputError("--base-model, --license and --repo are for the Hub; add --format hub, or leave them out")
    if out_file is None and chosen in PLACES:
        out_file = (target if target.is_dir() else Path()) / PLACES[chosen]
    if chosen != HUB:
        if out_file is not None:
            check_name(out_file, chosen)
        options.check_out(out_file, f"report.{chosen}")  # before anything that takes time
    with stages("reading the measurements"):
        result = make_report(target, against=against or (), audit=audit, plan=plan, sweep=sweep, groups=groups)
        written = "" if chosen == HUB else result.render(chosen)
    if chosen == HUB and out_file is not None:
        facts = result.save_for_hub(out_file, **named)
        print_notes(facts.notes)
        upload = shlex.join(["hf", "upload", facts.repository, str(out_file)])
        print_written(line=f"wrote README.md and other files into {out_file}; upload it: {upload}")
        return
    if out_file is not None:
        write_files({out_file.resolve(): written.encode()})
    if out_file is None or as_json:
        typer.echo(written, nl=False)
    else:
        print_written(line=f"wrote {out_file}")


def _form(form: str | None, as_json: bool) -> str | None:
    if as_json and form not in (None, "json"):
        raise InputError(f"--json and --format {form!r:.20} contradict each other; give one of them")
    if form is not None and form not in FORMS:
        raise InputError(f"--format is {form!r:.40}; it must be html, md, json or hub")
    return "json" if as_json else form
