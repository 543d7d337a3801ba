"""Scores made of drawn numbers, without any model."""

from collections.abc import Callable

import numpy as np
import pytest

from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity


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
    """Returns scores with the given added nats and divergence per document, on average.

    Documents have 100 tokens and 400 bytes. Divergence is drawn from a gamma distribution, as it is never negative.
    """
    rng, count = np.random.default_rng(seed), len(damage) * documents
    lang = np.repeat(list(damage), documents)
    number = np.tile(np.arange(documents), len(damage)) if parallel else np.arange(count)
    before = rng.uniform(300, 500, count)
    mean = np.repeat(list(damage.values()), documents)
    added = mean + rng.normal(0, noise, count)
    around = np.maximum(mean, 0.01)
    table = DocumentScores(
        lang=lang,
        document=number,
        tokens=np.full(count, float(tokens)),
        bytes=np.full(count, 400.0),
        nll_reference=before,
        nll_quantized=before + added,
        kl=rng.gamma((around / noise) ** 2, noise**2 / around),
        flips=rng.integers(0, 10, count).astype(float),
    )
    question = EvaluationSetting(
        "causal", "drawn", "evaluation", parallel, dict.fromkeys(damage, "0" * 64), 4096, 512, 0
    )
    return Scores(
        quantized=Identity(target, "f" * 64, 1000),
        reference=Identity("reference", "e" * 64, 4000),
        setting=question,
        languages=tuple(damage),
        documents=table,
        percentiles=dict.fromkeys(damage, TokenPercentiles(0.25, 0.01, 0.12, 0.4, -0.05, -1.5)),
        notes=("drawn at random",),
    )


@pytest.fixture
def draw() -> Callable[..., Scores]:
    """Returns the function that draws scores."""
    return drawn_scores
