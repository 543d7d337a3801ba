"""The command `overlay` on the command line."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.terminal import print_json, print_notes, print_written, stages
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError, count_of
from fairbits.core.files import check_directory
from fairbits.core.records import read_object
from fairbits.core.table import Cell, NumberFormat, Table, dim
from fairbits.core.units import megabytes
from fairbits.text.detect import undetectable_notes
from fairbits.text.language_codes import language_from_code, short_name

if TYPE_CHECKING:
    from fairbits.serve.overlays.overlay_files import Overlay, Overlays

FORMS = ("residual", "codes", "steps")
LEGEND = "KL: divergence from the original model on held-out calibration text."
BEFORE_ROUNDING = "KL was measured before inputs were rounded."


def overlay(
    model: options.Model,
    base: Annotated[
        str, options.option("The quantized model that fairbits quantize made from MODEL.", "DIR", completion.model)
    ],
    out_directory: Annotated[
        Path | None, options.out_option("DIR", help="The directory to write; by default overlays/ in --base.")
    ] = None,
    languages: options.Languages = None,
    budget: Annotated[
        str, options.option("Largest size of one overlay, as a share of the base's bytes.", "SHARE")
    ] = "5%",
    clusters: Annotated[
        int | None, options.option("Number of overlays; by default held-out text decides.", "N", min=1)
    ] = None,
    form: Annotated[
        str,
        options.option(
            "What an overlay stores for a row: its residual, new codes, or new scales (steps).",
            "residual|codes|steps",
            completion.one_of(*FORMS),
        ),
    ] = "residual",
    activations: Annotated[
        int | None,
        options.option("Also round the inputs of linear layers to this number of bits, 2 to 8.", "BITS", min=2, max=8),
    ] = None,
    text: options.TextFrom = None,
    tokens: options.Tokens = 2048,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Make overlays: rows that mend a model for some languages.

    An overlay is a small set of rows that replace rows of a quantized model while it reads text of its languages. A
    language that gains nothing on held-out text stays with the base.

    Examples:
      fairbits overlay embedded:tiny --base tiny-w4 --budget 5%
      fairbits overlay ./model --base w4 --text texts --out overlays
      fairbits overlay ./model --base w4 --languages eng,fra,heb --clusters 2
    """
    share = parse_budget(budget)
    one_of("--form", form, FORMS)
    names = early_checks.check(locals())
    check_directory(Path(base) / "overlays" if out_directory is None else out_directory)
    from fairbits.api.overlay import overlay as run_overlay
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.serve.overlays.overlay_files import MANIFEST

    below = Checkpoint(base, trust_remote_code=trust_remote_code)
    directory = below.directory / "overlays" if out_directory is None else out_directory
    device = compute.choose_device(device)
    with stages("opening the model") as show:
        overlays = run_overlay(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            base=below,
            out=directory,
            languages=names,
            budget=share,
            progress=show,
            **options.pick(locals(), "text clusters form activations tokens sequence seed device"),
        )
    print_notes(undetectable_notes(map(language_from_code, overlays.languages)))
    if as_json:
        print_json(read_object(directory / MANIFEST))
        return
    command = f"fairbits generate {quote(base)} --overlays {quote(str(directory))}"
    tables = (_overlay_table(overlays), _language_table(overlays), _cluster_table(overlays.record))
    print_written(tables, f"wrote {directory}; next: {command}")


def parse_budget(text: str) -> float:
    """Returns a share that is written in percent, or as a number up to 1."""
    written = text.strip()
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise InputError(f"--budget is {text!r:.40}; it must be a share of the base from 0 to 1: 5%, or 0.05")
    return share


