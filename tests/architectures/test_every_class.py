"""Every language model class in transformers: it works, or it is refused with one sentence before any work."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from class_trial import Outcome, try_class
from small_models import language_models

from fairbits import Checkpoint

RESULTS = Path(__file__).parents[2] / "build/architectures.json"
SECONDS = 240
ENOUGH = 0.9
"""The share of causal classes that must work, of those that could be built."""


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with a small multilingual tokenizer."""
    directory = tmp_path_factory.mktemp("tokenizer")
    Checkpoint("embedded:tiny").tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def outcomes() -> Iterator[list[Outcome]]:
    """Returns the list of outcomes, which is written in the end."""
    found: list[Outcome] = []
    yield found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([each.as_data() for each in found], indent=1), encoding="utf-8")


@pytest.fixture(autouse=True)
def _limited() -> Iterator[None]:
    """Ends a test that hangs."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("kind", "family", "name"), list(language_models()))
def test_class(kind: str, family: str, name: str, tokenizer: Path, tmp_path: Path, outcomes: list[Outcome]) -> None:
    outcome = try_class(kind, family, name, tokenizer=tokenizer, directory=tmp_path)
    outcomes.append(outcome)
    assert outcome.stage in ("works", "not built", "open", "audit", "quantize"), outcome
    assert "\n" not in outcome.reason


def test_most_causal_classes_work(outcomes: list[Outcome]) -> None:
    causal = {each.name: each.stage for each in outcomes if each.kind == "causal" and each.stage != "not built"}
    if len(causal) < 100:
        pytest.skip("only some of the classes were tried")
    assert sum(stage == "works" for stage in causal.values()) / len(causal) >= ENOUGH, causal
