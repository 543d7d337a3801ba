"""The verb `sweep` on the command line.

A sweep for a terminal of 80 columns: damage by language and width, critical widths, and the verdict.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.api.sweep import Sweep
from fairbits.cli import completion
from fairbits.cli.cluster import cluster_of, device_here, progress_of
from fairbits.cli.options import (
    Device,
    EvaluationTokens,
    Json,
    Languages,
    Measure,
    Model,
    PlanGroup,
    Ray,
    RayCpus,
    RayGpus,
    Results,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    Unit,
    check_out,
    out_option,
    write_out,
)
from fairbits.cli.parsing import names_of
from fairbits.cli.policy_options import values_of
from fairbits.cli.table_parts import columns, notes_section, section
from fairbits.cli.terminal import out, print_json, print_notes
from fairbits.core.checks import instance
from fairbits.core.errors import count_of, printable
from fairbits.core.units import MB, MEASURE_LABELS, UNIT_LABELS
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import parse_bits


def sweep(
    model: Model,
    bits: Annotated[str, typer.Option(help="Widths in bits, such as 2..8 or 8,4,3.", metavar="LIST")] = "2..8",
    policy: Annotated[
        str,
        typer.Option(
            help="The policy, with options after colons: gptq:mix=english.",
            metavar="NAME",
            autocompletion=completion.policy,
        ),
    ] = DEFAULT,
    group: PlanGroup = None,
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seed: Seed = 0,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Largest acceptable damage; by default 0.01 bits per byte, 0.03 nats per token.", metavar="X"
        ),
    ] = None,
    measure: Measure = "divergence",
    unit: Unit = "bits_per_byte",
    device: Device = "auto",
    out_file: Annotated[Path | None, out_option("SWEEP.json")] = None,
    results: Results = None,
    ray: Ray = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 1.0,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Measure the damage at several widths, and find the critical width of every language.

    Examples:
      fairbits sweep embedded:tiny --bits 2..8
      fairbits sweep ./model --policy rtn --text texts --threshold 0.02
    """
    cluster = cluster_of(ray, ray_cpus, ray_gpus)  # before anything that takes time
    from fairbits.api.sweep import sweep as run_sweep
    from fairbits.cli.languages_command import language_notes  # heavy: only when the verb runs
    from fairbits.models.checkpoint import Checkpoint

    check_out(out_file, "sweep.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(language_notes(names or ()))
    device = device_here(device, cluster)
    with progress_of(cluster, "opening the model") as (show, cluster):
        found = run_sweep(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            bits=parse_bits(bits, "--bits"),
            policy=policy,
            **values_of({"group": group}),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seed=seed,
            threshold=threshold,
            measure=measure,
            unit=unit,
            device=device,
            results=results,
            ray=cluster,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(sweep_table(found))


LEGEND = (
    "B*: critical width, below which the damage exceeds the threshold; log damage is interpolated linearly between "
    "widths, and 95 % intervals come from resampling documents. The intervals of the damage are in the JSON."
)


def sweep_table(found: Sweep) -> Group:
    """Returns the damage of every language at every width, the language that needs most bits first."""
    instance("found", found, Sweep)
    frame = next(iter(found.frames.values()))
    amounts = (count_of(len(frame.languages), "language"), count_of(len(frame.document), "document"))
    group = found.settings["group"]
    return Group(
        Text.assemble((printable(found.model), "bold cyan"), "  ", (f"{found.policy}, group {group}", "bold")),
        Text(printable(f"evaluation text of {found.settings['text']}: {', '.join(amounts)}"), style="dim"),
        "",
        Text(_title(found), style="bold"),
        _table(found),
        Text(LEGEND, style="dim"),
        *section("GateResult", (Text(printable(each)) for each in found.verdict)),
        *notes_section(found.all_notes),
    )


def _title(found: Sweep) -> str:
    measure, unit = MEASURE_LABELS[found.measure].capitalize(), UNIT_LABELS[found.unit]
    return f"{measure} in {unit} by bits per weight; B* for {found.threshold:g}"


def _table(found: Sweep) -> Table:
    table = columns("", *map(str, found.bits), "B*")
    for code in sorted(found.widths, key=lambda code: -found.widths[code].value):
        values = (each.value for each in found.curves[code].values())
        table.add_row(code, *_numbers(values), found.widths[code].text(found.bits))
    table.add_row("gap", *_numbers(each.value for each in found.gaps.values()), found.gap_width.text(found.bits))
    table.add_row("MB", *(f"{size / MB:.1f}" for size in found.sizes.values()), "", style="dim")
    return table


def _numbers(values: Iterable[float]) -> list[str]:
    """Returns damages in six or seven characters each.

    >>> _numbers([12.3456, 0.00312, -0.0001])
    ['12.35', '0.0031', '-0.0001']
    """
    return [f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}" for value in values]