def _groups(overlays: "Overlays") -> "list[tuple[str, list[str], Overlay]]":
    """Returns one entry per stored file: its name, its languages, and one of the overlays that share its rows."""
    groups: dict[int, list[Overlay]] = {}
    for overlay in overlays.overlays:
        if overlay.patches:
            groups.setdefault(id(overlay.patches), []).append(overlay)
    serving: dict[str, list[str]] = {}
    for code, name in overlays.languages.items():
        serving.setdefault(name, []).append(code)
    return [
        (same[0].name, [code for overlay in same for code in serving.get(overlay.name, [])], same[0])
        for same in groups.values()
    ]


def _overlay_table(overlays: "Overlays") -> Table:
    """Returns one row per stored set of rows."""
    record, size, groups = overlays.record, overlays.size_bytes, _groups(overlays)
    text, base = record["text"], record["base_bytes"]
    amount = f"{count_of(len(overlays.languages), 'language')}, {text['tokens']:,} tokens each, seed {text['seed']}"
    above: list[Cell] = [
        dim(f"{record['form']} rows, at most {record['budget']:.1%} of the base each"),
        dim(f"calibration text of {text['corpus']}: {amount}"),
    ]
    table = overlays.activations
    if table is not None:
        points = count_of(len(table.points), "input")
        above.append(
            f"{points} rounded to {table.bits} bits, thresholds for every language: {table.extra_bytes:,} bytes"
        )
    rows = tuple(
        (
            name,
            str(len(overlay.patches)),
            f"{sum(patch.count for patch in overlay.patches):,}",
            f"{overlay.size_bytes:,}",
            f"{overlay.size_bytes / base:.1%}",
            ", ".join(map(short_name, codes)),
        )
        for name, codes, overlay in groups
    )
    heading = f"{count_of(len(groups), 'overlay')}, {megabytes(size)}, {size / base:.1%} of {megabytes(base)}"
    return Table(
        [(record["model"], "bold cyan"), "  ", (heading, "bold")],
        ("overlay", "layers", "rows", "bytes", "of the base", "serves"),
        rows,
        () if rows else ("No overlay serves any language better than the base, so none was kept.",),
        (*above, ""),
        left=(5,),
        wrap=(5,),
    )


def _language_table(overlays: "Overlays") -> Table:
    """Returns one row per language, the most damaged first, and the languages that stay with the base."""
    divergence: Mapping[str, Mapping[str, float]] = overlays.record["apart"]
    overlay_by_code = {code: name for name, codes, _ in _groups(overlays) for code in codes}
    number = NumberFormat(max(value for pair in divergence.values() for value in pair.values()))
    rows: list[tuple[Cell, ...]] = []
    for code in sorted(divergence, key=lambda code: -divergence[code]["base"]):
        before, after = divergence[code]["base"], divergence[code]["overlay"]
        rows.append(
            (
                short_name(code),
                dim(code),
                number(before),
                number(after),
                f"{after / before - 1:+.0%}" if before > 0 else "–",
                overlay_by_code.get(code, [("base", "yellow")]),
            )
        )
    below = [dim(LEGEND + (f" {BEFORE_ROUNDING}" if overlays.activations is not None else ""))]
    stay = [short_name(code) for code in divergence if code not in overlay_by_code]
    if stay:
        below.append(f"Languages that stay with the base because no overlay helps: {', '.join(stay)}.")
    headers = ("\nlanguage", "\ncode", f"KL, {number.prefix}bits/byte\nbase", "\noverlay", "\nchange", "\nserved by")
    return Table("Languages", headers, tuple(rows), tuple(below), left=(1, 5))


def _cluster_table(record: Mapping[str, Any]) -> Table:
    tried: Mapping[str, Mapping[str, float]] = record["tried"]
    number = NumberFormat(max(row["worst"] for row in tried.values()))
    rows: list[tuple[Cell, ...]] = [
        (count, number(row["worst"]), number(row["mean"]), [("chosen" * (int(count) == record["clusters"]), "green")])
        for count, row in tried.items()
    ]
    return Table("Clusters", ("clusters", f"worst KL, {number.prefix}bits/byte", "mean", ""), tuple(rows), left=(3,))
