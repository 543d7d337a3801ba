"""The command `release` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.evaluate_command import NO_ESTIMATE, WITHOUT_GENERATED, evaluated_text
from fairbits.cli.terminal import print_json, print_line, print_notes, print_tables, print_written, stages
from fairbits.core.checks import one_of, whole
from fairbits.core.errors import InputError
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.evaluation.profiles import PROFILES
from fairbits.evaluation.servers.address import KEY_VARIABLE, ServerOptions, is_address, key_from, remove_answers
from fairbits.text.corpus import TextRequest


def release(
    quantized: options.Quantized,
    reference: Annotated[str, options.option("The model before quantization.", "MODEL", completion.model)],
    out_directory: Annotated[
        Path, options.out_option("DIR", help="The directory for scores, verdict, report and samples.")
    ],
    profile: Annotated[
        str,
        options.option(
            "The limits: at most 5 (strict), 10 (standard) or 25 (loose) of 100 tokens change in any language, and at "
            "most 2, 5 or 10 more of 100 answers are in another language.",
            "NAME",
            completion.one_of(*PROFILES),
        ),
    ] = "standard",
    languages: options.Languages = None,
    text: options.TextFrom = None,
    tokens: options.EvaluationTokens = 8192,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    all_text: options.AllText = False,
    generate: Annotated[
        int,
        options.option(
            "Answers per language that both models write, which takes most of the time on a CPU; 0 for none.", "N"
        ),
    ] = 200,
    tasks: Annotated[
        Path | None,
        options.option(
            "Also tasks of lm-eval in this directory, such as fairbits tasks writes: no language may lose "
            "significantly.",
            "DIR",
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        options.option("What fairbits audit --out wrote: also names experts that get too little text.", "FILE"),
    ] = None,
    sweep: Annotated[
        Path | None, options.option("What fairbits sweep --out wrote: also gives equivalent bits.", "FILE")
    ] = None,
    served_model: Annotated[
        str | None, options.option("Which of the server's models; needed if it has several.", "NAME")
    ] = None,
    api_key_env: Annotated[
        str, options.option("The environment variable with the key of the server.", "NAME")
    ] = KEY_VARIABLE,
    dry_run: options.DryRun = False,
    device: options.Device = "auto",
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Decide whether a quantized model may be released: one verdict, report, card and JUnit.

    The exit code is 0 if every limit is kept with 95 % confidence in every language, else 1.

    Examples:
      fairbits release ./fp8 --reference ./model --text texts --out release
      fairbits release http://localhost:8000/v1 --reference ./model --out release
      fairbits release ./w4 --reference ./model --tasks tasks --out release
    """
    names = early_checks.check(locals())
    one_of("--profile", profile, tuple(PROFILES))
    if generate:
        whole("--generate", generate, least=LEAST_DOCUMENTS)
    server = None
    if dry_run and is_address(quantized):
        raise InputError(NO_ESTIMATE)
    if is_address(quantized):
        if tasks is not None:
            raise InputError(
                "--tasks needs a checkpoint; for a running server use lm-eval, and fairbits gate --samples"
            )
        key_from(api_key_env)
        answers = out_directory.with_name(f"{out_directory.name}.answers")  # until the release is decided
        server = ServerOptions(model=served_model, key_variable=api_key_env, keep_answers=True, answers=answers)
    elif served_model is not None:
        raise InputError(f"--served-model is for running servers, and {quantized} is none; leave it out")
    corpus = evaluated_text(text, names, quantized=quantized, all_text=all_text)
    if dry_run:
        without_tasks = "the estimate is without the tasks (--tasks)"
        print_notes([WITHOUT_GENERATED] * (generate > 0) + [without_tasks] * (tasks is not None))
        from fairbits.api.dry_run import estimate_evaluate
        from fairbits.models.sketched_checkpoint import open_sketch

        before = open_sketch(reference, trust_remote_code=trust_remote_code)
        request, device = TextRequest("evaluation", tokens, sequence, seed), compute.choose_device(device)
        with stages("measuring this machine"):
            estimate = estimate_evaluate(before, device=device, languages=names, text=corpus, request=request)
        print_estimates([estimate], as_json=as_json)
        return
    from fairbits.api.release import release as run_release
    from fairbits.cli.gate_command import samples_table
    from fairbits.models.checkpoint import Checkpoint

    device = compute.choose_device(device)
    with stages("opening the models") as show:
        decided = run_release(
            quantized if server is not None else Checkpoint(quantized, trust_remote_code=trust_remote_code),
            reference=Checkpoint(reference, trust_remote_code=trust_remote_code),
            out=out_directory,
            languages=names,
            text=corpus,
            generate=generate or None,
            server=server,
            progress=show,
            **options.pick(locals(), "profile tokens sequence seed tasks audit sweep device"),
        )
    remove_answers(None if server is None else server.answers)
    if as_json:
        print_json(decided.as_data())
    else:
        print_notes(decided.verdict.notes)
        print_tables(
            [*decided.scores.tables(), *(samples_table(loss, name) for (_, name), loss in decided.tasks.items())]
        )
        print_written(line=f"wrote {out_directory}: report.html, card.md, scores.json, verdict.json, verdict.xml")
        print_line(f"{profile}: {decided.verdict.reason}")
    raise typer.Exit(decided.verdict.exit_code)
