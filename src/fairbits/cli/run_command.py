"""The command `run` on the command line."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from fairbits.cli import completion, compute, early_checks, options, policy_options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.terminal import err, out, print_done, print_json, print_notes, print_tables, stages
from fairbits.core.checks import whole
from fairbits.core.errors import FairbitsError, count_of
from fairbits.core.files import RUN_FILE, check_directory
from fairbits.core.table import Cell, NumberFormat, Table, dim, notes_table, rich_text
from fairbits.core.units import megabytes
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import parse_bits
from fairbits.quantization.policies.variants import variant
from fairbits.text.language_codes import short_name

if TYPE_CHECKING:
    from fairbits.api.run import FinishedRun
    from fairbits.api.run.many_models import FinishedRuns
    from fairbits.evaluation.scores import Scores

LEGEND = (
    "Perplexity and KL: of the model that was written, against the reference model. better, worse: significant paired "
    "differences in KL from the baseline, Holm-corrected. In parentheses: 95 % intervals over documents. worst, gap: "
    "corrected for selection."
)
MODELS_LEGEND = (
    "Divergence from the reference model with 95 % confidence intervals over documents. DIR/report.html has more."
)


def run(
    models: Annotated[
        list[str] | None,
        options.argument(
            "A directory or a model id on the Hub, or several. Without it, a demo on embedded:tiny.",
            "MODEL",
            completion.model,
        ),
    ] = None,
    out_directory: Annotated[
        Path,
        options.out_option(
            "DIR",
            help="Output directory; an interrupted run in it is resumed. With several models, one subdirectory each.",
        ),
    ] = Path("fairbits-run"),
    languages: options.Languages = None,
    text: options.TextFrom = None,
    policy: Annotated[
        str,
        options.option(
            "The policy, with options after colons: gptq:mix=minimax.", "NAME", policy_options.complete_policy
        ),
    ] = DEFAULT,
    baselines: Annotated[
        str | None,
        options.option(
            "Policies to compare with, such as gptq:mix=english,rtn; or none. The report leads with the first. "
            "Default: rtn, plain rounding; demo: gptq:mix=english.",
            "NAMES",
            policy_options.complete_policies,
        ),
    ] = None,
    bits: options.Bits = 4,
    more_bits: Annotated[
        str | None, options.option("Bits at which the policy is evaluated too, such as 3,8. Default: none.", "LIST")
    ] = None,
    audit: Annotated[
        bool | None,
        options.flag(
            "--audit/--no-audit",
            help="Audit the model too, so that the report explains the damage. Default: demo only.",
        ),
    ] = None,
    group: policy_options.PlanGroup = None,
    embeddings: policy_options.Embeddings = None,
    tokens: Annotated[
        int | None, options.option("Calibration tokens per language (default: 4096; demo: 512).", "N")
    ] = None,
    evaluation_tokens: Annotated[
        int | None, options.option("Evaluation tokens per language (default: 8192; demo: 1536).", "N")
    ] = None,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dry_run: options.DryRun = False,
    ray: compute.Ray = None,
    ray_cpus: compute.RayCpus = 1.0,
    ray_gpus: compute.RayGpus = 1.0,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Quantize, evaluate against a baseline, and write a report.

    All results are in one directory.

    To resume an interrupted run, run the same command again. With several models, each has a subdirectory in DIR,
    and a model that fails does not stop the rest.

    Examples:
      fairbits run
      fairbits run ./model --languages eng,fra,heb --out run
      fairbits run ./model --text texts --audit --more-bits 3,8 --baselines mse
      fairbits run ./model --languages eng,fra,heb --dry-run
      fairbits run ./model-a ./model-b --text texts --out runs --ray auto
    """
    cluster = compute.open_cluster(ray, ray_cpus, ray_gpus)
    several = models is not None and len(models) > 1  # then each may resume on another device
    check_directory(out_directory, holding=None if several else (RUN_FILE,))
    # the demonstration has a text of its own
    names = early_checks.check(locals(), with_text=bool(models))
    compared = [] if baselines == "none" else options.split_names(baselines)
    common = policy_options.policy_values({"group": group, "embeddings": embeddings})
    width = variant(policy).bits_or(bits)
    early_checks.check_policies([policy, *(compared or ())], bits=[width], common=common)
    more = [] if more_bits in (None, "none") else parse_bits(more_bits, "--more-bits")
    for width in more:
        whole("bits", width, least=2, most=8)
    from fairbits.api.run.many_models import run_many
    from fairbits.api.run.run_settings import estimate_run, recorded_device
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.sketched_checkpoint import open_sketch

    here = compute.device_here(device, cluster, earlier=recorded_device(out_directory))
    opened = open_sketch if dry_run else Checkpoint
    checkpoints = [opened(model, trust_remote_code=trust_remote_code, revision=revision) for model in models or ()]
    arguments = {
        **options.pick(locals(), "policy bits text tokens evaluation_tokens sequence seed audit"),
        "baselines": compared,
        **common,
        "languages": names,
        "more_bits": more,
        "device": device if several else here,
    }
    if dry_run:
        with stages("measuring this machine"):
            estimates = [
                estimate_run(checkpoint, out=out_directory, **arguments) for checkpoint in checkpoints or (None,)
            ]
        print_estimates(estimates, as_json=as_json)
        return
    with compute.show_progress(cluster, "opening the model") as (show, cluster):
        result = run_many(
            checkpoints or [None], out=out_directory, **arguments, ray=cluster, progress=show, finished=_print_finished
        )
    if several:
        _print_runs(result, as_json=as_json)
    else:
        _print_run(*result.runs.values(), as_json=as_json)


