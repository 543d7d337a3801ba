import io
import json
from itertools import pairwise

import pytest
import transformers as t
from rich.console import Console

from fairbits.cli.diff_command import diff_tables, log_bar
from fairbits.core.errors import InputError
from fairbits.core.table import plain, render_tables
from fairbits.kurtosis.diff import ModelDiff, block_pairs, diff
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import weight_moments

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


@pytest.fixture(scope="module")
def outliers(tiny) -> ModelDiff:
    return diff(tiny, Checkpoint("embedded:tiny?outliers=3:125"))


@pytest.fixture(scope="module")
def families(tmp_path_factory) -> tuple[ModelDiff, list[tuple[int, int]]]:
    """Returns BLOOM of 12 blocks beside GPT-NeoX of 5, and the calls of the progress callback."""
    t.logging.disable_progress_bar()
    bloom, neox = tmp_path_factory.mktemp("bloom"), tmp_path_factory.mktemp("neox")
    t.BloomForCausalLM(t.BloomConfig(hidden_size=16, n_layer=12, n_head=2, **VOCAB)).half().save_pretrained(bloom)
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 5, "intermediate_size": 48}
    t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**size, **VOCAB)).save_pretrained(neox)
    seen: list[tuple[int, int]] = []
    return diff(Checkpoint(bloom), Checkpoint(neox), progress=lambda *call: seen.append(call)), seen


def printed(found: ModelDiff) -> str:
    console = Console(file=io.StringIO(), width=80, emoji=False)
    console.print(render_tables(diff_tables(found)))
    return console.file.getvalue()


def test_outliers_change_the_weights_of_one_block_and_no_trait(outliers, tiny) -> None:
    assert outliers.differing == ()
    assert outliers.pairs == tuple((i, i) for i in range(12))
    assert outliers.a.kappa == tuple(block.kappa for block in weight_moments(tiny).blocks)
    assert [i for i in range(12) if outliers.a.kappa[i] != outliers.b.kappa[i]] == [3]
    assert outliers.b.worst == 3
    assert outliers.b.kappa[3] == pytest.approx(125, rel=0.02)
    assert outliers.a.worst == outliers.a.kappa.index(max(outliers.a.kappa)) != 3


def test_traits_that_differ_are_named_and_marked(families) -> None:
    found, _ = families
    assert {"family", "decoder blocks", "width", "activation", "positions", "tied head", "dtype"} <= set(
        found.differing
    )
    assert "norm" not in found.differing
    assert "norm placement" not in found.differing
    assert "rotary base" not in found.differing  # BLOOM has none: nothing to compare
    marked = {line[2:].split("  ")[0].strip() for line in printed(found).splitlines() if line.startswith("≠")}
    assert marked == set(found.differing)


def test_blocks_of_other_depth_stand_side_by_side_by_relative_depth(families) -> None:
    found, _ = families
    assert [pair[0] for pair in found.pairs] == list(range(12))
    assert [pair[1] for pair in found.pairs] == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4]
    assert "blocks of 12 and 5 are matched by relative depth" in found.notes[0]
    assert "relative depth" in " ".join(printed(found).split())


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (24, 24), (24, 12), (12, 24), (16, 24), (5, 3)])
def test_alignment_meets_every_block_in_order(n, m) -> None:
    pairs = block_pairs(n, m)
    assert len(pairs) == max(n, m)
    assert {i for i, _ in pairs} == set(range(n))
    assert {j for _, j in pairs} == set(range(m))
    assert all(one <= other for first, second in pairwise(pairs) for one, other in zip(first, second, strict=True))
    assert pairs == tuple((i, j) for j, i in block_pairs(m, n))


def test_progress_counts_both_models_once(families) -> None:
    found, seen = families
    total = sum(info.nbytes for side in (found.a, found.b) for info in Checkpoint(side.target).tensors.values())
    assert {(stage, whole) for stage, _, whole in seen} == {("reading weights", total)}
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert seen[-1][1] == total


def test_data_are_plain_json_with_provenance(outliers, tiny) -> None:
    data = json.loads(json.dumps(outliers.as_data(), allow_nan=False))
    assert data["schema"] == "fairbits.diff/1"
    assert data["a"]["fingerprint"] == tiny.fingerprint != data["b"]["fingerprint"]
    assert data["b"]["max_kappa_block"] == 3
    assert data["b"]["max_kappa"] == data["b"]["blocks"][3]["kappa"]
    assert "outliers were given" in data["b"]["notes"][0]
    assert "optimizer, learning rate, weight decay, training data cannot be read" in data["notes"][0]
    assert data["a"]["traits"]["positions"] == "alibi"


def test_the_table_fits_80_columns_and_shows_the_outliers(outliers) -> None:
    text = printed(outliers)
    assert max(map(len, text.splitlines())) <= 80
    row = next(line.split() for line in text.splitlines() if line.split()[:2] == ["3", "3"])
    assert row[-1] == "████████"
    assert row[-3] == f"{outliers.b.kappa[3]:.2f}"
    assert "max κ 8.60 in block 2 of 12" in text
    assert "cannot be read from" in text


def test_bars_are_logarithmic() -> None:
    assert [len(plain(log_bar(kappa, 9999.0)).strip()) for kappa in (9, 99, 999, 9999)] == [2, 4, 6, 8]
    assert (log_bar(-1.0, 5.0), log_bar(0.0, 5.0), log_bar(-1.2, -1.0)) == ("", "", "")


def test_names_of_models_cannot_steer_the_terminal(outliers) -> None:
    from dataclasses import replace

    hostile = replace(outliers, a=replace(outliers.a, target="x\x1b[2J[red]"))
    assert "x\\u001b[2J[red]" in printed(hostile)


def test_only_checkpoints_are_compared(tiny) -> None:
    with pytest.raises(InputError, match=r"b is .*embedded:tiny.*must be a Checkpoint"):
        diff(tiny, "embedded:tiny")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="n is 0"):
        block_pairs(0, 3)
