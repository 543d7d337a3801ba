"""The content of a report: all numbers and words, before they are drawn."""

from typing import Any

from fairbits.reports import figures
from fairbits.reports.headline import headline
from fairbits.reports.languages import language_rows, units_of
from fairbits.reports.provenance import notes, provenance
from fairbits.reports.sources import Sources
from fairbits.version import __version__

SCHEMA = "fairbits.report/1"


def content(sources: Sources) -> dict[str, Any]:
    """Returns everything that a report shows, for JSON; a part that was not measured is None."""
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
        "units": list(units_of(sources)),
        "headline": headline(sources),
        "languages": rows,
        "blocks": None if audit is None else figures.blocks(audit),
        "patterns": None if audit is None else figures.patterns(audit, codes),
        "causes": None if audit is None else figures.causes(audit, codes),
        "prediction": None if audit is None else figures.prediction(sources, audit, languages=codes),
        "checklist": None if audit is None else figures.checklist(audit),
        "certificate": None if audit is None else figures.certificate(audit),
        "allocation": None if plan is None else figures.allocation(plan),
        "curves": None if sweep is None else figures.curves(sweep, codes),
        "provenance": provenance(sources),
        "notes": notes(sources),
    }
