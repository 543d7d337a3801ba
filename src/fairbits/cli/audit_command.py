"""The command `audit` on the command line."""

import json
from pathlib import Path
from typing import Annotated

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.terminal import print_json, print_tables, stages
from fairbits.core.checks import one_of
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest


def audit(
    model: options.Model,
    languages: options.Languages = None,
    text: options.TextFrom = None,
    bits: options.Bits = 4,
    group: Annotated[
        str,
        options.option(
            "Number of weights that share a scale, such as 128; channel; or auto: the largest of 128, 64 and 32 that "
            "divides the inputs of every layer, else channel.",
            "N|channel|auto",
            completion.one_of("32", "64", "128", "channel", "auto"),
        ),
    ] = "128",
    clip: Annotated[
        str,
        options.option(
            "Clipping: absmax (none), or exact (the scale with the smallest squared error).",
            "absmax|exact",
            completion.one_of("absmax", "exact"),
        ),
    ] = "absmax",
    tokens: options.Tokens = 4096,
    sequence: options.Sequence = 512,
    second_moments: Annotated[
        bool, options.flag("--second-moments", help="Keep the second moments E(x xᵀ) of every input.")
    ] = False,
    outlier_layers: options.OutlierLayers = None,
    outlier_kappa: options.OutlierKappa = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dry_run: options.DryRun = False,
    out_file: Annotated[Path | None, options.out_option("AUDIT.json")] = None,
    details: Annotated[bool, options.flag("--details", help="Show every measurement of languages and blocks.")] = False,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Predict which languages lose most, before you quantize.

    Examples:
      fairbits audit embedded:tiny
      fairbits audit ./model --languages eng,fra,heb --out audit.json
      fairbits audit ./model --text texts --bits 3 --group channel --details
    """
    names = early_checks.check(locals(), example="audit.json")
    one_of("clip", clip, ("absmax", "exact"))
    layers = options.parse_layers(outlier_layers)
    shared = None if group == "auto" else options.parse_group(group)
    Scheme(bits, shared or "channel")

    from fairbits.api.audit import audit as run_audit
    from fairbits.api.dry_run import estimate_audit
    from fairbits.auditing.audit_file import check_audit_target, round_floats
    from fairbits.forward.statistics import largest_group
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.sketched_checkpoint import open_sketch

    if out_file is not None:
        check_audit_target(out_file)  # of which there are two
    device = compute.choose_device(device)
    opened = (open_sketch if dry_run else Checkpoint)(model, trust_remote_code=trust_remote_code, revision=revision)
    shared = largest_group(opened) if shared is None else shared
    scheme = Scheme(bits, shared, clip)  # type: ignore[arg-type]  # one of the two
    if dry_run:
        request = TextRequest("calibration", tokens, sequence, seed)
        with stages("measuring this machine"):
            estimate = estimate_audit(opened, out=out_file, device=device, languages=names, text=text, request=request)
        print_estimates([estimate], as_json=as_json)
        return
    with stages("opening the model") as show:
        result = run_audit(
            opened,
            languages=names,
            outlier_layers=layers,
            outlier_kappa=outlier_kappa,
            progress=show,
            **options.pick(locals(), "text scheme tokens sequence second_moments seed device"),
        )
    options.write_out(out_file, result.save)
    if as_json:
        print_json(round_floats(result.as_data()) if out_file is None else json.loads(out_file.read_text("utf-8")))
    else:
        print_tables(result.tables(details=details))
