"""The command `evaluate` on the command line."""

from collections.abc import Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, get_args

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.terminal import print_json, print_notes, print_tables, print_written, stages
from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.units import LEAST_DOCUMENTS, NEW_TOKENS
from fairbits.evaluation.llama_cpp.llama_perplexity import ENGINES, FAIRBITS, check_engine
from fairbits.evaluation.servers.address import (
    EXAMPLE,
    KEY_VARIABLE,
    ServerOptions,
    is_address,
    is_saved_reference,
    key_from,
    remove_answers,
)
from fairbits.evaluation.signature import YES, Signature
from fairbits.models.cache_types import CACHE_TYPES
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.reading import EMBEDDED, read_corpus

if TYPE_CHECKING:
    from fairbits.evaluation.scores import Scores

SERVERS, TASKS = "Running servers", "Tasks of lm-eval"
server_option = partial(options.option, rich_help_panel=SERVERS)
task_option = partial(options.option, rich_help_panel=TASKS)
NO_ESTIMATE = "--dry-run is for checkpoints; how long a server takes is seen when it answers"
WITHOUT_GENERATED = "the estimate is without the text that the models write (--generate)"
WITH_TASKS = {"quantized", "reference", "kv_cache", "device", "out_file", "revision", "trust_remote_code", "as_json"}
"""Options that --tasks takes beside those of its panel."""


