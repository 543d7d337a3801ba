"""Run: the whole job in one directory, from audit to report; what is finished is never done twice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairbits.artifacts import write_files
from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.scores.scores import Scores
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.scheme import Group
from fairbits.progress import Progress
from fairbits.quantize.policies import DEFAULT, Embeddings
from fairbits.reports import Report
from fairbits.reports.content import format_of
from fairbits.verbs.report import SCORES_FILE, report
from fairbits.verbs.run.directory import REPORTS
from fairbits.verbs.run.job import baseline_files, job_of
from fairbits.verbs.run.opening import check_out, open_directory
from fairbits.verbs.run.stages import Finished, audited, measured, quantized, swept, timed

EMBEDDED = "embedded:tiny"
QUICK_TOKENS, TOKENS = 512, 4096
"""Calibration tokens per language where no model is named, so that it takes minutes, and where one is."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What a run has left: the scores of the model that it wrote, and of the baselines in their order, by name."""

    directory: Path
    policy: str
    scores: Scores
    baselines: Mapping[str, Scores]
    report: Report
    notes: tuple[str, ...]

    @property
    def page(self) -> Path:
        """Where the report lies that a browser shows."""
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
    evaluation_tokens: int = 8192,
    sequence: int = 512,
    seed: int = 0,
    widths: Iterable[int] = (2, 3, 6, 8),
    device: str = "cpu",
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> FinishedRun:
    """Returns what a run has found, after audit, plan, quantization, evaluation and report, all of it in `out`.

    Without a model the embedded one is taken, with 512 calibration tokens per language; with one it is 4096, unless
    `tokens` says otherwise. `policy` and `baselines` are written as for `compare`. The usual baselines are GPTQ
    calibrated on English, if that is among the languages, and rtn; without text of yours rtn comes first, as
    `usual_baselines` explains. The policy is also measured at `widths`. The same call goes on where an interrupted one
    stopped, to the same scores; another call needs another directory.
    """
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(EMBEDDED if model is None else model)
    budget = QUICK_TOKENS if model is None else TOKENS
    job = job_of(
        checkpoint,
        policy=policy,
        baselines=baselines,
        bits=bits,
        widths=widths,
        group=group,
        embeddings=embeddings,
        languages=languages,
        text=text,
        calibration=TextRequest("calibration", budget if tokens is None else tokens, sequence, seed),
        evaluation=TextRequest("evaluation", evaluation_tokens, sequence, seed),
        device=device,
    )
    check_out(out, job)
    with open_directory(out, job) as place:
        tell = finished or (lambda *_: None)
        audited(place, tell, progress=progress)
        quantized(place, tell, progress=progress)
        scores = measured(place, tell, progress=progress)
        swept(place, tell, scores=scores)
        with timed(tell, REPORTS[0]):
            made = report(place.path)
            # a link that lies there is replaced, and not written through
            write_files({place.file(name): made.render(format_of(name)).encode() for name in REPORTS})
        others = {each.name: scores[file] for file, each in baseline_files(job).items()}
        return FinishedRun(place.path, job.policy.name, scores[SCORES_FILE], others, made, place.notes())
