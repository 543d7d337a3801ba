"""Languages that can share an overlay."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.serve.overlays.builder import OverlayBuilder, best_count, clusters

values = st.integers(0, 3)  # few, so that languages are often alike


@settings(max_examples=100, deadline=None)
@given(table=st.lists(st.tuples(values, values), min_size=1, max_size=9))
def test_clusters_are_nested_and_have_every_language_once(table: list[tuple[int, int]]) -> None:
    patterns = {chr(97 + i): np.repeat(each, 10).astype(float) for i, each in enumerate(table)}
    found = [clusters(patterns, count) for count in range(1, len(patterns) + 1)]
    for count, each in enumerate(found, start=1):
        assert len(each) == count
        assert sorted(code for cluster in each for code in cluster) == sorted(patterns)
        sizes = [len(cluster) for cluster in each]
        assert sizes == sorted(sizes, reverse=True)
    for coarse, fine in itertools.pairwise(found):
        assert all(any(set(small) <= set(large) for large in coarse) for small in fine)
    assert clusters(patterns, len(patterns) + 5) == tuple((code,) for code in patterns)


def test_languages_that_are_alike_are_together() -> None:
    rng = np.random.default_rng(0)
    kinds = {"a": 0.0, "b": 3.0, "c": -3.0}
    patterns = {f"{kind}{i}": mean + 0.1 * rng.standard_normal(50) for i in range(3) for kind, mean in kinds.items()}
    assert set(clusters(patterns, 3)) == {tuple(f"{kind}{i}" for i in range(3)) for kind in kinds}


def test_what_all_have_in_common_parts_no_languages() -> None:
    rng = np.random.default_rng(1)
    patterns = {str(i): rng.standard_normal(20) for i in range(6)}
    moved = {code: each + 100 * np.arange(20) for code, each in patterns.items()}
    assert all(clusters(patterns, count) == clusters(moved, count) for count in range(1, 7))


def test_patterns_say_which_inputs_matter_to_a_language(builder: OverlayBuilder) -> None:
    patterns = builder.patterns()
    assert tuple(patterns) == builder.text.languages
    overlay_base = builder.overlay_base
    seen = {str(overlay_base.weight(name).sees): overlay_base.weight(name).shape[1] for name in overlay_base.schemes}
    for each in patterns.values():
        assert each.shape == (sum(seen.values()),)
        assert np.isfinite(each).all()
        starts = np.cumsum([0, *seen.values()])
        assert all(abs(each[a:b].mean()) < 1e-9 for a, b in itertools.pairwise(starts))
    assert len({each.tobytes() for each in patterns.values()}) == len(patterns)


@pytest.mark.parametrize(("spare", "count"), [(0.0, 4), (0.02, 2), (1.0, 1)])
def test_fewer_clusters_are_taken_where_the_worst_language_loses_little(spare: float, count: int) -> None:
    damages = {1: {"a": 0.3, "b": 0.1}, 2: {"a": 0.2, "b": 0.1}, 4: {"a": 0.1, "b": 0.199}}
    assert best_count(damages, spare=spare) == count
