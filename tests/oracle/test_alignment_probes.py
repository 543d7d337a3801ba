"""Alignment, probes and effective dimension of a real model, computed a second time in plain numpy from its states."""

import numpy as np
import pytest

from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.alignment import measure_alignment
from fairbits_research.experiments.document_states import DocumentStates, document_states, parallel_text
from fairbits_research.experiments.gateway_assumptions import effective_dimension, language_share
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.probes import LANGUAGE, SECTION, probe_states
from fairbits_research.theory.mediation_theorem import fit_coefficients

LANGUAGES = "arb", "eng", "fra", "heb", "spa"
LAYER = 3


@pytest.fixture(scope="module")
def states(four_block_embedded: object) -> DocumentStates:  # noqa: ARG001
    whole = udhr(LANGUAGES)
    splits = [
        {code: tuple(text[:60] for text in texts[-6:]) for code, texts in split.items()}
        for split in (whole.calibration, whole.evaluation)
    ]
    setting = Setting(text=Corpus("beginnings", *splits, parallel=True), tokens=400, calibration=400, device="cpu")
    lab = Laboratory(setting).lab()
    return document_states(lab, parallel_text(lab))


def rows_of(states: DocumentStates, code: str) -> np.ndarray:
    rows = np.flatnonzero(states.lang == code)
    return states.means[LAYER][rows[np.argsort(states.document[rows])]]


def test_retrieval_and_cosine_of_one_language(states: DocumentStates) -> None:
    here, there = (rows_of(states, code) for code in ("fra_Latn", "eng_Latn"))
    n = len(here)
    u, v = here - here.sum(0) / n, there - there.sum(0) / n
    similar = [[float(a @ b / np.sqrt((a @ a) * (b @ b))) for b in v] for a in u]
    hits = [max(range(n), key=lambda j: row[j]) == i for i, row in enumerate(similar)]
    margins = [row[i] - sum(row[j] for j in range(n) if j != i) / (n - 1) for i, row in enumerate(similar)]
    measured = measure_alignment(states)
    place = measured.languages.index("fra_Latn")
    assert measured.hits[LAYER, place].tolist() == hits
    assert measured.true[LAYER, place] - measured.others[LAYER, place] == pytest.approx(margins)


def test_a_probe_fitted_without_each_group(states: DocumentStates) -> None:
    """The primal ridge regression with a constant column, fitted again for every group that is left out."""
    codes = sorted(set(states.lang.tolist()))
    stacked = np.concatenate([rows_of(states, code) for code in codes])
    sections = len(stacked) // len(codes)
    language, section = np.repeat(np.arange(len(codes)), sections), np.tile(np.arange(sections), len(codes))
    probed = probe_states(states)
    for name, labels, groups in ((LANGUAGE, language, section), (SECTION, section, language)):
        X = stacked.copy()
        if name == SECTION:
            for code in range(len(codes)):
                X[language == code] -= X[language == code].mean(axis=0)
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        X = np.column_stack([X / np.sqrt((X**2).sum(axis=1).mean()), np.full(len(X), np.sqrt(10.0))])
        right = []
        for row in range(len(X)):
            seen = groups != groups[row]
            normal = X[seen].T @ X[seen] + 1.0 * np.eye(X.shape[1])
            weights = np.linalg.solve(normal, X[seen].T @ np.eye(labels.max() + 1)[labels[seen]])
            right.append((X[row] @ weights).argmax() == labels[row])
        assert probed[name].hits[LAYER].ravel().mean() == pytest.approx(np.mean(right))


def test_the_effective_dimension_by_pairs_of_tokens(states: DocumentStates) -> None:
    X, sections = states.tokens[LAYER][::9], states.document[states.token_rows[LAYER]][::9]
    X = X - X.mean(axis=0)
    products = [float(X[i] @ X[j]) ** 2 for i in range(len(X)) for j in range(len(X)) if sections[i] != sections[j]]
    expected = np.mean([float(x @ x) for x in X]) ** 2 / np.mean(products)
    assert effective_dimension(states.tokens[LAYER][::9], sections).value == pytest.approx(expected)


def test_the_variance_between_languages_coordinate_by_coordinate(states: DocumentStates) -> None:
    groups = [rows_of(states, code) for code in sorted(set(states.lang.tolist()))]
    together = np.concatenate(groups)
    shares = []
    for column in range(together.shape[1]):
        between = sum(len(g) * (g[:, column].mean() - together[:, column].mean()) ** 2 for g in groups)
        shares.append(between / ((together[:, column] - together[:, column].mean()) ** 2).sum())
    assert language_share(states.by_language(LAYER)).value == pytest.approx(np.mean(shares))


def test_coefficients_through_the_origin() -> None:
    rng = np.random.default_rng(0)
    T, A, R, D = rng.uniform(0.2, 1, (4, 9))
    model = fit_coefficients(T, A, R=R, D=D)
    assert model.beta_ta == pytest.approx(np.linalg.lstsq(T[:, None], A, rcond=None)[0][0])
    assert model.beta_ar == pytest.approx(np.linalg.lstsq(A[:, None], R, rcond=None)[0][0])
    assert model.gamma == pytest.approx(np.linalg.lstsq(1 / R[:, None], D, rcond=None)[0][0])
