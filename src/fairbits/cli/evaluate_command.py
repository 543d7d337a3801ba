"""The command `evaluate` on the command line."""

from pathlib import Path
from shlex import quote
from typing import Annotated

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.terminal import print_json, print_notes, print_tables, print_written, stages
from fairbits.core.errors import InputError
from fairbits.evaluation.signature import Signature
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.reading import EMBEDDED, read_corpus


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
    all_text: Annotated[
        bool,
        options.flag(
            "--all-text",
            help="Evaluate on all documents of --text, also on the half that fairbits keeps for calibration. For a "
            "model that was not calibrated on this text.",
        ),
    ] = False,
    dry_run: options.DryRun = False,
    repeat: Annotated[
        str | None,
        options.option(
            "Repeat a measurement: the signature that evaluate printed, or that a report has.",
            "SIGNATURE",
        ),
    ] = None,
    out_file: Annotated[Path | None, options.out_option("SCORES.json")] = None,
    revision: Annotated[
        str | None,
        options.option("Branch, tag or commit of the reference model on the Hub; by default its main branch.", "NAME"),
    ] = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Measure how much each language loses by quantization.

    It shows how many of 100 next tokens change, perplexity and KL divergence, worst language first, with intervals.

    Examples:
      fairbits evaluate ./fp8 --reference ./model --text texts --out scores.json
      fairbits evaluate model.Q4_K_M.gguf --reference ./model --text texts
      fairbits evaluate ./w4 --reference ./model --text texts --tokens 20000
      fairbits evaluate w4 --reference embedded:tiny --groups 'high=eng;low=swh'
    """
    names = early_checks.check(locals(), example="scores.json", with_text=repeat is None)
    if repeat is not None:
        Signature.parse(repeat)
    corpus: str | Corpus | None = text
    if text is None or text in EMBEDDED:
        if all_text:
            raise InputError("--all-text is for text of your own: give it with --text")
    else:
        from fairbits.quantization.plan import Plan

        corpus = read_corpus(text, languages=names, evaluation_share=1.0 if all_text else 0.5)
        plan_file = Path(quantized) / "plan.json"
        if all_text and plan_file.is_file() and Plan.load(plan_file).calibration is not None:
            raise InputError(f"fairbits calibrated {quantized}, maybe on this text; leave --all-text out")
        if all_text and any(corpus.calibration.values()):
            raise InputError(f"--all-text: {text} is split into calibration/ and evaluation/; leave --all-text out")
        more = ["--all-text takes all documents, for a model that was not calibrated on them"]
        print_notes([*corpus.notes, *more * any(corpus.calibration.values())])  # before it takes time
    from fairbits.api.dry_run import estimate_evaluate
    from fairbits.api.evaluate import evaluate as run_evaluate
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.sketched_checkpoint import open_sketch

    device = compute.choose_device(device)
    opened = open_sketch if dry_run else Checkpoint
    with stages("opening the models"):
        after = opened(quantized, trust_remote_code=trust_remote_code)
        before = opened(reference, trust_remote_code=trust_remote_code, revision=revision)
    for model in (after, before):
        if model.kind == "gguf" and not dry_run:
            print_notes([f"{model.target} is dequantized in {model.directory}: delete it when you are done with it"])
    if dry_run:
        request = TextRequest("evaluation", tokens, sequence, seed)
        with stages("measuring this machine"):
            estimate = estimate_evaluate(before, device=device, languages=names, text=corpus, request=request)
        print_estimates([estimate], as_json=as_json)
        return
    with stages("evaluating") as show:
        scores = run_evaluate(
            after,
            reference=before,
            languages=names,
            text=corpus,
            progress=show,
            **options.pick(locals(), "tokens sequence seed groups device repeat"),
        )
    options.write_out(out_file, scores.save)
    if as_json:
        print_json(scores.summary())
    else:
        print_tables(scores.tables())
        print_written(line=f"signature: {scores.signature()}")
        from fairbits.evaluation.meaning import SUGGESTED, advice_for

        if not scores.meaning.acceptable:
            print_notes([f"try: {advice_for(quantized)}"])
        if out_file is not None:
            file = quote(str(out_file))
            print_notes([f"next: fairbits gate {file} --max-changed {SUGGESTED:g}, or fairbits report {file}"])
