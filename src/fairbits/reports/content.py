"""Report: its content (all numbers and text before rendering), its three formats, and its files for the Hub."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import read_object, to_json
from fairbits.core.version import __version__, versions
from fairbits.evaluation.setting import TASK_NAMES
from fairbits.reports import figures
from fairbits.reports.headline import headline
from fairbits.reports.hub_card import HubFacts, collect_facts, config_widths, hub_files, write_repository
from fairbits.reports.markdown import card
from fairbits.reports.page import page
from fairbits.reports.report_languages import damage_scales, group_rows, language_rows
from fairbits.reports.sources import Sources

SCHEMA = "fairbits.report/3"
FORMATS = ("html", "md", "json")
THREADS = "torch threads"  # the number of threads of a run: floating-point sums depend on it


def content(sources: Sources) -> dict[str, Any]:
    """Returns everything that a report shows, for JSON; parts that were not measured are None."""
    after = sources.after
    rows = language_rows(sources)
    codes = [row["code"] for row in rows]
    audit, plan, sweep = sources.audit, sources.plan, sources.sweep
    stored = config_widths(sources.config)
    return {
        "schema": SCHEMA,
        "fairbits": __version__,
        "model": after.reference.target,
        "family": None if plan is None else plan.family,
        "methods": [
            {"name": method.name, "target": model.target, "size_bytes": model.size_bytes, "kv_cache": model.kv_cache}
            for method in sources.methods
            for model in [method.scores.quantized]
        ],
        "stored": asdict(stored) | {"bits": list(stored.bits)},
        "measurement": None
        if after.measurement is None
        else asdict(after.measurement) | {"words": after.measurement.notes},
        "units": damage_scales(sources),
        "headline": headline(sources),
        "generated": None if after.generated is None else after.generated.as_data(),
        "release": None if sources.verdict is None else sources.verdict.as_data(),
        "languages": rows,
        "groups": group_rows(sources),
        "blocks": None if audit is None else figures.blocks(audit),
        "patterns": None if audit is None else figures.patterns(audit, codes),
        "causes": None if audit is None else figures.causes(audit, codes),
        "experts": None if audit is None else figures.expert_use(audit, codes),
        "prediction": None if audit is None else figures.prediction(sources, audit, languages=codes),
        "checklist": None if audit is None else figures.checklist(audit),
        "certificate": None if audit is None else figures.certificate(audit),
        "allocation": None if plan is None else figures.allocation(plan),
        "curves": None if sweep is None else figures.curves(sweep, codes),
        "provenance": _provenance(sources),
        "notes": _notes(sources),
    }


def _provenance(sources: Sources) -> dict[str, Any]:
    scores, setting, plan = sources.after, sources.after.setting, sources.plan
    calibration = None if plan is None else plan.calibration
    methods = [(method.name, method.scores.quantized) for method in sources.methods]
    return {
        "models": [
            {"name": name, "target": model.target, "fingerprint": model.fingerprint}
            for name, model in [("reference", scores.reference), *methods]
        ],
        "signature": str(scores.signature()),
        "evaluation": {
            "text": setting.corpus,
            "source": setting.source,
            "split": setting.split,
            "parallel": setting.parallel,
            "task": setting.task,
            "asked": TASK_NAMES[setting.task],
            "documents": len(scores.documents.lang),
            "tokens": int(scores.documents.tokens.sum()),
            "unit": setting.unit,
            "all_text": setting.all_text,
            **_amounts(setting),
        },
        "calibration": None
        if calibration is None
        else {"text": calibration.corpus, "source": calibration.source, **_amounts(calibration)},
        "policy": None if plan is None else {"name": plan.policy, "settings": dict(plan.settings)},
        "weights": {} if plan is None else dict(plan.languages),
        "run": None if sources.run is None else dict(sources.run.settings),
        "files": dict(sources.files),
        "versions": _versions(sources),
    }


def _amounts(text: Any) -> dict[str, Any]:
    return {"budget": text.tokens, "sequence": text.sequence, "seed": text.seed, "hashes": dict(text.hashes)}


def _notes(sources: Sources) -> list[dict[str, str]]:
    audit, plan, sweep, run = sources.audit, sources.plan, sources.sweep, sources.run
    notes: list[tuple[str, Iterable[str]]] = [
        *(
            (
                f"evaluation of {method.name}",
                (*method.scores.notes, *method.scores.interval_notes, *method.scores.notes_on_flips()),
            )
            for method in sources.methods
        ),
        ("audit", () if audit is None else audit.model.notes),
        ("plan", () if plan is None else plan.notes),
        *((f"layer {layer.name}", layer.notes) for layer in (() if plan is None else plan.results)),
        ("widths", () if sweep is None else sweep.notes),
        ("run", () if run is None else run.notes),
    ]
    origins: dict[str, str] = {}
    for origin, texts in notes:
        for text in texts:
            origins.setdefault(text, origin)
    return [{"from": origin, "text": text} for text, origin in origins.items()]


def _versions(sources: Sources) -> dict[str, str]:
    here = versions()
    then = {} if sources.run is None else sources.run.versions
    changed = [f"{name} {then[name]:.40}" for name in (*here, THREADS) if name in then and then[name] != here.get(name)]
    return here | ({"measured with": ", ".join(changed)} if changed else {})


@dataclass(frozen=True, eq=False)
class Report:
    """A report on the measured cost of quantization."""

    content: Mapping[str, Any]

    @classmethod
    def from_sources(cls, sources: Sources) -> "Report":
        return cls(content(sources))

    def html(self) -> str:
        return page(self.content)

    def markdown(self) -> str:
        return card(self.content)

    def json(self) -> str:
        return to_json(self.content).decode()

    def save(self, path: str | Path) -> None:
        target = check_writable(path, example="report.html")
        write_files({target: self.render(report_format(target)).encode()})

    def save_for_hub(
        self,
        directory: str | Path,
        *,
        base_model: str | None = None,
        license: str | None = None,
        repository: str | None = None,
    ) -> HubFacts:
        """Writes README.md, recipe.yaml and report.html next to a model, and returns what the card says of it."""
        place = Path(directory)
        if not place.is_dir():
            raise InputError(f"{place} is not a directory; give the directory of the quantized model to upload")
        stored = place / "config.json"
        config = read_object(stored, finite=False) if stored.is_file() else {}
        facts = collect_facts(self.content, config, base_model=base_model, license=license, repository=repository)
        write_repository(hub_files(self.content, facts), place)
        return facts

    def render(self, form: str) -> str:
        return {"html": self.html, "md": self.markdown, "json": self.json}[form]()


def report_format(path: str | Path) -> str:
    """Returns the format given by a file name: html, md or json."""
    form = Path(path).suffix[1:].lower()
    if form not in FORMATS:
        raise InputError(f"{path} does not end in .html, .md or .json, the formats of a report: rename it")
    return form


def check_name(path: str | Path, form: str) -> None:
    """Raises unless a file name ends in the given format."""
    if report_format(path) != form:
        raise InputError(f"{path} would hold {form}; the name must end in .{form}: rename it, or choose another format")
