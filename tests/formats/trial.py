"""What `fairbits.evaluate` makes of written checkpoints, three ways, beside the right value.

    python tests/formats/trial.py OUT DIRECTORY …

writes OUT/NAME.json for each. The unquantized model is beside it: `base`, `base-moe` or `base-NAME`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import independent

import fairbits as fb
from fairbits.core.errors import FairbitsError
from fairbits.evaluation import hidden_states as features
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL
from fairbits.text.corpus import Corpus, TextRequest

ENG = [f"On day {i} the wind came from the north{' and brought rain' * (i % 3)}." for i in range(8)]
HEB = [f"ביום {i} באה הרוח מצפון{' והביאה גשם' * (i % 3)}." for i in range(8)]
CORPUS = Corpus("weather", {}, {"eng": ENG, "heb": HEB}, parallel=True)
REQUEST = TextRequest("evaluation", 8192, 512, 0)


def try_format(directory: Path) -> dict[str, object]:
    """Returns the KL in nats per token, or why there is none, of each way."""
    names = (f"base-{directory.name}", "base-moe" if "moe" in directory.name else "base", "base")
    base = next(base for name in names if (base := directory.with_name(name)).exists())
    written = next(directory.glob("*.gguf"), directory)
    outcome: dict[str, object] = {"name": directory.name, "notes": ""}
    for way, whole in (("whole", True), ("blocks", False)):
        with patch.object(features, "fits_whole", lambda *_, whole=whole: whole):
            outcome[way] = _outcome(lambda: _evaluated(written, base, outcome))
    outcome["reference"] = _outcome(lambda: _as_reference(written, base))
    plain = independent.load(base)
    quantized = _right(lambda: independent.load(directory))
    pairs = {"right": (base, plain, quantized), "right reference": (written, quantized, plain)}
    for way, (reads, before, after) in pairs.items():
        outcome[way] = (
            quantized
            if isinstance(quantized, str)
            else _right(
                lambda reads=reads, before=before, after=after: independent.divergence(windows_of(reads), before, after)
            )
        )
    return outcome


def _evaluated(written: Path, base: Path, outcome: dict[str, object]) -> float:
    scores = fb.evaluate(written, reference=base, text=CORPUS, device="cpu")
    outcome["notes"] = " ".join(note for note in scores.notes if "quantized:" in note or "memory" in note)
    return float(scores.documents.kl.sum() / scores.documents.tokens.sum())


def _as_reference(written: Path, base: Path) -> float:
    """Returns the KL of the unquantized model from the quantized one, which `evaluate` takes for a mistake."""
    with patch.object(sys.modules["fairbits.api.evaluate"], "check_not_swapped", lambda *_: None):
        scores = fb.evaluate(base, reference=written, text=CORPUS, device="cpu")
    assert any(note.startswith("reference: the reference is itself quantized") for note in scores.notes), scores.notes
    return float(scores.documents.kl.sum() / scores.documents.tokens.sum())


def windows_of(model: Path) -> list[SimpleNamespace]:
    """Returns the tokens that a model reads, and where one is predicted."""
    checkpoint = fb.Checkpoint(model)
    text = tokenize_corpus(checkpoint.plain or checkpoint, CORPUS, request=REQUEST, least=1)
    return [
        SimpleNamespace(ids=window.main.ids, asked=[label != NO_LABEL for label in window.main.labels])
        for window in text.windows
    ]


def _outcome(compute: Callable[[], float]) -> float | str:
    try:
        return compute()
    except FairbitsError as problem:
        return f"refused: {problem}"
    except Exception as problem:
        return f"crash: {type(problem).__name__}: {problem}"


def _right(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as problem:  # what nobody has written an independent reader for
        return f"{type(problem).__name__}: {problem}"


def main() -> None:
    """Tries the formats of the command line."""
    out, *directories = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for directory in directories:
        outcome = try_format(directory)
        (out / f"{directory.name}.json").write_text(json.dumps(outcome, indent=1), encoding="utf-8")
        print(directory.name, flush=True)


if __name__ == "__main__":
    main()
