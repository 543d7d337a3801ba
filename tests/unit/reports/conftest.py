"""What a small run leaves, and the content of its report."""

from pathlib import Path
from typing import Any

import pytest

from fairbits.reports import Sources
from fairbits.reports.content import content
from fairbits.verbs.report import sources_of_run


@pytest.fixture(scope="session")
def sources(finished_run: Path) -> Sources:
    """Returns what a report of a run is made from."""
    return sources_of_run(finished_run)


@pytest.fixture(scope="session")
def found(sources: Sources) -> dict[str, Any]:
    """Returns the content of a report of a run; a test that changes it copies it first."""
    return content(sources)
