"""Run: the whole job in one directory, from audit to report; a finished part is never done twice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairbits.api.dry_run.running_out import within_memory
from fairbits.api.report import SCORES_FILE, report
from fairbits.api.run.preparation import prepare_job, workload_of
from fairbits.api.run.run_directory import REPORTS, open_directory
from fairbits.api.run.run_settings import baseline_files
from fairbits.api.run.stages import Finished, make_audit, make_model, make_sweep, measure_scores, timed
from fairbits.core.files import write_files
from fairbits.core.progress import Progress
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO
from fairbits.models.scales.scheme import Group
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import Embeddings
from fairbits.reports.content import Report, report_format
from fairbits.text.corpus import Corpus


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The result of a run: the scores of the model that it wrote and, by name and in order, of the baselines."""

    directory: Path
    policy: str
    scores: Scores
    baselines: Mapping[str, Scores]
    report: Report
    notes: tuple[str, ...]

    @property
    def page(self) -> Path:
        """The path of the HTML report."""
        return (self.directory / REPORTS[0]).absolute()


def run(
    model: str | Path | Checkpoint | None = None,
    *,
    out: str | Path = "fairbits-run",
    policy: str = DEFAULT,
    baselines: Iterable[str] | None = None,
    bits: int = 4,
    group: Group = 128,
    embeddings: Embeddings = "keep",
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int | None = None,
    evaluation_tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    widths: Iterable[int] | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> FinishedRun:
    """Returns the result of audit, plan, quantization, evaluation and report, all written into `out`.

    Without a model it is a demonstration with the embedded one, with the amounts `DEMO` and, if no languages are
    given either, on the embedded help text. `policy` and `baselines` are written as for `compare`. The default
    baselines are GPTQ calibrated on English, if that is among the languages, and rtn; on the embedded declaration rtn
    comes first, as `usual_baselines` explains. The policy is also measured at `widths`. The same call continues an
    interrupted run, to the same scores; another call needs another directory.
    """
    job = prepare_job(
        model,
        out=out,
        policy=policy,
        baselines=baselines,
        bits=bits,
        group=group,
        embeddings=embeddings,
        languages=languages,
        text=text,
        tokens=tokens,
        evaluation_tokens=evaluation_tokens,
        sequence=sequence,
        seed=seed,
        widths=widths,
        device=device,
    )
    fitting = within_memory(workload_of(job, out), device=job.device, out=out, progress=progress)
    with fitting as show, open_directory(out, job) as place:
        report_done = finished or (lambda *_: None)
        make_audit(place, report_done, progress=show)
        make_model(place, report_done, progress=show)
        scores = measure_scores(place, report_done, progress=show)
        make_sweep(place, report_done, scores=scores)
        with timed(report_done, REPORTS[0]):
            made = report(place.path)
            # a link in their place is replaced, not followed
            write_files({place.file(name): made.render(report_format(name)).encode() for name in REPORTS})
        others = {each.name: scores[file] for file, each in baseline_files(job).items()}
        return FinishedRun(place.path, job.policy.name, scores[SCORES_FILE], others, made, place.notes())