def evaluate(
    quantized: options.Quantized,
    reference: Annotated[
        str,
        options.option("The model before quantization, or what --save-reference wrote.", "MODEL", completion.model),
    ],
    languages: options.Languages = None,
    text: options.TextFrom = None,
    tokens: options.EvaluationTokens = 8192,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    groups: options.LanguageGroups = None,
    generate: Annotated[
        int | None,
        options.option(
            "Also let both models continue the beginnings of this many documents of every language, and count the "
            "answers in another language, repetitions and empty answers. 200 is a good number.",
            "N",
        ),
    ] = None,
    new_tokens: Annotated[
        int | None, options.option("With --generate: maximum new tokens per answer; by default 64.", "N")
    ] = None,
    device: options.Device = "auto",
    all_text: options.AllText = False,
    join: Annotated[
        bool,
        options.flag(
            "--join",
            help="Join the documents of every language into windows that are all full, for long contexts such as "
            "--sequence 16384. Intervals are then over windows.",
        ),
    ] = False,
    kv_cache: Annotated[
        str | None,
        options.option(
            "Round keys and values of QUANTIZED as a server's cache does: fp8_e4m3, int8, int4, nvfp4, q8_0 or others. "
            "With QUANTIZED as its own reference it shows what the cache alone costs.",
            "TYPE",
            completion.one_of(*CACHE_TYPES),
        ),
    ] = None,
    engine: Annotated[
        str,
        options.option(
            "What computes the predictions of the quantized model: fairbits, or llama.cpp for a .gguf file.",
            "NAME",
            completion.one_of(*ENGINES),
        ),
    ] = FAIRBITS,
    llama_perplexity: Annotated[
        str | None,
        options.option("The program llama-perplexity of llama.cpp; by default the one on PATH.", "PATH"),
    ] = None,
    dry_run: options.DryRun = False,
    repeat: Annotated[
        str | None,
        options.option(
            "Repeat a measurement: the signature that evaluate printed, or that a report has.",
            "SIGNATURE",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        options.option(
            "A file of fairbits sweep on the same reference and text: also say at how many bits its policy would have "
            "cost each language as much.",
            "SWEEP.json",
        ),
    ] = None,
    out_file: Annotated[Path | None, options.out_option("SCORES.json")] = None,
    revision: Annotated[
        str | None,
        options.option("Branch, tag or commit of the reference model on the Hub; by default its main branch.", "NAME"),
    ] = None,
    trust_remote_code: options.Trust = False,
    served_model: Annotated[
        str | None, server_option("Which of the server's models; needed if it has several.", "NAME")
    ] = None,
    top_k: Annotated[
        int, server_option("How many of the most probable tokens the server returns; KL is a bound from them.", "N")
    ] = ServerOptions.top,
    own_text: Annotated[
        bool,
        options.flag(
            "--own-text",
            help="Evaluate on text that the reference model writes, beginning like that of --text: the KL divergence "
            "is then an unbiased estimate instead of a bound.",
            rich_help_panel=SERVERS,
        ),
    ] = False,
    hidden_states: Annotated[
        Path | None,
        server_option("The directory where vLLM, on this machine, writes its last hidden states: KL is exact.", "DIR"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        server_option(
            "The served checkpoint, whose head reads the hidden states; by default what the server names.", "DIR"
        ),
    ] = None,
    save_reference: Annotated[
        Path | None,
        server_option("Keep the predictions of the reference in a new directory, for --reference next time.", "DIR"),
    ] = None,
    concurrency: Annotated[int, server_option("Requests at a time.", "N")] = ServerOptions.concurrency,
    timeout: Annotated[float, server_option("Seconds that a request may take.", "S")] = ServerOptions.timeout,
    patience: Annotated[
        float, server_option("Seconds for which a request that fails is sent again.", "S")
    ] = ServerOptions.patience,
    api_key_env: Annotated[
        str, server_option("The environment variable with the key of the server.", "NAME")
    ] = KEY_VARIABLE,
    tasks: Annotated[
        Path | None,
        task_option(
            "Instead of text: the directory of tasks of lm-eval, such as fairbits tasks writes. --out is then a "
            "directory, for the samples of both models.",
            "DIR",
        ),
    ] = None,
    task: Annotated[
        str | None, task_option("Only these tasks, groups or tags, or patterns such as 'belebele_*'.", "NAMES")
    ] = None,
    limit: Annotated[int | None, task_option("Only the first items of every task.", "N")] = None,
    language_of: Annotated[
        list[str] | None,
        task_option("The language of tasks that have no language code in their name. Can be repeated.", "TASK=LANG"),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure how much each language loses by quantization, in a checkpoint or in a running server.

    It shows how many of 100 next tokens change, perplexity and KL divergence, worst language first, with intervals.

    Examples:
      fairbits evaluate ./fp8 --reference ./model --text texts --out scores.json
      fairbits evaluate model.Q4_K_M.gguf --reference ./model --text texts
      fairbits evaluate http://localhost:8000/v1 --reference ./model --text texts
      fairbits evaluate ./w4 --reference ./model --text texts --tokens 20000
      fairbits evaluate ./model --reference ./model --kv-cache fp8_e4m3
      fairbits evaluate model.gguf --reference ./model --engine llama.cpp
      fairbits evaluate w4 --reference embedded:tiny --groups 'high=eng;low=swh'
      fairbits evaluate ./w4 --reference ./model --text texts --generate 200
      fairbits evaluate ./w4 --reference ./model --tasks tasks --out runs
    """
    if tasks is not None or task is not None or limit is not None or language_of:
        _evaluate_tasks(locals())
        return
    names = early_checks.check(locals(), example="scores.json", with_text=repeat is None)
    check_engine(engine, quantized, llama_perplexity, repeat=repeat, dry_run=dry_run)
    if repeat is not None:
        all_text = all_text or Signature.parse(repeat).all_text == YES
    served = is_address(quantized)
    server = _server_options(locals()) if served else None
    if not served:
        _check_no_server_options(locals())
    if dry_run and served:
        raise InputError(NO_ESTIMATE)
    if generate is not None:
        whole("--generate", generate, least=LEAST_DOCUMENTS)
        if dry_run:
            print_notes([WITHOUT_GENERATED])
    elif new_tokens is not None:
        raise InputError("--new-tokens is for the text that models write: add --generate N")
    new_tokens = NEW_TOKENS if new_tokens is None else whole("--new-tokens", new_tokens, least=1)
    corpus: str | Corpus | None = text
    if not is_saved_reference(reference):  # which has the text
        corpus = evaluated_text(text, names, quantized=quantized, all_text=all_text)
    from fairbits.api.dry_run import estimate_evaluate
    from fairbits.api.evaluate import evaluate as run_evaluate
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.sketched_checkpoint import open_sketch

    device = compute.choose_device(device)
    keys = "tokens sequence seed join kv_cache groups generate new_tokens device repeat sweep engine llama_perplexity"
    if server is not None:
        with stages("opening the reference model") as show:
            before = (
                reference
                if is_saved_reference(reference)
                else Checkpoint(reference, trust_remote_code=trust_remote_code, revision=revision)
            )
            scores = run_evaluate(
                quantized,
                reference=before,
                languages=names,
                text=corpus,
                server=server,
                save_reference=save_reference,
                progress=show,
                **options.pick(locals(), keys),
            )
        show_scores(scores, quantized, out_file, as_json=as_json)
        remove_answers(server.answers)
        return
    opened = open_sketch if dry_run else Checkpoint
    with stages("opening the models"):
        after = quantized if engine != FAIRBITS else opened(quantized, trust_remote_code=trust_remote_code)
        before = opened(reference, trust_remote_code=trust_remote_code, revision=revision)
    for model in (after, before):
        if isinstance(model, Checkpoint) and model.kind == "gguf" and not dry_run:
            print_notes([f"{model.target} is dequantized in {model.directory}: delete it when you are done with it"])
    if dry_run:
        request = TextRequest("evaluation", tokens, sequence, seed, join)
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
            **options.pick(locals(), keys),
        )
    show_scores(scores, quantized, out_file, as_json=as_json)


def evaluated_text(
    text: str | None, languages: list[str] | None, *, quantized: str, all_text: bool
) -> str | Corpus | None:
    """Returns the text of --text: a user's own is read, and what was left out is printed before it takes time."""
    if text is None or text in EMBEDDED:
        if all_text:
            raise InputError("--all-text is for text of your own: give it with --text")
        return text
    from fairbits.quantization.plan import Plan

    corpus = read_corpus(text, languages=languages, evaluation_share=1.0 if all_text else 0.5)
    plan_file = Path(quantized) / "plan.json"
    if all_text and plan_file.is_file() and Plan.load(plan_file).calibration is not None:
        raise InputError(f"fairbits calibrated {quantized}, maybe on this text; leave --all-text out")
    if all_text and any(corpus.calibration.values()):
        raise InputError(f"--all-text: {text} is split into calibration/ and evaluation/; leave --all-text out")
    more = ["--all-text takes all documents, for a model that was not calibrated on them"]
    print_notes([*corpus.notes, *more * any(corpus.calibration.values())])
    return corpus


def _evaluate_tasks(arguments: Mapping[str, Any]) -> None:
    """Computes tasks by both models, and prints what each language lost."""
    model, reference, out = arguments["quantized"], arguments["reference"], arguments["out_file"]
    if arguments["tasks"] is None:
        raise InputError("--task, --limit and --language-of are for tasks of lm-eval: add --tasks DIR")
    for name, parameter in signature(evaluate).parameters.items():
        panel = get_args(parameter.annotation)[1].rich_help_panel
        if panel != TASKS and name not in WITH_TASKS and arguments[name] != parameter.default:
            raise InputError(f"{options.spell_flag(name)} does not apply to tasks of lm-eval: leave it or --tasks out")
    if is_address(model) or is_saved_reference(reference):
        raise InputError("--tasks needs two checkpoints; for a running server use lm-eval, and fairbits gate --samples")
    if out is None:
        raise InputError("--out is missing; give a directory for the samples, such as --out runs")
    early_checks.check({**arguments, "out_file": None, "text": None}, with_text=False)
    from fairbits.api.evaluate_tasks import compare_on_tasks
    from fairbits.cli.gate_command import languages_by_task, samples_table
    from fairbits.models.checkpoint import Checkpoint

    device, trust = compute.choose_device(arguments["device"]), arguments["trust_remote_code"]
    with stages("evaluating") as show:
        losses = compare_on_tasks(
            Checkpoint(model, trust_remote_code=trust),
            Checkpoint(reference, trust_remote_code=trust, revision=arguments["revision"]),
            out=out,
            names=options.split_names(arguments["task"]),
            language_of=languages_by_task(arguments["language_of"] or ()),
            device=device,
            progress=show,
            **options.pick(arguments, "tasks limit kv_cache"),
        )
    print_notes(dict.fromkeys(note for loss in losses.values() for note in loss.verdict.notes))
    if arguments["as_json"]:
        print_json({"losses": [{"filter": name, **loss.as_data()} for (_, name), loss in losses.items()]})
    else:
        print_tables([samples_table(loss, name) for (_, name), loss in losses.items()])
        runs = " ".join(quote(str(out / name)) for name in ("reference", "quantized"))
        print_notes([f"next: fairbits gate --samples {runs} --max-worst 0.02"] * (len(losses) == 1))


def show_scores(scores: "Scores", quantized: str, out_file: Path | None, *, as_json: bool) -> None:
    """Writes and prints scores, and what can be done next."""
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


def _check_no_server_options(arguments: Mapping[str, Any]) -> None:
    """Raises if an option was given that only running servers have."""
    for name, parameter in signature(evaluate).parameters.items():
        settings = get_args(parameter.annotation)[1]
        if settings.rich_help_panel == SERVERS and arguments[name] != parameter.default:
            raise InputError(
                f"{options.spell_flag(name)} is for running servers, and {arguments['quantized']} is none; leave it "
                f"out, or give an address such as {EXAMPLE}"
            )


def _server_options(arguments: Mapping[str, Any]) -> ServerOptions:
    """Returns how a server is asked; with --out, what it has answered is kept beside that file until the end."""
    out_file, states = arguments["out_file"], arguments["hidden_states"]
    key_from(arguments["api_key_env"])  # raises if it is not there, before anything that takes time
    return ServerOptions(
        model=arguments["served_model"],
        top=arguments["top_k"],
        key_variable=arguments["api_key_env"],
        keep_answers=True,
        answers=None if out_file is None or states is not None else out_file.with_name(f"{out_file.name}.answers"),
        **options.pick(arguments, "concurrency timeout patience own_text hidden_states checkpoint"),
    )
