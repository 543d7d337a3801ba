"""The command `gate` on the command line."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairbits.cli import completion, options
from fairbits.cli.terminal import print_json, print_line, print_notes, print_tables
from fairbits.core.errors import InputError, count_of
from fairbits.core.files import write_files
from fairbits.core.table import Cell, NumberFormat, Table, dim
from fairbits.evaluation.profiles import PROFILES
from fairbits.text.language_codes import short_name

if TYPE_CHECKING:
    from fairbits.evaluation.gate import GateResult
    from fairbits.evaluation.lm_eval.gate_samples import SamplesGateResult

ITEMS_LEGEND = (
    "Loss: before minus after, in points of 100, with Tango's 95 % interval. p: McNemar's exact test, corrected for "
    "the number of languages (Holm). Noise: what chance alone exceeds in one of 20 cases. Recovery: after / before."
)
BOOTSTRAP_LEGEND = (
    "Loss: how much worse it is after, with bootstrap-t 95 % intervals. p: paired bootstrap, corrected for the "
    "number of languages (Holm). Noise: what chance alone exceeds in one of 20 cases."
)


def gate(
    scores: Annotated[
        Path | None, options.argument("The file that fairbits evaluate --out wrote; not with --samples.", "SCORES.json")
    ] = None,
    samples: Annotated[
        tuple[Path, Path] | None,
        options.option(
            "Instead of scores: the directories of two runs of lm_eval --log_samples, before and after.", "BEFORE AFTER"
        ),
    ] = None,
    profile: Annotated[
        str | None,
        options.option(
            "Limits that have a name: at most 5 (strict), 10 (standard) or 25 (loose) of 100 tokens may change in any "
            "language; with evaluate --generate, at most 2, 5 or 10 more of 100 answers may be in another language.",
            "NAME",
            completion.one_of(*PROFILES),
        ),
    ] = None,
    max_changed: Annotated[
        float | None,
        options.option(
            "Limit on how many of 100 tokens may have another first choice than in the reference model, in every "
            "language. 10 is a good limit to start with.",
            "N",
        ),
    ] = None,
    max_wrong_language: Annotated[
        float | None,
        options.option(
            "Limit on how many of 100 generated answers quantization adds in another language than the prompt, in "
            "every language. The scores need evaluate --generate.",
            "N",
        ),
    ] = None,
    max_worst: Annotated[float | None, options.option("Limit on the damage of the worst language.", "X")] = None,
    max_mean: Annotated[float | None, options.option("Limit on the mean damage of the languages.", "X")] = None,
    max_gap: Annotated[
        float | None, options.option("Limit on the gap between the worst and the best language.", "X")
    ] = None,
    max_ratio: Annotated[
        float | None,
        options.option("Limit on how many times as much the worst group of languages loses as the best.", "X"),
    ] = None,
    groups: options.LanguageGroups = None,
    against: Annotated[
        Path | None, options.option("Scores of a baseline. No language may be significantly worse.", "BASELINE.json")
    ] = None,
    max_worse: Annotated[
        float | None, options.option("Limit on how much worse than --against a language may be.", "X")
    ] = None,
    measure: options.Measure = "divergence",
    unit: options.Unit = "bits_per_byte",
    metric: Annotated[
        str | None,
        options.option(
            "With --samples: the metric of the tasks; by default acc, else exact_match, else bits_per_byte.", "NAME"
        ),
    ] = None,
    filter_name: Annotated[
        str | None,
        options.option("With --samples: the filter of answers, if a task has several.", "NAME", flag="--filter"),
    ] = None,
    tasks: Annotated[
        str | None, options.option("With --samples: only these tasks, such as 'belebele_*'.", "PATTERN")
    ] = None,
    language_of: Annotated[
        list[str] | None,
        options.option(
            "With --samples: the language of tasks that have no language code in their name: xwinograd_jp=jpn. "
            "Can be repeated.",
            "TASK=LANG",
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, options.option("Write the result as JUnit XML, for a CI system.", "FILE", flag="--junit")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check scores against limits; the exit code tells a CI system.

    The exit code is 0 if every limit is met with 95 % confidence. It is 1 if one is exceeded, or if there is too little
    text to decide.

    Examples:
      fairbits gate scores.json --profile standard
      fairbits gate scores.json --max-changed 10
      fairbits gate scores.json --max-changed 10 --max-mean 0.01
      fairbits gate scores.json --against baseline.json --max-worse 0.005
      fairbits gate scores.json --max-ratio 2 --groups 'high=eng,fra;low=swh,yor'
      fairbits gate scores.json --max-mean 0.01 --junit gate.xml --json
      fairbits gate scores.json --max-changed 10 --max-wrong-language 5
      fairbits gate --samples before after --max-worst 0.02
    """
    from fairbits.evaluation.gate import gate as run_gate
    from fairbits.evaluation.lm_eval.gate_samples import gate_samples

    options.check_out(junit_file, "gate.xml")
    limits = {"max_worst": max_worst, "max_mean": max_mean, "max_gap": max_gap}
    for_samples = {"--metric": metric, "--filter": filter_name, "--tasks": tasks, "--language-of": language_of}
    for_scores = {
        "--profile": profile,
        "--max-changed": max_changed,
        "--max-wrong-language": max_wrong_language,
        "--against": against,
        "--max-worse": max_worse,
        "--max-ratio": max_ratio,
        "--groups": groups,
        "--measure": measure != "divergence" and measure,
        "--unit": unit != "bits_per_byte" and unit,
    }
    if samples is not None:
        _refuse(for_scores | {"SCORES.json": scores}, "cannot be given with --samples, which reads runs of lm-eval")
        before, after = samples
        loss = gate_samples(
            before,
            after,
            metric=metric,
            filter_name=filter_name,
            tasks=tasks,
            language_of=languages_by_task(language_of or ()),
            **limits,
        )
        _write_notes(loss.verdict, junit_file)
        if as_json:
            print_json(loss.as_data())
        else:
            print_tables([samples_table(loss)])
            print_line(loss.verdict.reason)
        raise typer.Exit(loss.verdict.exit_code)
    _refuse(for_samples, "needs --samples BEFORE AFTER")
    if scores is None:
        raise InputError("SCORES.json is missing; give the file that fairbits evaluate --out wrote, or --samples")
    verdict = run_gate(
        scores,
        **options.pick(
            locals(),
            "profile max_changed max_wrong_language max_worst max_mean max_gap measure unit against max_worse groups "
            "max_ratio",
        ),
    )
    _write_notes(verdict, junit_file)
    if max_changed is not None and 0 < max_changed < 1:
        print_notes([f"--max-changed {max_changed:g} is {max_changed:g} of 100 tokens, not {max_changed:.0%}"])
    if as_json:
        print_json(verdict.as_data())
    else:
        print_line(verdict.reason)
        if verdict.meaning is not None and max_changed is None and profile is None:  # else the reason says it
            print_line(verdict.meaning.sentence)
    raise typer.Exit(verdict.exit_code)


