"""The command `power` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import options
from fairbits.cli.terminal import print_json, print_line, print_notes, print_tables, stages


def power(
    scores: Annotated[
        Path,
        options.argument(
            "Scores of a small evaluation, in the same languages and on the same kind of text: what fairbits evaluate "
            "--tokens 2048 --out wrote.",
            "PILOT.json",
        ),
    ],
    max_changed: Annotated[
        float | None,
        options.option("The limit of the gate on how many of 100 tokens may change, in every language.", "N"),
    ] = None,
    max_worst: Annotated[
        float | None,
        options.option("Instead: the limit of the gate on the damage of the worst language, in bits per byte.", "X"),
    ] = None,
    expected: Annotated[
        float | None,
        options.option("What you expect of the worst language of a good release; by default half of the limit.", "X"),
    ] = None,
    tokens: Annotated[
        int | None, options.option("Only this many tokens per language; by default the smallest enough is found.", "N")
    ] = None,
    measure: options.Measure = "divergence",
    releases: Annotated[int, options.option("Simulated releases of each kind, at least 50.", "N")] = 400,
    seed: Annotated[int, options.option("Random seed of the simulation.", "N")] = 0,
    as_json: options.Json = False,
) -> None:
    """Say how much text per language decides a release, before you pay for it.

    Releases are simulated from the documents of a small evaluation, and each is judged as fairbits gate would. Enough
    text means: of releases at the limit, at most 5 % pass; of those at the expected value, at least 80 % pass.

    Examples:
      fairbits power pilot.json --max-changed 10
      fairbits power pilot.json --max-changed 10 --expected 7
      fairbits power pilot.json --max-changed 10 --tokens 8192
      fairbits power pilot.json --max-worst 0.02 --measure loss --json
    """
    from fairbits.api.power import power as run_power

    if max_changed is not None and 0 < max_changed < 1:
        print_notes([f"--max-changed {max_changed:g} is {max_changed:g} of 100 tokens, not {max_changed:.0%}"])
    with stages("reading scores") as show:
        answer = run_power(
            scores,
            progress=show,
            **options.pick(locals(), "max_changed max_worst expected tokens measure releases seed"),
        )
    if as_json:
        print_json(answer.as_data())
        return
    print_tables(answer.tables())
    if answer.enough:
        print_line(f"next: fairbits evaluate MODEL --reference BASE --tokens {answer.trials[-1].tokens}")
