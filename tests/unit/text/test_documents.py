import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.text.documents import Collector, fold_text, seeded_hash, split_documents

FRA, HEB = "fra_Latn", "heb_Hebr"


@given(
    st.lists(st.text("abc ", min_size=1).filter(str.strip), min_size=2, max_size=30),
    st.floats(0.05, 0.95),
    st.integers(0, 9),
)
def test_split_parts_the_documents_and_puts_equal_ones_on_one_side(texts, share, seed) -> None:
    calibration, evaluation = split_documents({FRA: tuple(texts)}, share, parallel=False, seed=seed)
    assert sorted(calibration[FRA] + evaluation[FRA]) == sorted(texts)
    sides = {fold_text(text) for text in calibration[FRA]}, {fold_text(text) for text in evaluation[FRA]}
    assert not sides[0] & sides[1]
    different = len(sides[0] | sides[1])
    assert abs(len(sides[1]) - share * different) <= 1
    assert different == 1 or (sides[0] and sides[1])


def test_split_of_a_parallel_corpus_is_by_line_and_by_seed() -> None:
    documents = {FRA: tuple(f"f{i}" for i in range(40)), HEB: tuple(f"h{i}" for i in range(40))}
    splits = [split_documents(documents, 0.25, parallel=True, seed=seed) for seed in (0, 0, 1)]
    for calibration, evaluation in splits:
        assert [text[1:] for text in evaluation[FRA]] == [text[1:] for text in evaluation[HEB]]
        assert len(evaluation[FRA]) == 10
        assert [int(text[1:]) for text in calibration[FRA]] == sorted(int(text[1:]) for text in calibration[FRA])
    assert splits[0] == splits[1] != splits[2]


def test_split_of_today_is_the_split_of_tomorrow() -> None:
    _, evaluation = split_documents({FRA: tuple("abcdefgh")}, 0.5, parallel=False, seed=0)
    assert evaluation[FRA] == ("c", "d", "g", "h")


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_share_must_be_a_share(share) -> None:
    with pytest.raises(InputError, match="evaluation_share"):
        split_documents({FRA: ("a",)}, share, parallel=False, seed=0)


def test_all_or_nothing_can_be_evaluation() -> None:
    for share, side in itertools.product((0.0, 1.0), (0, 1)):
        parts = split_documents({FRA: ("a", "b")}, share, parallel=False, seed=0)
        assert len(parts[side][FRA]) == (2 if share == side else 0)


def test_a_hash_depends_on_the_seed_and_all_parts_and_never_changes() -> None:
    hashes = {seeded_hash(*parts) for parts in ((0, 1), (1, 0), (0, "1", 2), (0, 12), (0,))}
    assert len(hashes) == 5
    assert seeded_hash(0, "fra_Latn", 3).hex().startswith("fb0d0b45816ae025")


def test_a_collector_keeps_documents_until_they_reach_the_limit() -> None:
    collector = Collector("x.txt", 6)
    for text in ("été ", " ", "abc", "d"):
        collector.add(text)
    assert (collector.documents, collector.seen, collector.size) == (["été", "", "abc"], 4, 8)
    assert collector.full