def _write_notes(verdict: "GateResult", junit_file: Path | None) -> None:
    from fairbits.evaluation.gate import junit

    options.write_out(junit_file, lambda path: write_files({path.resolve(): junit(verdict)}))
    print_notes(verdict.notes)


def _refuse(arguments: Mapping[str, Any], why: str) -> None:
    for name, value in arguments.items():
        if value:
            raise InputError(f"{name} {why}")


def languages_by_task(pairs: Iterable[str]) -> dict[str, str]:
    """Returns the language of each task, or pattern of tasks."""
    languages: dict[str, str] = {}
    for pair in pairs:
        task, equals, language = (part.strip() for part in pair.partition("="))
        if not (task and equals and language):
            raise InputError(f"--language-of is {pair!r:.60}; it must be a task and its language: xwinograd_jp=jpn")
        if languages.setdefault(task, language) != language:
            raise InputError(f"--language-of gives {task} two languages, {languages[task]} and {language}; give it one")
    return languages


def samples_table(result: "SamplesGateResult", filter_name: str = "none") -> Table:
    """Returns the scores of every language before and after, and what the worst would lose by chance.

    The title names the filter of answers, unless it is the one of tasks that have only that.
    """
    from fairbits.evaluation.lm_eval.gate_samples import LEVEL

    percent = result.verdict.unit == "per_item" and all(row.lost is not None for row in result.languages)
    number = NumberFormat(1, factor=100.0, decimals=1) if percent else NumberFormat(1, factor=1.0, decimals=4)
    rows: list[tuple[Cell, ...]] = []
    for row in result.languages:
        style = "red" if row.p_holm < LEVEL and row.loss.value > 0 else ""
        rows.append(
            (
                short_name(row.language),
                dim(row.language),
                f"{row.items:,}",
                number(row.before),
                number(row.after),
                [(number(row.loss.value), style), (f" {number.limits(row.loss)}", "dim")],
                "<0.001" if row.p_holm < 0.001 else f"{row.p_holm:.3f}",
                "–" if row.noise is None else number(row.noise),
                "–" if row.recovery is None else f"{row.recovery:.1%}",
            )
        )
    tasks = {name for names in result.tasks.values() for name in names}
    about = f"  {result.metric}, {count_of(len(result.languages), 'language')}, {count_of(len(tasks), 'task')}"
    about += f", filter {filter_name}" if filter_name != "none" else ""
    code, worst = result.worst
    summary = (
        f"worst {number(worst.value)} {number.limits(worst)} {code}, mean {number(result.mean.value)} "
        f"{number.limits(result.mean)}; if nothing had changed, the worst language would seem to lose "
        f"{number(result.worst_by_chance)}"
    )
    headers = ("language", "code", "n", "before", "after", "loss (95 % interval)", "p", "noise", "recovery")
    legend = dim(ITEMS_LEGEND if percent else BOOTSTRAP_LEGEND)
    title: Cell = [(result.verdict.target, "bold cyan"), about]
    return Table(title, headers, tuple(rows), (legend, "", summary), ("",), left=(1,))
