"""The command `evaluate` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import completion, compute, options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.terminal import print_json, print_signature, print_tables, stages
from fairbits.text.corpus import TextRequest


def evaluate(
    quantized: Annotated[
        str,
        options.argument(
            "The quantized model: a directory, a .gguf file, or a model id on the Hub.", "QUANTIZED", completion.model
        ),
    ],
    reference: Annotated[str, options.option("The model before quantization.", "MODEL", completion.model)],
    languages: options.Languages = None,
    text: options.TextFrom = None,
    tokens: options.EvaluationTokens = 8192,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    groups: options.LanguageGroups = None,
    device: options.Device = "auto",
    dry_run: options.DryRun = False,
    repeat: Annotated[
        str | None,
        options.option("Repeat a measurement: the signature printed by evaluate, gate or a report.", "SIGNATURE"),
    ] = None,
    out_file: Annotated[Path | None, options.out_option("SCORES.json")] = None,
    revision: Annotated[
        str | None, options.option("Branch, tag or commit of the reference model on the Hub.", "NAME")
    ] = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Measure the damage of quantization in every language: loss, perplexity, KL divergence, flips, and disparity.

    Examples:
      fairbits evaluate tiny-w4 --reference embedded:tiny --out scores.json
      fairbits evaluate ./w4 --reference ./model --text texts --tokens 20000
      fairbits evaluate w4 --reference embedded:tiny --groups 'high=eng;low=swh'
      fairbits evaluate model.Q4_K_M.gguf --reference ./model --text texts
    """
    from fairbits.api.dry_run import estimate_evaluate
    from fairbits.api.evaluate import evaluate as run_evaluate
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.sketched_checkpoint import open_sketch

    options.check_out(out_file, "scores.json")  # before anything that takes time
    names = options.language_names(languages)
    device = compute.choose_device(device)
    opened = open_sketch if dry_run else Checkpoint
    after = opened(quantized, trust_remote_code=trust_remote_code)
    before = opened(reference, trust_remote_code=trust_remote_code, revision=revision)
    if dry_run:
        request = TextRequest("evaluation", tokens, sequence, seed)
        with stages("measuring this machine"):
            estimate = estimate_evaluate(before, device=device, languages=names, text=text, request=request)
        print_estimates([estimate], as_json=as_json)
        return
    with stages("opening the models") as show:
        scores = run_evaluate(
            after,
            reference=before,
            languages=names,
            progress=show,
            **options.pick(locals(), "text tokens sequence seed groups device repeat"),
        )
    options.write_out(out_file, scores.save)
    if as_json:
        print_json(scores.summary())
    else:
        print_tables(scores.tables())
        print_signature(scores.signature())
