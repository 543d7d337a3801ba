"""Report: of a run, or of scores and other saved files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairbits.auditing.audit_file import AUDIT
from fairbits.comparison.comparison import trial_method
from fairbits.core.errors import InputError
from fairbits.core.files import RUN_FILE, file_sha256
from fairbits.core.records import read_object
from fairbits.evaluation.gate import GateResult
from fairbits.evaluation.language_groups import NamedGroups
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.reports.content import Report
from fairbits.reports.sources import RUN, SWEEP, Method, Sources

SCORES_FILE = "scores.json"


def report(
    target: str | Path,
    *,
    against: Iterable[str | Path] = (),
    audit: str | Path | None = None,
    plan: str | Path | None = None,
    sweep: str | Path | None = None,
    groups: NamedGroups | None = None,
    verdict: GateResult | None = None,
) -> Report:
    """Returns the report on a run's directory, or on a file of scores and the other files.

    The headline compares with the first file of `against`. `groups` of languages replace those of the scores. A
    `verdict` of the gate on these scores is shown first.
    """
    baselines = [Path(path) for path in against]
    if Path(target).is_dir():
        if baselines or audit or plan or sweep:
            raise InputError(f"{target} is the directory of a run, which holds everything; give no other files")
        return Report.from_sources(_grouped(run_sources(Path(target)), groups))
    files = {"scores": Path(target), **{f"against {i}": path for i, path in enumerate(baselines, start=1)}}
    files |= {name: Path(path) for name, path in (("audit", audit), ("plan", plan), ("sweep", sweep)) if path}
    planned = None if plan is None else Plan.load(plan)
    methods = named_methods([Scores.load(path) for path in (target, *baselines)], planned)
    sources = replace(_sources(methods, files, planned), verdict=verdict)
    return Report.from_sources(_grouped(sources, groups))


def _grouped(sources: Sources, groups: NamedGroups | None) -> Sources:
    if groups is None:
        return sources
    first, *others = sources.methods
    return replace(sources, methods=(replace(first, scores=first.scores.with_groups(groups)), *others))


def run_sources(directory: Path) -> Sources:
    """Returns the files that `fairbits run` wrote into a directory."""
    files = {"run": directory / RUN_FILE, "scores": directory / SCORES_FILE}
    for file in files.values():
        if not file.is_file():
            raise InputError(
                f"{directory} has no {file.name}; a report needs a finished run: "
                "run the same `fairbits run` again, or give a file of scores"
            )
    record = RUN.read(files["run"])
    baselines = {baseline.name: _inside(directory, baseline.scores) for baseline in record.baselines}
    files |= {f"scores of {name}": file for name, file in baselines.items()}
    files |= {name: directory / f"{name}.json" for name in ("audit", "sweep")}
    files["plan"] = directory / "model" / "plan.json"
    files = {name: file for name, file in files.items() if file.is_file() or name.startswith("scores")}
    policy = Method(record.policy, Scores.load(files["scores"]))
    compared = tuple(Method(name, Scores.load(file)) for name, file in baselines.items())
    return _sources((policy, *compared), files, Plan.load(files["plan"]) if "plan" in files else None)


def _inside(directory: Path, name: str) -> Path:
    """Returns the file of a run that its record names; a record may come from anyone."""
    file = directory / name
    if not _is_file(file) or not file.resolve().is_relative_to(directory.resolve()):
        raise InputError(
            f"{directory / RUN_FILE} names the scores {name!r:.60}, which is not a file in that directory; "
            "a report needs a finished run: run the same `fairbits run` again"
        )
    return file


def named_methods(scores: Sequence[Scores], plan: Plan | None) -> tuple[Method, ...]:
    """Returns scores named by their policies where these are known and different, else by their models."""
    names = [_policy(measured) for measured in scores]
    if plan is not None:
        names[0] = _name(plan)
    return tuple(
        Method(name if name is not None and names.count(name) == 1 else measured.quantized.name, measured)
        for name, measured in zip(names, scores, strict=True)
    )


def _policy(scores: Scores) -> str | None:
    """Returns the policy of a model if it was measured in memory or has a plan next to it."""
    in_memory = trial_method(scores)
    if in_memory is not None:
        return in_memory[0]
    file = Path(scores.quantized.target) / "plan.json"
    try:
        plan = Plan.load(file) if _is_file(file) else None
    except InputError:  # the file of another tool
        return None
    expected = (scores.reference.fingerprint, scores.quantized.size_bytes)
    return _name(plan) if plan is not None and (plan.fingerprint, plan.size_bytes) == expected else None


def _name(plan: Plan) -> str:
    mix = plan.settings.get("mix", "equal")
    return plan.policy if mix == "equal" else f"{plan.policy}:mix={mix}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def _sources(methods: tuple[Method, ...], files: Mapping[str, Path], plan: Plan | None) -> Sources:
    config = Path(methods[0].scores.quantized.target) / "config.json"
    return Sources(
        methods,
        plan=plan,
        audit=AUDIT.read(files["audit"]) if "audit" in files else None,
        sweep=SWEEP.read(files["sweep"]) if "sweep" in files else None,
        run=RUN.read(files["run"]) if "run" in files else None,
        files={name: file_sha256(file) for name, file in files.items()},
        config=read_object(config, finite=False) if _is_file(config) else {},
    )