def _print_run(run: "FinishedRun", *, as_json: bool) -> None:
    if as_json:
        print_json(run_data(run))
        return
    print_tables(run_tables(run))
    out.print()
    for line in islice(next_steps(run), 1 if err.quiet else None):
        out.print(rich_text(line), soft_wrap=True)


def _print_runs(result: "FinishedRuns", *, as_json: bool) -> None:
    """Prints one row per model; an error ends the command if any of them failed."""
    print_json(runs_data(result)) if as_json else print_tables(runs_tables(result))
    if result.failed:
        name, problem = next(iter(result.failed.items()))
        count = f"{len(result.failed)} of {count_of(len(result.failed) + len(result.runs), 'model')}"
        raise FairbitsError(f"{count} failed, such as {name}: {problem}")


def _print_finished(what: str, seconds: float | None) -> None:
    if seconds is None:
        print_notes([f"{what} already exists"])
    else:
        print_done(what, seconds)


def run_data(run: "FinishedRun") -> dict[str, object]:
    """Returns the paths of the results and the headline of the report, for JSON."""
    return {
        "directory": str(run.directory.absolute()),
        "report": str(run.page),
        "policy": run.policy,
        "baselines": list(run.baselines),
        "headline": run.report.content["headline"],
        "notes": [*run.notes, *run.plan_notes],
    }


def runs_data(result: "FinishedRuns") -> dict[str, object]:
    """Returns the runs by name, and the errors of those that failed, for JSON."""
    failed = {name: str(problem) for name, problem in result.failed.items()}
    return {"runs": {name: run_data(run) for name, run in result.runs.items()}, "failed": failed}


