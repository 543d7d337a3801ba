"""Every language model class in transformers: it works, or it is refused with one sentence before any work."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from class_trial import try_class
from small_models import language_models

from fairbits import Checkpoint

RESULTS = Path(__file__).parents[2] / "build/architectures"
SECONDS = 240
"""The most that a class may compute; time that other work takes from it does not count."""


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with a small multilingual tokenizer, which also knows how to mask a token."""
    directory = tmp_path_factory.mktemp("tokenizer")
    embedded = Checkpoint("embedded:tiny").tokenizer()
    embedded.add_special_tokens({"mask_token": "<mask>"})
    embedded.save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def _limited() -> Iterator[None]:
    """Ends a test that computes without end."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s of computing")

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("kind", "family", "name"), list(language_models()))
def test_class(kind: str, family: str, name: str, tokenizer: Path, tmp_path: Path) -> None:
    file = RESULTS / f"{kind}-{family}-{name}.json"
    file.unlink(missing_ok=True)
    outcome = try_class(kind, family, name, tokenizer=tokenizer, directory=tmp_path)
    assert outcome.stage in ("works", "not built", "open", "audit", "quantize"), outcome
    assert "\n" not in outcome.reason
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(outcome.as_data(), indent=1), encoding="utf-8")
