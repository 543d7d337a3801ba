"""Frames of languages with chosen damage, shared by the tests of statistics."""

import numpy as np
import pytest

from fairbits.stats.frame import LanguageFrame


def records(damage=(0.02, 0.03, 0.06), *, documents=40, parallel=True, seed=0, noise=0.02):
    """Returns columns of documents whose added loss is about `damage` bits per byte in the languages l0, l1, …."""
    rng = np.random.default_rng(seed)
    size = len(damage) * documents
    size_bytes = rng.integers(100, 400, size)
    reference = 0.7 * size_bytes
    delta = np.repeat(damage, documents) + rng.normal(0, noise, size)
    return {
        "lang": np.repeat([f"l{i}" for i in range(len(damage))], documents),
        "document": np.tile(np.arange(documents), len(damage)) if parallel else np.arange(size),
        "nats": (reference + np.log(2) * size_bytes * delta) - reference,
        "tokens": size_bytes / 4,
        "size_bytes": size_bytes,
    }


def frame(**options):
    """Returns a frame of such documents, with few resamples."""
    settings = {key: options.pop(key) for key in ("unit", "confidence", "resamples") if key in options}
    return LanguageFrame.from_nats(**records(**options), **{"resamples": 1000, **settings})


def uneven_frame(documents, *, shared=False, seed=0):
    """Returns damage around 1, 2, … of languages with this many documents; `shared`: documents are parallel."""
    rng = np.random.default_rng(seed)
    lang = np.repeat(list(documents), list(documents.values()))
    document = np.concatenate([np.arange(n) for n in documents.values()]) if shared else np.arange(len(lang))
    level = np.repeat(np.arange(1.0, len(documents) + 1), list(documents.values()))
    return LanguageFrame(lang, document, values=rng.normal(level, 0.1), weights=np.ones(len(lang)), resamples=1000)


@pytest.fixture(scope="session")
def make_records():
    return records


@pytest.fixture(scope="session")
def make_frame():
    return frame


@pytest.fixture(scope="session")
def make_uneven_frame():
    return uneven_frame
