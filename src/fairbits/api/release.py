"""Release: everything that decides whether a quantized model may be released, in one directory and one verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairbits.api.evaluate import evaluate
from fairbits.api.evaluate_tasks import compare_on_tasks
from fairbits.api.report import report
from fairbits.auditing.audit_file import AUDIT, AuditFile
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory, write_files
from fairbits.core.progress import Progress
from fairbits.core.records import to_json
from fairbits.evaluation.gate import TASKS, GateResult, gate, junit
from fairbits.evaluation.lm_eval.gate_samples import SamplesGateResult
from fairbits.evaluation.profiles import PROFILES
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.servers.address import ServerOptions
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO
from fairbits.models.loaded_checkpoint import Model
from fairbits.text.corpus import Corpus
from fairbits.text.language_codes import short_name

SCORES, VERDICT, JUNIT, PAGE, CARD, ANSWERS = (
    *("scores.json", "verdict.json", "verdict.xml", "report.html", "card.md", "answers"),
)
"""What a release writes."""
STANDARD, ANSWERED = "standard", 200
UNFILTERED = "none"  # the filter of answers that are taken as they are


@dataclass(frozen=True)
class Release:
    """The verdict on a model, with the scores and the losses in tasks that it is from, and where they are."""

    verdict: GateResult
    scores: Scores
    tasks: Mapping[tuple[str, str], SamplesGateResult]  # by metric and filter of answers
    directory: Path

    def __bool__(self) -> bool:
        """The same as `verdict.passed`, so that `if fairbits.release(…):` releases nothing that fails."""
        return self.verdict.passed

    def as_data(self) -> dict[str, Any]:
        return self.verdict.as_data() | {
            "scores": self.scores.summary(),
            "tasks": [{"filter": name, **loss.as_data()} for (_, name), loss in self.tasks.items()],
            "directory": str(self.directory),
        }


def release(
    quantized: Model,
    *,
    reference: Model,
    out: str | Path,
    profile: str = STANDARD,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int = 8192,
    sequence: int = 512,
    seed: int = 0,
    generate: int | None = ANSWERED,
    tasks: str | Path | None = None,
    audit: str | Path | None = None,
    sweep: str | Path | None = None,
    server: ServerOptions | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Release:
    """Returns whether a quantized model, or a running server, keeps the limits of a profile in every language.

    It evaluates likelihood and, unless `generate` is None, the language of that many answers; with `tasks`, a directory
    of tasks of lm-eval, no language may lose significantly. An `audit` of the reference adds which experts get too
    little text of a language, `sweep` the equivalent bits (`evaluate`). `out` gets the scores, the verdict as JSON and
    JUnit XML, the report as a page, a section for the model card, and the samples of the tasks, which are kept if they
    are there.
    """
    one_of("profile", profile, tuple(PROFILES))
    directory = check_directory(out, holding=(SCORES, VERDICT, JUNIT, PAGE, CARD, ANSWERS))
    audited = None if audit is None else AUDIT.read(audit)
    if audited is not None and isinstance(reference, Checkpoint) and audited.model.fingerprint != reference.fingerprint:
        raise InputError(f"the audit {audit} is of another model than the reference, {reference.target}; audit that")
    losses: dict[tuple[str, str], SamplesGateResult] = {}
    if tasks is not None:
        losses = compare_on_tasks(
            quantized, reference, tasks=tasks, out=directory / ANSWERS, device=device, progress=progress
        )
    scores = evaluate(
        quantized,
        reference=reference,
        languages=languages,
        text=text,
        tokens=tokens,
        sequence=sequence,
        seed=seed,
        generate=generate,
        sweep=sweep,
        server=server,
        device=device,
        progress=progress,
    )
    decided = gate(scores, profile=profile)
    answered = [
        replace(check, name=f"{TASKS}{metric}{'' if reading == UNFILTERED else f' ({reading})'}, {check.name}")
        for (metric, reading), loss in losses.items()
        for check in loss.verdict.checks
    ]
    notes = (*decided.notes, *(note for loss in losses.values() for note in loss.verdict.notes), *expert_notes(audited))
    verdict = replace(decided, checks=(*decided.checks, *answered), notes=tuple(dict.fromkeys(notes)))
    files = {SCORES: scores.as_bytes(), VERDICT: to_json(verdict.as_data()), JUNIT: junit(verdict)}
    with TemporaryDirectory() as place:  # all files are written at once, so that none is of another release
        saved = Path(place, SCORES)
        saved.write_bytes(files[SCORES])
        shown = report(saved, audit=audit, verdict=verdict)
    files |= {PAGE: shown.render("html").encode(), CARD: shown.markdown().encode()}
    directory.mkdir(parents=True, exist_ok=True)
    write_files({directory.resolve() / name: content for name, content in files.items()})
    return Release(verdict, scores, losses, directory)


def expert_notes(audited: AuditFile | None) -> list[str]:
    """Returns in which languages experts get too little text to be quantized well."""
    if audited is None or audited.experts is None:
        return []
    most: dict[str, tuple[int, int]] = {}
    for block in audited.experts.blocks:
        for code, number in block.few.items():
            if number > most.get(code, (0, 0))[0]:
                most[code] = number, block.experts
    return [
        f"experts: {number} of {count} of a block get too little calibration text in {short_name(code)}"
        for code, (number, count) in sorted(most.items(), key=lambda pair: -pair[1][0])
    ]