def run_tables(run: "FinishedRun") -> list[Table]:
    """Returns how every language changes under the first baseline and the policy, a summary, and the notes."""
    from fairbits.evaluation.meaning import times
    from fairbits.stats.frame import worst_first

    scores = {**dict(list(run.baselines.items())[:1]), run.policy: run.scores}
    damage = run.scores.frame().by_language()
    number = NumberFormat(max(part.disparity().worst[1].value for part in scores.values()))
    of_100 = NumberFormat(1.0, factor=100.0, decimals=1)
    significant = run.scores.contrast(next(iter(run.baselines.values()))).significant() if run.baselines else {}
    rows: list[tuple[Cell, ...]] = []
    for code in worst_first(run.scores.flips):
        mark = "" if code not in significant else "better" if significant[code].value < 0 else "worse"
        style = {"better": "green", "worse": "red"}.get(mark, "")
        changed = (of_100.estimate(measured.flips[code]) for measured in scores.values())
        perplexity = times(1 + run.scores.relative_perplexity[code].value)
        kl = number(damage[code].value)
        rows.append((short_name(code), dim(code), *changed, f"× {perplexity}", kl, [(mark, style)]))
    setting, documents = run.scores.setting, len(run.scores.documents.lang)
    amounts = f"{count_of(len(run.scores.languages), 'language')}, {count_of(documents, 'document')}"
    languages = Table(
        [(run.scores.reference.target, "bold cyan"), "  ", ("of 100 next tokens, how many change", "bold")],
        ("language", "code", *scores, "perplexity", "KL", ""),
        tuple(rows),
        above=(dim(f"{setting.split} text of {setting.corpus}: {amounts}"), ""),
        left=(1, *range(2, 2 + len(scores)), 4 + len(scores)),
    )
    notes = (note for measured in reversed(scores.values()) for note in (*measured.notes, *measured.interval_notes))
    return [languages, _summary(scores, number), *notes_table(dict.fromkeys([*run.notes, *run.plan_notes, *notes]))]


def _summary(scores: "Mapping[str, Scores]", number: NumberFormat) -> Table:
    """Returns worst, gap and mean over languages and the size, one column per policy."""
    disparities = [measured.disparity() for measured in scores.values()]
    worsts = (part.worst for part in disparities)
    sizes = (
        f"{megabytes(size, decimals=2)}, {size / measured.reference.size_bytes:.0%} of the model"
        for measured, size in ((measured, measured.quantized.size_bytes) for measured in scores.values())
    )
    rows: tuple[tuple[Cell, ...], ...] = (
        ("worst", *(number.estimate(worst, f" {code.partition('_')[0]}") for code, worst in worsts)),
        ("gap", *("–" if gap is None else number.estimate(gap) for gap in (part.gap for part in disparities))),
        ("mean", *(number.estimate(part.mean) for part in disparities)),
        ("size", *sizes),
    )
    return Table(f"KL over languages, {number.prefix}bits per byte", ("", *scores), rows, (dim(LEGEND),), left=(1, 2))


def next_steps(run: "FinishedRun") -> Iterator[Cell]:
    """Yields what the scores mean, what to try if that is too much, the path of the report, and a gate command."""
    from fairbits.evaluation.meaning import SUGGESTED, advice

    meaning = run.scores.meaning
    yield [(meaning.sentence, "bold" if meaning.acceptable else "bold red")]
    if not meaning.acceptable:
        yield f"try:    {advice(run.settings, policy=run.policy)}"
    yield f"report: {run.page}"
    if meaning.changed.bounded and not run.scores.changed_frame.without_interval:  # else no limit is certainly met
        yield f"next:   fairbits gate {quote(str(run.directory / 'scores.json'))} --max-changed {SUGGESTED:g}"


def runs_tables(result: "FinishedRuns") -> list[Table]:
    """Returns worst language, mean and size of every model, and why some failed."""
    disparities = {name: run.scores.disparity() for name, run in result.runs.items()}
    number = NumberFormat(max((abs(part.worst[1].value) for part in disparities.values()), default=1.0))
    rows: list[tuple[Cell, ...]] = []
    for name, run in result.runs.items():
        code, worst = disparities[name].worst
        size = megabytes(run.scores.quantized.size_bytes, decimals=2)
        estimates = number.estimate(worst, f" {code.partition('_')[0]}"), number.estimate(disparities[name].mean)
        rows.append(([(name, "bold cyan")], *estimates, size))
    rows += [([(name, "bold cyan")], [("failed", "red")], "", "") for name in result.failed]
    title = f"divergence, {number.prefix}bits per byte"
    headers = ("model", "worst language", "mean", "size")
    table = Table(title, headers, tuple(rows), (dim(MODELS_LEGEND),), ("",), left=(1, 2))
    return [table, *notes_table((f"{name}: {problem}" for name, problem in result.failed.items()), "Failed")]
