"""Scores made of drawn numbers, without any model."""

from collections.abc import Callable

import numpy as np
import pytest

from fairbits.measure.scores.scores import DocumentScores, EvaluationSetting, Identity, Scores


def drawn_scores(
    damage: dict[str, float],
    *,
    documents: int = 40,
    noise: float = 5.0,
    seed: int = 0,
    target: str = "quantized",
    parallel: bool = True,
    tokens: int = 100,
) -> Scores:
    """Returns scores with the given added nats per document, on average, on documents of 100 tokens and 400 bytes."""
    rng, count = np.random.default_rng(seed), len(damage) * documents
    lang = np.repeat(list(damage), documents)
    number = np.tile(np.arange(documents), len(damage)) if parallel else np.arange(count)
    before = rng.uniform(300, 500, count)
    added = np.repeat(list(damage.values()), documents) + rng.normal(0, noise, count)
    table = DocumentScores(
        lang=lang,
        document=number,
        tokens=np.full(count, float(tokens)),
        bytes=np.full(count, 400.0),
        nll_reference=before,
        nll_quantized=before + added,
        kl=rng.uniform(1, 2, count),
        flips=rng.integers(0, 10, count).astype(float),
    )
    question = EvaluationSetting("causal", "drawn", "evaluation", parallel, dict.fromkeys(damage, "abc"), 4096, 512, 0)
    return Scores(
        quantized=Identity(target, "f" * 64, 1000),
        reference=Identity("reference", "e" * 64, 4000),
        question=question,
        languages=tuple(damage),
        documents=table,
        kl_p99=dict.fromkeys(damage, 0.25),
        notes=("drawn at random",),
    )


@pytest.fixture
def draw() -> Callable[..., Scores]:
    """Returns the function that draws scores."""
    return drawn_scores
