"""The report of a run, or of scores and what else was saved."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fairbits.errors import InputError
from fairbits.evaluation.scores import Scores
from fairbits.plans import Plan
from fairbits.reports import Method, Report, Sources
from fairbits.reports.sources import AUDIT, RUN, SWEEP, digest, entries, part, read_json

RUN_FILE = "run.json"
SCORES_FILE = "scores.json"


def report(
    target: str | Path,
    *,
    against: Iterable[str | Path] = (),
    audit: str | Path | None = None,
    plan: str | Path | None = None,
    sweep: str | Path | None = None,
) -> Report:
    """Returns the report of a run's directory, or of a file of scores and the files that are named beside it.

    The first file of `against` is what the headline compares with.
    """
    baselines = [Path(each) for each in against]
    if Path(target).is_dir():
        if baselines or audit or plan or sweep:
            raise InputError(f"{target} is the directory of a run, which holds everything; give it alone")
        return Report.of(sources_of_run(Path(target)))
    files = {"scores": Path(target), **{f"against {i}": each for i, each in enumerate(baselines, start=1)}}
    files |= {name: Path(each) for name, each in (("audit", audit), ("plan", plan), ("sweep", sweep)) if each}
    planned = None if plan is None else Plan.load(plan)
    own = Scores.load(target)
    name = planned.policy if planned is not None else own.quantized.target
    others = tuple(Method(scores.quantized.target, scores) for scores in map(Scores.load, baselines))
    return Report.of(_sources((Method(name, own), *others), files, planned))


def sources_of_run(directory: Path) -> Sources:
    """Returns what `fairbits run` has left in a directory."""
    files = {"run": directory / RUN_FILE, "scores": directory / SCORES_FILE}
    for file in files.values():
        if not file.is_file():
            raise InputError(
                f"{directory} has no {file.name}; a report is made of a finished run: "
                "run the same `fairbits run` again, or give a file of scores"
            )
    found = read_json(files["run"], RUN)
    baselines = {
        str(part(found, "baselines", i, "name")): directory / str(part(found, "baselines", i, "scores"))
        for i in range(len(entries(found, "baselines")))
    }
    files |= {f"scores of {name}": file for name, file in baselines.items()}
    files |= {name: directory / f"{name}.json" for name in ("audit", "sweep")}
    files["plan"] = directory / "model" / "plan.json"
    files = {name: file for name, file in files.items() if file.is_file() or name.startswith("scores")}
    own = Method(str(part(found, "policy")), Scores.load(files["scores"]))
    others = tuple(Method(name, Scores.load(file)) for name, file in baselines.items())
    return _sources((own, *others), files, Plan.load(files["plan"]) if "plan" in files else None)


def _sources(methods: tuple[Method, ...], files: Mapping[str, Path], plan: Plan | None) -> Sources:
    return Sources(
        methods,
        plan=plan,
        audit=read_json(files["audit"], AUDIT) if "audit" in files else None,
        sweep=read_json(files["sweep"], SWEEP) if "sweep" in files else None,
        run=read_json(files["run"], RUN) if "run" in files else None,
        files={name: digest(file) for name, file in files.items()},
    )
