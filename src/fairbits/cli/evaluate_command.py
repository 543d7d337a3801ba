"""The verb `evaluate` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.estimate_table import show_estimate
from fairbits.cli.options import (
    Device,
    DryRun,
    EvaluationTokens,
    Json,
    Languages,
    Seed,
    Sequence,
    TextFrom,
    Trust,
    check_out,
    out_option,
    write_out,
)
from fairbits.cli.parsing import names_of
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, print_signature, stages


def evaluate(
    quantized: Annotated[
        str,
        typer.Argument(
            help="The quantized model: a directory, a .gguf file, or a model id on the Hub.",
            metavar="QUANTIZED",
            autocompletion=completion.model,
        ),
    ],
    reference: Annotated[
        str,
        typer.Option(help="The model that it was quantized from.", metavar="MODEL", autocompletion=completion.model),
    ],
    languages: Languages = None,
    text: TextFrom = None,
    tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "auto",
    dry_run: DryRun = False,
    repeat: Annotated[
        str | None,
        typer.Option(
            help="Repeat a measurement: the signature that evaluate, gate or a report printed.", metavar="SIGNATURE"
        ),
    ] = None,
    out_file: Annotated[Path | None, out_option("SCORES.json")] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the reference model on the Hub.", metavar="NAME")
    ] = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Measure the damage of quantization in every language: loss, perplexity, KL divergence, flips, and disparity.

    Examples:
      fairbits evaluate tiny-w4 --reference embedded:tiny --out scores.json
      fairbits evaluate ./w4 --reference ./model --text texts --tokens 20000
      fairbits evaluate model.Q4_K_M.gguf --reference ./model --text texts
    """
    from fairbits.api.dry_run import estimate_evaluate
    from fairbits.api.evaluate import evaluate as run_evaluate
    from fairbits.cli.languages_command import language_notes  # heavy: only when the verb runs
    from fairbits.cli.scores_table import evaluate_table
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.text.text_request import TextRequest

    check_out(out_file, "scores.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(language_notes(names or ()))
    device = chosen_device(device)
    after = Checkpoint(quantized, trust_remote_code=trust_remote_code)
    before = Checkpoint(reference, trust_remote_code=trust_remote_code, revision=revision)
    if dry_run:
        request = TextRequest("evaluation", tokens, sequence, seed)
        with stages("measuring this machine"):
            estimate = estimate_evaluate(before, device=device, languages=names, text=text, request=request)
        show_estimate(estimate, as_json=as_json)
        return
    with stages("opening the models") as show:
        found = run_evaluate(
            after,
            reference=before,
            languages=names,
            text=text,
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            device=device,
            repeat=repeat,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(found.summary())
    else:
        out.print(evaluate_table(found))
        print_signature(found.signature())
