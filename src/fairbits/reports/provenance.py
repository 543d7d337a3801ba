"""Where the numbers of a report come from: models, text, settings, versions, hashes and notes."""

from collections.abc import Iterator
from typing import Any

from fairbits.core.version import versions
from fairbits.evaluation.setting import TASK_NAMES
from fairbits.reports.sources import Sources

THREADS = "torch threads"
"""The number of threads of a run: floating-point sums depend on it."""


def provenance(sources: Sources) -> dict[str, Any]:
    """Returns what is needed to repeat the measurement."""
    asked, own = sources.after.setting, sources.after
    plan = sources.plan
    return {
        "models": [
            {"name": "reference", "target": own.reference.target, "fingerprint": own.reference.fingerprint},
            *(
                {"name": each.name, "target": identity.target, "fingerprint": identity.fingerprint}
                for each in sources.methods
                for identity in [each.scores.quantized]
            ),
        ],
        "signature": str(own.signature()),
        "evaluation": {
            "text": asked.corpus,
            "source": asked.source,
            "split": asked.split,
            "parallel": asked.parallel,
            "task": asked.task,
            "asked": TASK_NAMES[asked.task],
            "documents": len(own.documents.lang),
            "tokens": int(own.documents.tokens.sum()),
            "budget": asked.tokens,
            "sequence": asked.sequence,
            "seed": asked.seed,
            "hashes": dict(asked.hashes),
        },
        "calibration": None
        if plan is None or plan.calibration is None
        else {
            "text": plan.calibration.corpus,
            "source": plan.calibration.source,
            "budget": plan.calibration.tokens,
            "sequence": plan.calibration.sequence,
            "seed": plan.calibration.seed,
            "hashes": dict(plan.calibration.hashes),
        },
        "policy": None if plan is None else {"name": plan.policy, "settings": dict(plan.settings)},
        "weights": {} if plan is None else dict(plan.languages),
        "run": None if sources.run is None else dict(sources.run.settings),
        "files": dict(sources.files),
        "versions": _versions_of(sources),
    }


def notes(sources: Sources) -> list[dict[str, str]]:
    """Returns every warning and fall-back once, with its origin."""
    found = dict.fromkeys(_said(sources))
    first: dict[str, str] = {}
    for source, text in found:
        first.setdefault(text, source)
    return [{"from": source, "text": text} for text, source in first.items()]


def _said(sources: Sources) -> Iterator[tuple[str, str]]:
    for method in sources.methods:
        own = method.scores
        yield from ((f"evaluation of {method.name}", note) for note in (*own.notes, *own.interval_notes))
    if sources.audit is not None:
        yield from (("audit", note) for note in sources.audit.model.notes)
    if sources.plan is not None:
        yield from (("plan", note) for note in sources.plan.notes)
        yield from ((f"layer {each.name}", note) for each in sources.plan.outcomes for note in each.notes)
    if sources.sweep is not None:
        yield from (("widths", note) for note in sources.sweep.notes)
    if sources.run is not None:
        yield from (("run", note) for note in sources.run.notes)


def _versions_of(sources: Sources) -> dict[str, str]:
    """Returns the versions that made the report, and those of the run if they differ."""
    here = versions()
    then = {} if sources.run is None else sources.run.versions
    other = [f"{name} {then[name]:.40}" for name in (*here, THREADS) if name in then and then[name] != here.get(name)]
    return here | ({"measured with": ", ".join(other)} if other else {})
