"""The stages of a run: each looks for what an earlier run has finished, and saves what it makes as soon as it can."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fairbits.errors import InputError, count_of
from fairbits.measure.scores.scores import Scores
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.swapped_model import SwappedModel
from fairbits.progress import Progress
from fairbits.quantize.evidence import kappa_of_audit
from fairbits.quantize.plan import Plan
from fairbits.trials.plan_trial import PlanTrial
from fairbits.trials.reference_answers import ReferenceAnswers
from fairbits.verbs.audit import audit
from fairbits.verbs.evaluate import scores_of
from fairbits.verbs.quantize import quantize
from fairbits.verbs.report import SCORES_FILE
from fairbits.verbs.run.directory import MADE_OF_SCORES, RunDirectory
from fairbits.verbs.run.job import Job, measured_files, width_files
from fairbits.verbs.run.plans import plan_to_measure, plan_to_write
from fairbits.verbs.sweep import THRESHOLDS, Sweep

UNIT = "bits_per_byte"
Finished = Callable[[str, float | None], None]
"""Called with what is there now, most often a file, and the seconds it took; None if it was there before."""


def audited(place: RunDirectory, tell: Finished, *, progress: Progress | None = None) -> None:
    """Predicts what rounding to nearest in the same width and group would cost."""
    job = place.job
    if place.audited():
        tell("audit.json", None)
        return
    with timed(tell, "audit.json"):
        found = audit(
            job.checkpoint,
            text=job.corpus,
            scheme=job.scheme,
            progress=progress,
            **job.calibration.settings,
        )
        found.save(place.file("audit.json"))


def quantized(place: RunDirectory, tell: Finished, *, progress: Progress | None = None) -> None:
    """Writes the model of the policy, from the block on that an interrupted run was at."""
    job = place.job
    if place.quantized():
        tell("model", None)
        return
    with timed(tell, "model"):
        plan, out = place.draft_plan() or plan_to_write(job, progress=progress), place.file("model")
        try:
            quantize(job.checkpoint, plan, out=out, text=job.corpus, resume=True, device=job.device, progress=progress)
        except InputError as problem:
            if not isinstance(problem.__context__, OSError):
                raise
            reason = problem.__context__.strerror or problem.__context__
            raise InputError(f"{out} cannot be written ({reason}); make room: the same command then goes on") from None
        place.wrote_model()


def measured(place: RunDirectory, tell: Finished, *, progress: Progress | None = None) -> dict[str, Scores]:
    """Returns the scores of the written model, of the baselines and of the other widths, by file.

    Two copies of a model are never in memory. The reference model is evaluated first; then the quantized model is
    loaded, and it is gone when the model is loaded whose weights are replaced for baselines and widths. Some policies
    load the model to decide, so all plans are made before that.
    """
    job = place.job
    files = measured_files(job)
    found = {file: scores for file in (SCORES_FILE, *files) if (scores := place.scored(file)) is not None}
    for file in found:
        tell(file, None)
    missing = {file: each for file, each in files.items() if file not in found}
    if SCORES_FILE in found and not missing:
        return found
    with ExitStack() as stack:
        with timed(tell, "answers of the reference"):
            answers = stack.enter_context(_reference_answers(job, progress))
        if SCORES_FILE not in found:
            with timed(tell, SCORES_FILE):
                found[SCORES_FILE] = _saved(place, SCORES_FILE, _of_written(place, answers, progress))
        plans = {
            file: plan_to_measure(job, each, bits=bits, progress=progress) for file, (each, bits) in missing.items()
        }
        if missing:
            trial = PlanTrial(SwappedModel.load(job.checkpoint), job.corpus, answers, job.device)
        for file, (each, bits) in missing.items():
            with timed(tell, file):
                found[file] = _saved(place, file, _in_place(trial, plans[file], f"{each.name}, {bits} bits", progress))
    return found


def swept(place: RunDirectory, tell: Finished, *, scores: Mapping[str, Scores]) -> None:
    """Writes what the policy costs at all widths, the written model being one of them."""
    job = place.job
    if not job.widths:
        return
    at = {width: scores[file] for file, width in width_files(job).items()} | {job.bits: scores[SCORES_FILE]}
    sizes = {width: at[width].quantized.size_bytes for width in sorted(at)}
    if place.swept(sizes):
        tell("sweep.json", None)
        return
    with timed(tell, "sweep.json"):
        Sweep(
            model=job.checkpoint.target,
            fingerprint=job.checkpoint.fingerprint,
            policy=job.policy.name,
            settings=job.settings,
            frames={width: at[width].frame(UNIT) for width in sorted(at)},
            sizes=sizes,
            threshold=THRESHOLDS[UNIT],
            max_kappa=float(kappa_of_audit(place.file("audit.json"), job.checkpoint.fingerprint).max()),
            notes=tuple(dict.fromkeys(note for each in at.values() for note in each.notes)),
        ).save(place.file("sweep.json"))


@contextmanager
def timed(tell: Finished, what: str) -> Iterator[None]:
    """Tells how long the block of a `with` statement took, if it came to its end."""
    start = time.perf_counter()
    yield
    tell(what, time.perf_counter() - start)


def _reference_answers(job: Job, progress: Progress | None) -> ReferenceAnswers:
    return ReferenceAnswers.of(job.checkpoint, job.corpus, request=job.evaluation, device=job.device, progress=progress)


def _of_written(place: RunDirectory, answers: ReferenceAnswers, progress: Progress | None) -> Scores:
    """Returns the scores of the model as it lies on disk, which is what is shipped."""
    job = place.job
    written = Checkpoint(place.file("model"), trust_remote_code=job.checkpoint.trust_remote_code)
    return scores_of(written, answers, reference=job.checkpoint, device=job.device, progress=progress)


def _in_place(trial: PlanTrial, plan: Plan, name: str, progress: Progress | None) -> Scores:
    """Returns the scores of a plan that is never written, with the notes on the plan."""
    found = trial.run(plan, name=name, progress=progress)
    fallbacks = [f"{each.name}: {note}" for each in found.plan.outcomes for note in each.notes]
    more = [f"{count_of(len(fallbacks), 'fall-back')}, such as {fallbacks[0]}"] if fallbacks else []
    return replace(found.scores, notes=tuple(dict.fromkeys([*found.scores.notes, *plan.notes, *more])))


def _saved(place: RunDirectory, file: str, scores: Scores) -> Scores:
    place.drop(file, *MADE_OF_SCORES)
    place.file(file).parent.mkdir(exist_ok=True)
    scores.save(place.file(file))
    return scores
