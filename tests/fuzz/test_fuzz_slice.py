"""A slice of the fuzzing that runs with the other tests; `make fuzz` runs for minutes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Target, run, run_case, sentence_fault
from opening_targets import tokenizers
from tokenizer_children import CHILDREN

from fairbits.models.untrusted.tokenizer_sandbox import run_child
from fuzz import all_targets

CASES, SECONDS, SEED = 1500, 20, 0


@pytest.fixture(autouse=True, scope="module")
def children() -> Iterator[None]:
    yield
    CHILDREN.end()


def test_no_reader_fails(tmp_path: Path) -> None:
    tally = run(
        all_targets(), place=tmp_path / "case", saved=tmp_path / "saved", seed=SEED, cases=CASES, seconds=SECONDS
    )
    assert tally.total > 200
    assert tally.failures == [], "\n".join((failure / "why.txt").read_text() for failure in tally.failures[:3])
    both = {kind: sum(counts[kind] for counts in tally.counts.values()) for kind in ("accepted", "refused")}
    assert min(both.values()) > tally.total / 20  # it tries neither only what is right nor only what is wrong


def test_the_harness_sees_what_fails(tmp_path: Path) -> None:
    def crash(_: Path) -> str:
        raise KeyError("languages")

    kinds = {
        name: run_case(Target(name, lambda _: {}, read), {"f": b""}, tmp_path / "case")[0]
        for name, read in (
            ("crash", crash),
            ("fine", lambda place: "accepted" if (place / "f").exists() else "failed"),
        )
    }
    assert kinds == {"crash": "failed", "fine": "accepted"}
    assert sentence_fault("a\x1b[2J")
    assert sentence_fault("")
    assert not sentence_fault("x.json is damaged: a is missing")


def test_tokenizers_are_tried_by_forked_children_as_by_new_ones(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    huge = tokenizers()[0].replace(b'"c": 4', b'"c": 4000000000')
    for content in (*tokenizers(), huge, b"{}"):
        file.write_bytes(content)
        one, other = CHILDREN.try_file(file), run_child(file)
        assert one == other
        assert (one[0] == 0) == (content in tokenizers())
