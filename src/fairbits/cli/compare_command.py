"""The verb `compare` on the command line.

A comparison for a terminal of 80 columns: one table per width, then the differences from the baseline.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.cli import completion
from fairbits.cli.cluster import cluster_of, device_here, progress_of
from fairbits.cli.options import (
    Device,
    Embeddings,
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
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    Unit,
    check_out,
    out_option,
    write_out,
)
from fairbits.cli.parsing import names_of, seeds_of
from fairbits.cli.policy_options import values_of
from fairbits.cli.table_parts import columns, formatter, notes_section, section, unit_of
from fairbits.cli.terminal import out, print_json, print_notes
from fairbits.comparison.comparison import Comparison, PolicyContrast, PolicyEntry
from fairbits.core.checks import instance
from fairbits.core.errors import count_of, printable
from fairbits.core.units import MB, MEASURE_LABELS, UNIT_LABELS
from fairbits.quantization.policies.option import widths_of
from fairbits.stats.intervals import Estimate


def compare(
    model: Model,
    policies: Annotated[
        str,
        typer.Option(
            help="Policies, with options after colons: rtn,gptq:mix=english.",
            metavar="LIST",
            autocompletion=completion.policies,
        ),
    ],
    bits: Annotated[str, typer.Option(help="Widths in bits, such as 4,3 or 2..8.", metavar="LIST")] = "4",
    group: PlanGroup = None,
    embeddings: Embeddings = None,
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seeds: Annotated[
        str, typer.Option(help="Seeds, such as 0,1,2. Each samples its own calibration text.", metavar="LIST")
    ] = "0",
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The policy that the others are compared with; by default the first.",
            metavar="POLICY",
            autocompletion=completion.policy,
        ),
    ] = None,
    measure: Measure = "divergence",
    unit: Unit = "bits_per_byte",
    device: Device = "auto",
    out_file: Annotated[Path | None, out_option("COMPARE.json")] = None,
    results: Results = None,
    ray: Ray = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 1.0,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare policies on one model and the same text: damage, gap between languages, size, significant differences.

    Examples:
      fairbits compare embedded:tiny --policies rtn,mse,gptq --bits 4,3
      fairbits compare ./model --policies gptq,gptq:mix=english --text texts
      fairbits compare ./model --policies rtn,gptq --text texts --ray local
    """
    cluster = cluster_of(ray, ray_cpus, ray_gpus)  # before anything that takes time
    from fairbits.api.compare import compare as run_compare
    from fairbits.cli.languages_command import language_notes  # heavy: only when the verb runs
    from fairbits.models.checkpoint import Checkpoint

    check_out(out_file, "compare.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(language_notes(names or ()))
    device = device_here(device, cluster)
    with progress_of(cluster, "opening the model") as (show, cluster):
        found = run_compare(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            policies=[each.strip() for each in policies.split(",")],
            bits=widths_of(bits, "--bits"),
            **values_of({"group": group, "embeddings": embeddings}),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seeds=seeds_of(seeds),
            baseline=baseline,
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
        out.print(compare_table(found))


LEGEND = (
    "worst, best: the most and the least damaged language, corrected for selection; gap: their difference; intervals "
    "of 95 % over documents. s: seconds of rounding."
)
PAIRED = (
    "Paired by document. p: test of no difference in the mean, Holm-corrected over all contrasts of this table. +/−: "
    "number of languages with significantly less and more damage, Holm-corrected over the languages of a contrast."
)
SEEDS = (
    "Numbers are means over these seeds; intervals and p do not extend to other seeds. Below them: the least and the "
    "largest over the seeds."
)


def compare_table(found: Comparison) -> Group:
    """Returns one table per width, the differences from the baseline, and the notes."""
    instance("found", found, Comparison)
    widths = list(dict.fromkeys(entry.bits for entry in found.entries))
    parts: list[RenderableType] = [*_heading(found)]
    for bits in widths:
        entries = [entry for entry in found.entries if entry.bits == bits]
        parts += ["", Text(f"{bits} bits", style="bold"), _table(found, entries)]
    parts += ["", Text(LEGEND, style="dim")]
    if len(found.entries[0].frames) > 1:
        parts.append(Text(SEEDS, style="dim"))
    title = f"{MEASURE_LABELS[found.measure].capitalize()} minus that of {found.baseline}"
    parts += section(title, _contrasts(found) if found.contrasts else ())
    if found.contrasts:
        parts.append(Text(PAIRED, style="dim"))
    parts += notes_section(_notes(found))
    return Group(*parts)


def _heading(found: Comparison) -> list[Text]:
    settings, frame = found.settings, found.entries[0].frame
    amounts = (count_of(_languages(found), "language"), count_of(len(frame.document), "document"))
    about = f"group {settings['group']}, {MEASURE_LABELS[found.measure]}"
    return [
        Text.assemble((printable(found.model), "bold cyan"), "  ", (about, "bold")),
        Text(printable(f"evaluation text of {settings['text']}: {', '.join(amounts)}"), style="dim"),
    ]


def _table(found: Comparison, entries: list[PolicyEntry]) -> Table:
    """Returns one row per policy, and below it the ranges over several seeds."""
    seeds = len(found.entries[0].frames) > 1
    top = max(entry.statistics["worst"].value for entry in entries)
    factor, prefix = unit_of(top)
    number = formatter(factor * top, 3 if seeds else 4)
    table = columns("policy", "MB", f"worst, {prefix}{UNIT_LABELS[found.unit]}", "mean", "gap", "best", "s", left=(2,))
    base = next(entry.size_bytes for entry in entries if entry.policy == found.baseline)
    for entry in entries:
        worst, mean, gap, best = (entry.statistics[name] for name in ("worst", "mean", "gap", "best"))
        code = entry.frame.worst()[0]
        interval = _estimate(worst, factor, number)
        table.add_row(
            Text(printable(entry.policy)),
            f"{entry.size_bytes / MB:.2f}{'' if entry.size_bytes == base else '≠'}",
            interval if seeds else f"{interval} {code}",
            *(number(each.value * factor) for each in (mean, gap, best)),
            f"{sum(entry.seconds):.0f}",
        )
        if seeds:
            ranges = ["–".join(number(end * factor) for end in entry.ranges[name]) for name in ("worst", "mean", "gap")]
            table.add_row("", "", f"{ranges[0]} {code}", *ranges[1:], style="dim")
    return table


def _estimate(found: Estimate, factor: float, number: Callable[[float], str]) -> str:
    """Returns a number and its interval; a dash if it has none."""
    limits = f"{number(found.low * factor)} {number(found.high * factor)}" if found.bounded else "–"
    return f"{number(found.value * factor)} ({limits})"


def _contrasts(found: Comparison) -> Iterator[RenderableType]:
    """Yields a table of differences, and the languages that are significantly worse."""
    factor, prefix = unit_of(
        max(abs(value) for each in found.contrasts for value in (each.mean.value, each.worst.value))
    )
    number = formatter(factor * max(abs(each.mean.value) for each in found.contrasts), 3)
    unit = f"{prefix}{UNIT_LABELS[found.unit]}"
    table = columns("policy", "bits", f"mean, {unit}", "worst", "p", "+/−", left=(2, 3))
    for each in found.contrasts:
        table.add_row(
            Text(printable(each.policy)),
            str(each.bits),
            *(_estimate(one, factor, number) for one in (each.mean, each.worst)),
            "<0.001" if each.p_holm < 0.001 else f"{each.p_holm:.3f}",
            f"{len(each.better)}/{len(each.worse)}",
        )
    yield table
    if not all(one.bounded for each in found.contrasts for one in (each.mean, each.worst)):
        yield Text("–: no interval can be formed, because there are too few documents that differ.", style="dim")
    for each in found.contrasts:
        if each.worse:
            yield Text(
                printable(f"{each.policy} at {each.bits} bits is significantly worse for {', '.join(each.worse)}")
            )


def _notes(found: Comparison) -> list[str]:
    """Returns every note once: different sizes, then model and text, then policies and fall-backs."""
    by_note: dict[str, dict[str, None]] = {}
    for entry in found.entries:
        for note in entry.notes:
            if note not in found.notes:
                by_note.setdefault(note, {})[entry.policy] = None
    own = (f"{', '.join(policies)}: {note}" for note, policies in by_note.items())
    layers = (
        f"{entry.policy} at {entry.bits} bits: {count_of(len(entry.fallbacks), 'fall-back')}, "
        f"such as {entry.fallbacks[0]}"
        for entry in found.entries
        if entry.fallbacks
    )
    return list(dict.fromkeys([*map(_size_note, _unequal(found)), *found.notes, *own, *layers]))


def _unequal(found: Comparison) -> Iterator[PolicyContrast]:
    return (each for each in found.contrasts if each.size_ratio != 1)


def _size_note(each: PolicyContrast) -> str:
    share, what = abs(each.size_ratio - 1), "more" if each.size_ratio > 1 else "fewer"
    return f"≠ {each.policy} takes {share:.2%} {what} bytes than {each.against} at {each.bits} bits"


def _languages(found: Comparison) -> int:
    return len(found.entries[0].frame.languages)
