"""What a small run leaves, and the content of its report."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbits.api.audit import audit
from fairbits.api.report import run_sources
from fairbits.auditing.audit_file import AUDIT
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.reports.content import content
from fairbits.reports.sources import Sources


@pytest.fixture(scope="session")
def sources(finished_run: Path) -> Sources:
    """Returns what a report of a run is made from."""
    return run_sources(finished_run)


@pytest.fixture(scope="session")
def report_content(sources: Sources) -> dict[str, Any]:
    """Returns the content of a report of a run; a test that changes it copies it first."""
    return content(sources)


@pytest.fixture(scope="session")
def routed(
    sources: Sources, reading_model: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Sources:
    """Returns the same with the experts of an audit of a small Mixtral in the same languages."""
    path = tmp_path_factory.mktemp("routed") / "audit.json"
    audit(reading_model("mixtral"), languages=sources.after.languages, tokens=64, scheme=Scheme(3, "channel")).save(
        path
    )
    assert sources.audit is not None
    return replace(sources, audit=replace(sources.audit, experts=AUDIT.read(path).experts))
