"""Run: the whole job in one directory, from the plan to the report; a finished part is never done twice."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairbits.api.audit import audit
from fairbits.api.evaluate import checkpoint_scores
from fairbits.api.fit import within_memory
from fairbits.api.quantize import quantize
from fairbits.api.report import SCORES_FILE, report
from fairbits.api.run.run_directory import MADE_OF_SCORES, REPORTS, RunDirectory, can_continue, open_directory
from fairbits.api.run.run_settings import prepare_run, run_workload
from fairbits.api.sweep import THRESHOLDS, Sweep
from fairbits.comparison.plan_trial import PlanTrial
from fairbits.core.errors import count_of
from fairbits.core.files import write_files
from fairbits.core.progress import Progress
from fairbits.core.units import MEASURES
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO
from fairbits.models.scales.scheme import Group
from fairbits.models.swapped_model import SwappedModel
from fairbits.models.weight_moments import weight_moments
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import Embeddings
from fairbits.reports.content import Report, report_format
from fairbits.text.corpus import Corpus

UNIT = "bits_per_byte"
Finished = Callable[[str, float | None], None]
"""Called with what is finished, usually a file, and the seconds it took; None if it was finished before."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The result of a run: the scores of the model that it wrote and, by name and in order, of the baselines."""

    directory: Path
    policy: str
    scores: Scores
    baselines: Mapping[str, Scores]
    report: Report
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    plan_notes: tuple[str, ...] = ()  # such as why the written model is large

    @property
    def page(self) -> Path:
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
    more_bits: Iterable[int] = (),
    audit: bool | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> FinishedRun:
    """Returns the result of plan, quantization, evaluation and report, all written into `out`.

    Without a model it is a demonstration with the embedded one, with the amounts `DEMO_AMOUNTS` and, if no languages
    are given either, on the embedded help text. `policy` and `baselines` are written as for `compare`. The default
    baseline is rtn, or in the demonstration GPTQ calibrated on English. `more_bits` are bits per weight at which the
    policy is measured too, without writing a model. An `audit`, which the demonstration makes by default, adds to the
    report why languages are damaged; it can be added to a finished run. The same call continues an interrupted run, to
    the same scores; another call needs another directory.
    """
    arguments: dict[str, Any] = {
        name: value for name, value in locals().items() if name not in ("progress", "finished")
    }
    settings = prepare_run(**arguments)
    fitting = within_memory(run_workload(settings, out), device=settings.device, out=out, progress=progress)
    with fitting as show, open_directory(out, settings) as place:
        stages = _Stages(place, finished or (lambda *_: None), show)
        if settings.audit:
            stages.audit()
        stages.quantize()
        scores = stages.evaluate()
        stages.sweep(scores)
        with stages.timed(REPORTS[0]):
            written = report(place.path)
            # a link in their place is replaced, not followed
            write_files({place.file(name): written.render(report_format(name)).encode() for name in REPORTS})
        baseline_scores = {baseline.name: scores[file] for file, baseline in settings.baseline_files.items()}
        policy, notes = settings.policy.name, place.notes()
        planned = tuple(note for note in place.plan_notes() if note not in settings.checkpoint.notes)
        done = scores[SCORES_FILE], baseline_scores
        return FinishedRun(place.path, policy, *done, written, settings.settings, notes, planned)


