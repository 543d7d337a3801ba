"""The stages of a run: each uses what an earlier run has finished, and saves its results at once.

The plans of a run: for the model that is written, and for baselines and widths that are only measured.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fairbits.api.audit import audit
from fairbits.api.evaluate import scores_of
from fairbits.api.quantize import quantize
from fairbits.api.report import SCORES_FILE
from fairbits.api.run.run_directory import MADE_OF_SCORES, RunDirectory, can_continue
from fairbits.api.run.run_plans import plan_to_measure, plan_to_write
from fairbits.api.run.run_settings import Job, measured_files, width_files
from fairbits.api.sweep import THRESHOLDS, Sweep
from fairbits.comparison.plan_trial import PlanTrial
from fairbits.core.errors import count_of
from fairbits.core.progress import Progress
from fairbits.core.units import MEASURES
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.evidence import audited_kappa
from fairbits.quantization.plan import Plan

UNIT = "bits_per_byte"
Finished = Callable[[str, float | None], None]
"""Called with what is finished, usually a file, and the seconds it took; None if it was finished before."""


def make_audit(place: RunDirectory, report_done: Finished, *, progress: Progress | None = None) -> None:
    """Predicts the damage of rounding to nearest with the same width and group."""
    job = place.job
    if place.has_audit():
        report_done("audit.json", None)
        return
    with timed(report_done, "audit.json"):
        found = audit(
            job.checkpoint,
            text=job.corpus,
            scheme=job.scheme,
            device=job.device,
            progress=progress,
            **job.calibration.settings,
        )
        found.save(place.file("audit.json"))


def make_model(place: RunDirectory, report_done: Finished, *, progress: Progress | None = None) -> None:
    """Writes the quantized model, after the blocks that an interrupted run has finished."""
    job = place.job
    if place.has_model():
        report_done("model", None)
        return
    with timed(report_done, "model"):
        plan, out = place.draft_plan() or plan_to_write(job, progress=progress), place.file("model")
        with can_continue(out):
            quantize(job.checkpoint, plan, out=out, text=job.corpus, resume=True, device=job.device, progress=progress)
        place.record_model()


def measure_scores(
    place: RunDirectory, report_done: Finished, *, progress: Progress | None = None
) -> dict[str, Scores]:
    """Returns the scores of the written model, of the baselines and of the other widths, by file.

    Two copies of a model are never in memory. The reference model is evaluated first; then the quantized model is
    loaded, and it is gone when the model is loaded whose weights are replaced for baselines and widths. Some policies
    load the model to decide, so all plans are made before that.
    """
    job = place.job
    files = measured_files(job)
    found = {file: scores for file in (SCORES_FILE, *files) if (scores := place.saved_scores(file)) is not None}
    for file in found:
        report_done(file, None)
    missing = {file: each for file, each in files.items() if file not in found}
    if SCORES_FILE in found and not missing:
        return found
    with ExitStack() as stack:
        with timed(report_done, "answers of the reference"):
            answers = stack.enter_context(_reference_answers(job, progress))
        if SCORES_FILE not in found:
            with timed(report_done, SCORES_FILE):
                found[SCORES_FILE] = _save_scores(place, SCORES_FILE, _scores_on_disk(place, answers, progress))
        plans = {
            file: plan_to_measure(job, each, bits=bits, progress=progress) for file, (each, bits) in missing.items()
        }
        if missing:
            trial = PlanTrial(SwappedModel.load(job.checkpoint, device=job.device), job.corpus, answers, job.device)
        for file, (each, bits) in missing.items():
            with timed(report_done, file):
                found[file] = _save_scores(
                    place, file, _scores_in_memory(trial, plans[file], f"{each.name}, {bits} bits", progress)
                )
    return found


def make_sweep(place: RunDirectory, report_done: Finished, *, scores: Mapping[str, Scores]) -> None:
    """Writes the sweep of the policy over all widths, one of which is that of the written model."""
    job = place.job
    if not job.widths:
        return
    at = {width: scores[file] for file, width in width_files(job).items()} | {job.bits: scores[SCORES_FILE]}
    sizes = {width: at[width].quantized.size_bytes for width in sorted(at)}
    if place.has_sweep(sizes):
        report_done("sweep.json", None)
        return
    with timed(report_done, "sweep.json"):
        Sweep(
            model=job.checkpoint.target,
            fingerprint=job.checkpoint.fingerprint,
            policy=job.policy.name,
            settings=job.settings,
            measure=MEASURES[0],
            frames={width: at[width].frame(UNIT) for width in sorted(at)},
            sizes=sizes,
            threshold=THRESHOLDS[UNIT],
            max_kappa=float(audited_kappa(place.file("audit.json"), job.checkpoint.fingerprint).max()),
            notes=tuple(dict.fromkeys(note for each in at.values() for note in each.notes)),
        ).save(place.file("sweep.json"))


@contextmanager
def timed(report_done: Finished, what: str) -> Iterator[None]:
    """Reports how long the body of a `with` statement took, if it did not fail."""
    start = time.perf_counter()
    yield
    report_done(what, time.perf_counter() - start)


def _reference_answers(job: Job, progress: Progress | None) -> ReferenceModel:
    return ReferenceModel.on_corpus(
        job.checkpoint, job.corpus, request=job.evaluation, device=job.device, progress=progress
    )


def _scores_on_disk(place: RunDirectory, answers: ReferenceModel, progress: Progress | None) -> Scores:
    """Returns the scores of the model on disk, which is the one that is released."""
    job = place.job
    written = Checkpoint(place.file("model"), trust_remote_code=job.checkpoint.trust_remote_code)
    return scores_of(written, answers, reference=job.checkpoint, device=job.device, progress=progress)


def _scores_in_memory(trial: PlanTrial, plan: Plan, name: str, progress: Progress | None) -> Scores:
    """Returns the scores of a plan that is never written, with the notes on the plan."""
    found = trial.run(plan, name=name, progress=progress)
    fallbacks = [f"{each.name}: {note}" for each in found.plan.results for note in each.notes]
    more = [f"{count_of(len(fallbacks), 'fall-back')}, such as {fallbacks[0]}"] if fallbacks else []
    return replace(found.scores, notes=tuple(dict.fromkeys([*found.scores.notes, *plan.notes, *more])))


def _save_scores(place: RunDirectory, file: str, scores: Scores) -> Scores:
    place.drop(file, *MADE_OF_SCORES)
    place.file(file).parent.mkdir(exist_ok=True)
    scores.save(place.file(file))
    return scores
