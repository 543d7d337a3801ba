"""The verb `gate` on the command line."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fairbits.cli.files import check_out, write_out
from fairbits.cli.options import Json, Measure, Unit
from fairbits.cli.terminal import out, print_json, print_notes, print_signature
from fairbits.errors import printable


def gate(
    scores: Annotated[Path, typer.Argument(help="The file that fairbits evaluate --out wrote.", metavar="SCORES.json")],
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
    """
    from fairbits.artifacts import write_files
    from fairbits.verbs.gate import gate as run_gate  # heavy: only when the verb runs
    from fairbits.verbs.verdict import junit

    check_out(junit_file, "gate.xml")
    verdict = run_gate(
        scores,
        max_worst=max_worst,
        max_mean=max_mean,
        max_gap=max_gap,
        measure=measure,
        unit=unit,
        against=against,
        max_worse=max_worse,
    )
    write_out(junit_file, lambda path: write_files({path.resolve(): junit(verdict)}))
    print_notes(verdict.notes)
    if as_json:
        print_json(verdict.as_data())
    else:
        out.print(Text(printable(verdict.reason)), soft_wrap=True)
        print_signature(verdict.signature)
    raise typer.Exit(verdict.exit_code)
