"""Preparation of a run: its defaults, the job that its arguments describe, and what that job will take."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairbits.api.dry_run.estimate import Estimate, estimate_workload
from fairbits.api.dry_run.fit import Workload, smaller_requests
from fairbits.api.dry_run.jobs import Stages, run_stages, without_end_to_end
from fairbits.api.report import RUN_FILE
from fairbits.api.run.run_directory import check_out, recorded_device
from fairbits.api.run.run_settings import Job, job_of
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.scales.scheme import Group
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import Embeddings
from fairbits.text.corpus import Corpus
from fairbits.text.reading import HELP
from fairbits.text.text_request import TextRequest

EMBEDDED = "embedded:tiny"


@dataclass(frozen=True)
class Amounts:
    """How much a run does by default: tokens per language, and the widths that it also measures."""

    tokens: int
    evaluation_tokens: int
    widths: tuple[int, ...]


DEMO_AMOUNTS = Amounts(512, 1536, (3, 8))
"""For the embedded model: enough to decide, and about three minutes on two cores."""
USUAL_AMOUNTS = Amounts(4096, 8192, (2, 3, 6, 8))
"""For a given model."""


def prepare_job(
    model: str | Path | Checkpoint | None = None,
    *,
    out: str | Path,
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
    reading: bool = True,
) -> Job:
    """Returns the job of `fairbits.run` with these arguments, if it is possible.

    Without `reading` no weights are read: the model has no fingerprint.
    """
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(EMBEDDED if model is None else model)
    amounts = DEMO_AMOUNTS if model is None else USUAL_AMOUNTS
    if model is None and languages is None and text is None:
        text = HELP
    job = job_of(
        checkpoint if reading else checkpoint.without_fingerprint(),
        policy=policy,
        baselines=baselines,
        bits=bits,
        widths=amounts.widths if widths is None else widths,
        group=group,
        embeddings=embeddings,
        languages=languages,
        text=text,
        calibration=TextRequest("calibration", amounts.tokens if tokens is None else tokens, sequence, seed),
        evaluation=TextRequest(
            "evaluation",
            amounts.evaluation_tokens if evaluation_tokens is None else evaluation_tokens,
            sequence,
            seed,
        ),
        device=resolve_device(device, earlier=recorded_device(out)),
    )
    check_out(out, job)
    return job


def workload_of(job: Job, out: str | Path) -> Workload[Job]:
    """Returns a run; what one that was started before has written already takes no more disk."""
    started = (Path(out) / RUN_FILE).is_file()

    def stages(changed: Job) -> Stages:
        found = run_stages(changed)
        return tuple(replace(each, held=replace(each.held, written=0)) for each in found) if started else found

    return Workload(job, stages, smaller_runs)


def estimate_run(
    model: str | Path | Checkpoint | None = None, *, out: str | Path = "fairbits-run", **settings: Any
) -> Estimate:
    """Returns what `fairbits.run` with the same arguments takes on this machine; no file is written.

    What an earlier run has already finished in `out` counts as if it had to be done.
    """
    job = prepare_job(model, out=out, reading=False, **settings)
    workload = Workload(job, run_stages, smaller_runs)
    return estimate_workload(job.checkpoint, workload, device=job.device, out=out)


def smaller_runs(job: Job) -> Iterator[list[tuple[str, Job]]]:
    """Yields kinds of smaller runs: learning in blocks, less text, shorter windows."""
    yield [(f"--policy {each.name}", replace(job, policy=each)) for each in without_end_to_end(job.policy)]
    fewer, shorter = smaller_requests(job.calibration)
    yield [(name, replace(job, calibration=each)) for name, each in fewer]
    fewer_evaluated, _ = smaller_requests(job.evaluation, "--evaluation-tokens")
    yield [(name, replace(job, evaluation=each)) for name, each in fewer_evaluated]
    yield [
        (name, replace(job, calibration=each, evaluation=replace(job.evaluation, sequence=each.sequence)))
        for name, each in shorter
    ]
