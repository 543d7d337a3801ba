"""The verb `audit` on the command line."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.estimate_table import show_estimate
from fairbits.cli.options import (
    Bits,
    Device,
    DryRun,
    GroupOrChannel,
    Json,
    Languages,
    Model,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    flag,
    out_option,
    write_out,
)
from fairbits.cli.parsing import group_of, names_of
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages


def audit(
    model: Model,
    languages: Languages = None,
    text: TextFrom = None,
    bits: Bits = 4,
    group: GroupOrChannel = "128",
    clip: Annotated[
        str,
        typer.Option(
            help="Clipping: absmax (none), or exact (the scale of least squared error).",
            metavar="absmax|exact",
            autocompletion=completion.one_of("absmax", "exact"),
        ),
    ] = "absmax",
    tokens: Tokens = 4096,
    sequence: Sequence = 512,
    second_moments: Annotated[
        bool, flag("--second-moments", help="Keep the second moments E(x xᵀ) of every input.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    dry_run: DryRun = False,
    out_file: Annotated[Path | None, out_option("AUDIT.json")] = None,
    details: Annotated[bool, flag("--details", help="Show every measurement of languages and blocks.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Predict which languages quantization will hurt, and why, before you quantize.

    Examples:
      fairbits audit embedded:tiny
      fairbits audit ./model --languages eng,fra,heb --out audit.json
      fairbits audit ./model --text texts --bits 3 --group channel --details
    """
    from fairbits.api.audit import audit as run_audit
    from fairbits.api.dry_run import estimate_audit
    from fairbits.auditing.record import check_audit_target, round_floats
    from fairbits.cli.audit_details import audit_details
    from fairbits.cli.audit_table import audit_table
    from fairbits.cli.languages_command import language_notes  # heavy: only when the verb runs
    from fairbits.core.checks import one_of
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.scales.scheme import Scheme
    from fairbits.text.text_request import TextRequest

    if out_file is not None:
        check_audit_target(out_file)  # before anything that takes time
    one_of("clip", clip, ("absmax", "exact"))
    scheme = Scheme(bits, group_of(group), clip)  # type: ignore[arg-type]  # one of the two
    names = names_of(languages)
    device = chosen_device(device)
    print_notes(language_notes(names or ()))
    opened = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    if dry_run:
        request = TextRequest("calibration", tokens, sequence, seed)
        with stages("measuring this machine"):
            estimate = estimate_audit(opened, out=out_file, device=device, languages=names, text=text, request=request)
        show_estimate(estimate, as_json=as_json)
        return
    with stages("opening the model") as show:
        found = run_audit(
            opened,
            languages=names,
            text=text,
            scheme=scheme,
            tokens=tokens,
            sequence=sequence,
            second_moments=second_moments,
            seed=seed,
            device=device,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(round_floats(found.as_data()) if out_file is None else json.loads(out_file.read_text("utf-8")))
        return
    out.print(audit_table(found))
    if details:
        out.print(audit_details(found))
