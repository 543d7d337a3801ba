"""Report: its content (all numbers and text before rendering), its three formats, and its files for the Hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import read_object, to_json
from fairbits.core.version import __version__
from fairbits.reports import figures
from fairbits.reports.headline import headline
from fairbits.reports.hub_card import HubFacts, facts_of, hub_files, write_repository
from fairbits.reports.markdown import card
from fairbits.reports.page import page
from fairbits.reports.provenance import notes, provenance
from fairbits.reports.report_languages import language_rows, scales_of
from fairbits.reports.sources import Sources

SCHEMA = "fairbits.report/2"


def content(sources: Sources) -> dict[str, Any]:
    """Returns everything that a report shows, for JSON; parts that were not measured are None."""
    after = sources.after
    rows = language_rows(sources)
    codes = [row["code"] for row in rows]
    audit, plan, sweep = sources.audit, sources.plan, sources.sweep
    return {
        "schema": SCHEMA,
        "fairbits": __version__,
        "model": after.reference.target,
        "family": None if plan is None else plan.family,
        "methods": [
            {"name": each.name, "target": own.target, "size_bytes": own.size_bytes}
            for each in sources.methods
            for own in [each.scores.quantized]
        ],
        "units": list(scales_of(sources)),
        "headline": headline(sources),
        "languages": rows,
        "blocks": None if audit is None else figures.blocks(audit),
        "patterns": None if audit is None else figures.patterns(audit, codes),
        "causes": None if audit is None else figures.causes(audit, codes),
        "experts": None if audit is None else figures.experts(audit, codes),
        "prediction": None if audit is None else figures.prediction(sources, audit, languages=codes),
        "checklist": None if audit is None else figures.checklist(audit),
        "certificate": None if audit is None else figures.certificate(audit),
        "allocation": None if plan is None else figures.allocation(plan),
        "curves": None if sweep is None else figures.curves(sweep, codes),
        "provenance": provenance(sources),
        "notes": notes(sources),
    }


FORMATS = ("html", "md", "json")


@dataclass(frozen=True, eq=False)
class Report:
    """A report on the measured cost of quantization."""

    content: Mapping[str, Any]

    @classmethod
    def of(cls, sources: Sources) -> "Report":
        """Returns the report on some results."""
        return cls(content(sources))

    def html(self) -> str:
        """Returns a self-contained HTML page."""
        return page(self.content)

    def markdown(self) -> str:
        """Returns a section for a model card, in Markdown."""
        return card(self.content)

    def json(self) -> str:
        """Returns the content as JSON."""
        return to_json(self.content).decode()

    def save(self, path: str | Path) -> None:
        """Writes the report in the format given by the file name: .html, .md or .json."""
        target = check_writable(path, example="report.html")
        write_files({target: self.render(format_of(target)).encode()})

    def save_for_hub(
        self,
        directory: str | Path,
        *,
        base_model: str | None = None,
        license: str | None = None,
        repository: str | None = None,
    ) -> HubFacts:
        """Writes README.md, recipe.yaml and report.html next to a model, and returns what the card says of it.

        `base_model` and `repository` are ids on the Hub, OWNER/NAME; `license` is the id of a licence there.
        """
        place = Path(directory)
        if not place.is_dir():
            raise InputError(f"{place} is not a directory; give that of the quantized model, which will be uploaded")
        stored = place / "config.json"
        config = read_object(stored, finite=False) if stored.is_file() else {}
        facts = facts_of(self.content, config, base_model=base_model, license=license, repository=repository)
        write_repository(hub_files(self.content, facts), place)
        return facts

    def render(self, form: str) -> str:
        """Returns the report as html, md or json."""
        return {"html": self.html, "md": self.markdown, "json": self.json}[form]()


def format_of(path: str | Path) -> str:
    """Returns the format given by a file name.

    >>> format_of("report.html")
    'html'
    """
    form = Path(path).suffix[1:].lower()
    if form not in FORMATS:
        raise InputError(f"{path} does not end in .html, .md or .json, which a report can be written as: rename it")
    return form


def check_name(path: str | Path, form: str) -> None:
    """Raises unless a file name ends in the given format."""
    if format_of(path) != form:
        raise InputError(f"{path} would hold {form}; the name must end in .{form}: rename it, or choose another format")
