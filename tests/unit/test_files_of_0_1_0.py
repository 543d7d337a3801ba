"""Files that fairbits 0.1.0 wrote, of a small random Llama and two languages, are read and keep their bytes."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fairbits.measure.audit.audit_file import AUDIT
from fairbits.measure.scores.scores import Scores
from fairbits.quantize.plan import Plan
from fairbits.records import Kind, to_json
from fairbits.reports.files import RUN, SWEEP
from fairbits.verbs.comparison_file import COMPARE

SAVED = Path(__file__).parents[1] / "data" / "0.1.0"
LANGUAGES = {"eng_Latn", "heb_Hebr"}


def then(content: bytes) -> bytes:
    """Returns what is written now with the version of then."""
    data = json.loads(content)
    data["fairbits"] = "0.1.0"
    return to_json(data)


@pytest.mark.parametrize("name", ["plan.json", "plan-learned.json"])
def test_plans(name: str) -> None:
    found = Plan.load(SAVED / name)
    assert then(found.as_bytes()) == (SAVED / name).read_bytes()
    assert set(found.languages) == LANGUAGES
    assert len(found.outcomes) == len(found.quantized) == 14
    assert (found.learned is not None) == (found.learning is not None) == ("learned" in name)


def test_scores() -> None:
    found = Scores.load(SAVED / "scores.json")
    assert json.loads(found.as_bytes()) | {"fairbits": "0.1.0"} == json.loads((SAVED / "scores.json").read_bytes())
    assert set(found.languages) == set(found.kl) == LANGUAGES


@pytest.mark.parametrize(
    ("name", "kind", "languages"),
    [
        ("audit.json", AUDIT, lambda found: found.languages),
        ("run.json", RUN, lambda found: found.settings["languages"]),
        ("sweep.json", SWEEP, lambda found: found.damage),
        ("compare.json", COMPARE, lambda found: found.entries[0].damage),
    ],
)
def test_what_reports_read(name: str, kind: Kind[Any], languages: Callable[[Any], Any]) -> None:
    found = kind.read(SAVED / name)
    assert then(to_json(kind.stamp(asdict(found)))) == (SAVED / name).read_bytes()
    assert set(languages(found)) == LANGUAGES