@dataclass(frozen=True, eq=False)
class _Stages:
    """The stages of a run: each uses what an earlier run has finished, and saves its results at once."""

    place: RunDirectory
    finished: Finished
    progress: Progress

    def audit(self) -> None:
        settings = self.place.settings
        if self.place.has_audit():
            self.finished("audit.json", None)
            return
        with self.timed("audit.json"):
            audit(
                settings.checkpoint,
                text=settings.corpus,
                scheme=settings.scheme,
                device=settings.device,
                progress=self.progress,
                **settings.calibration.settings,
            ).save(self.place.file("audit.json"))

    def quantize(self) -> None:
        settings, out = self.place.settings, self.place.file("model")
        if self.place.has_model():
            self.finished("model", None)
            return
        with self.timed("model"):
            plan = self.place.draft_plan()
            if plan is None:
                # always with text: policies that read none then report the error of every language in every layer
                plan = settings.plan(settings.policy, settings.bits, with_text=True, progress=self.progress)
            checkpoint, text, device = settings.checkpoint, settings.corpus, settings.device
            with can_continue(out):
                quantize(checkpoint, plan, out=out, text=text, resume=True, device=device, progress=self.progress)
            self.place.record_model()

    def evaluate(self) -> dict[str, Scores]:
        """Returns the scores of the written model, of the baselines and of the other bits, by file.

        Two copies of a model are never in memory. The reference model is evaluated first; then the quantized model is
        loaded, and it is gone when the model is loaded whose weights are replaced for baselines and bits. Some policies
        load the model to decide, so all plans are made before that.
        """
        settings, files = self.place.settings, self.place.settings.measured_files
        saved = {file: self.place.saved_scores(file) for file in (SCORES_FILE, *files)}
        scores = {file: stored for file, stored in saved.items() if stored is not None}
        for file in scores:
            self.finished(file, None)
        missing = {file: method for file, method in files.items() if file not in scores}
        if SCORES_FILE in scores and not missing:
            return scores
        model, corpus, device = settings.checkpoint, settings.corpus, settings.device
        with ExitStack() as stack:
            with self.timed("answers of the reference"):
                progress = self._again if scores else self.progress
                reference = ReferenceModel.on_corpus(
                    model, corpus, request=settings.evaluation, device=device, progress=progress
                )
                stack.enter_context(reference)  # here, as what reports the time may be interrupted
            if SCORES_FILE not in scores:
                with self.timed(SCORES_FILE):
                    # of the model on disk, which is the one that is released
                    written = Checkpoint(self.place.file("model"), trust_remote_code=model.trust_remote_code)
                    measured = checkpoint_scores(
                        written, reference, reference=model, device=device, progress=self.progress
                    )
                    scores[SCORES_FILE] = self._save(SCORES_FILE, measured)
            plans = {
                file: settings.plan(policy, bits, with_text=policy.reads_text, progress=self.progress)
                for file, (policy, bits) in missing.items()
            }
            if missing:
                trial = PlanTrial(SwappedModel.load(model, device=device, as_written=True), corpus, reference, device)
            for file, (policy, bits) in missing.items():
                with self.timed(file):
                    scores[file] = self._save(file, self._try(trial, plans[file], f"{policy.name}, {bits} bits"))
        return scores

    def sweep(self, scores: Mapping[str, Scores]) -> None:
        settings = self.place.settings
        if not settings.more_bits:
            return
        by_bits = {bits: scores[file] for file, bits in settings.bits_files.items()}
        by_bits[settings.bits] = scores[SCORES_FILE]
        notes = tuple(dict.fromkeys(note for measured in by_bits.values() for note in measured.notes))
        by_bits = dict(sorted(by_bits.items()))
        sizes = {bits: measured.quantized.size_bytes for bits, measured in by_bits.items()}
        if self.place.has_sweep(sizes):
            self.finished("sweep.json", None)
            return
        with self.timed("sweep.json"):
            Sweep(
                model=settings.checkpoint.target,
                fingerprint=settings.checkpoint.fingerprint,
                policy=settings.policy.name,
                settings=settings.settings,
                measure=MEASURES[0],
                frames={bits: measured.frame(UNIT) for bits, measured in by_bits.items()},
                sizes=sizes,
                threshold=THRESHOLDS[UNIT],
                max_kappa=max(block.kappa for block in weight_moments(settings.checkpoint).blocks),
                notes=notes,
                setting=scores[SCORES_FILE].setting,
            ).save(self.place.file("sweep.json"))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Reports how long the body of a `with` statement took, if it did not fail."""
        start = time.perf_counter()
        yield
        self.finished(what, time.perf_counter() - start)

    def _try(self, trial: PlanTrial, plan: Plan, name: str) -> Scores:
        result = trial.run(plan, name=name, progress=self.progress)
        fallbacks = [f"{layer.name}: {note}" for layer in result.plan.results for note in layer.notes]
        more = [f"{count_of(len(fallbacks), 'fall-back')}, such as {fallbacks[0]}"] if fallbacks else []
        return replace(result.scores, notes=tuple(dict.fromkeys([*result.scores.notes, *plan.notes, *more])))

    def _again(self, stage: str, done: float, total: float) -> None:
        """Reports what an earlier run has done too: answers may take gigabytes, and need the head to be read."""
        self.progress(f"{stage}, again because a run does not keep its answers", done, total)

    def _save(self, file: str, scores: Scores) -> Scores:
        self.place.drop(file, *MADE_OF_SCORES)
        self.place.file(file).parent.mkdir(exist_ok=True)
        scores.save(self.place.file(file))
        return scores
