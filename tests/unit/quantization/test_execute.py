import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fairbits.api.make_plan import plan as planned
from fairbits.api.quantize import calibration_text, draft_plan, quantize
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.execute import STATE, execute_plan
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.learned.learn import EVALUATIONS
from fairbits.quantization.plan import Plan
from fairbits.text.included_texts import udhr

NAMES = ("eng", "heb", "swa")


@pytest.fixture(scope="module")
def tiny(outer_blocks):
    """Two blocks of the embedded model, a plan that learns a little, and its text."""
    checkpoint = outer_blocks(2)
    corpus = udhr(NAMES)
    plan = planned(
        checkpoint,
        policy="fair",
        text=corpus,
        tokens=400,
        sequence=64,
        bits=3,
        group=64,
        model_steps=8,
        block_steps=0,
        objective="mean",
    )
    quick = replace(plan.learning, rate=0.03)  # there are only 8 steps
    return checkpoint, replace(plan, learning=quick), corpus


@pytest.fixture(scope="module")
def learned(tiny):
    checkpoint, plan, corpus = tiny
    return list(execute_plan(checkpoint, plan, text=calibration_text(checkpoint, plan, corpus)))


def same(one, other):
    assert [block.index for block in one] == [block.index for block in other]
    for a, b in zip(one, other, strict=True):
        assert a.results == b.results
        assert a.learned == b.learned
        for name, codes in a.layers.items():
            assert torch.equal(codes.codes, b.layers[name].codes)
            assert torch.equal(codes.scales, b.layers[name].scales)


def test_codes_change_a_little_and_every_language_gains(tiny, learned):
    checkpoint, plan, corpus = tiny
    text = calibration_text(checkpoint, plan, corpus)
    start = {}
    for block in round_model(checkpoint, replace(plan, learning=None), text=text):
        start |= block.layers
    after = {name: codes for block in learned for name, codes in block.layers.items()}
    assert after.keys() == start.keys()
    moved = np.mean([(after[name].codes != start[name].codes).float().mean() for name in start])
    assert moved < 0.05
    assert any(not torch.equal(after[name].scales, start[name].scales) for name in start)
    outcome = learned[-1].learned
    assert [block.learned for block in learned[:-1]] == [None] * 2
    assert outcome.step > 0
    assert all(outcome.damage[code] <= outcome.start[code] for code in outcome.start)
    assert np.mean(list(outcome.damage.values())) < np.mean(list(outcome.start.values()))
    assert len(outcome.history) == EVALUATIONS + 1


def test_outcomes_are_of_the_learned_codes(tiny, learned):
    checkpoint, plan, _ = tiny
    block = learned[0]
    outcome = block.results[0]
    assert set(outcome.error) == set(plan.languages)
    assert all(0 < error < 0.2 for error in outcome.error.values())
    W = checkpoint.read(outcome.name).float()
    change = block.layers[outcome.name].dequantized.float() - W
    assert outcome.weight_error == pytest.approx(float(change.square().sum() / W.square().sum()), rel=1e-4)


def test_the_same_seed_gives_the_same_codes(tiny, learned):
    checkpoint, plan, corpus = tiny
    same(learned, list(execute_plan(checkpoint, plan, text=calibration_text(checkpoint, plan, corpus))))


class StoppedError(Exception):
    pass


@pytest.mark.long
def test_an_interrupted_run_goes_on_to_the_same_codes(tiny, learned, tmp_path):
    checkpoint, plan, corpus = tiny
    out = tmp_path / "w3"

    def interrupt(what, done, _total):
        if "learning" in what and done == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        quantize(checkpoint, plan, out=out, text=corpus, progress=interrupt)
    assert (tmp_path / ".w3.partial" / "learning" / STATE).is_file()
    assert draft_plan(out).digest == plan.digest
    with pytest.raises(InputError, match="continue it with --resume"):
        quantize(checkpoint, plan, out=out, text=corpus)
    seen = []

    def note_stage(what, *_):
        seen.append(what.rpartition(": ")[2].split(",")[0])

    result = quantize(checkpoint, plan, out=out, text=corpus, resume=True, progress=note_stage)
    assert "rounding blocks" not in seen  # the start was saved
    assert seen.count("learning") == 3
    assert result.learned == learned[-1].learned
    assert Plan.load(out / "plan.json") == replace(result, model=str(checkpoint.target))
    written = Checkpoint(out).load().state_dict()
    for block in learned:
        for name, codes in block.layers.items():
            assert torch.equal(written[name].half(), codes.dequantized)


@pytest.mark.long
def test_where_nothing_helps_the_start_is_kept(tiny):
    checkpoint, plan, corpus = tiny
    wild = replace(plan, learning=replace(plan.learning, rate=1.0))  # flips codes at random
    text = calibration_text(checkpoint, plan, corpus)
    blocks = list(execute_plan(checkpoint, wild, text=text))
    outcome = blocks[-1].learned
    assert outcome.step == 0
    assert outcome.damage == outcome.start
    start = list(round_model(checkpoint, replace(plan, learning=None), text=text))
    for one, other in zip(blocks, start, strict=True):
        assert all(torch.equal(codes.codes, other.layers[name].codes) for name, codes in one.layers.items())


def test_a_plan_that_does_not_learn_is_only_rounded(tiny):
    checkpoint, plan, corpus = tiny
    plain = replace(plan, learning=None, layers=plan.layers[:5])
    text = calibration_text(checkpoint, plan, corpus)
    same(list(execute_plan(checkpoint, plain, text=text)), list(round_model(checkpoint, plain, text=text)))


def test_a_plan_remembers_how_it_learns(tiny, tmp_path):
    _, plan, _ = tiny
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert replace(plan, learning=replace(plan.learning, model_steps=9)).digest != plan.digest
    assert json.loads(plan.as_bytes())["learning"]["objective"] == "mean"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"group": "tensor"}, "group is tensor"),
        ({"model_steps": -1}, "model_steps is -1"),
        ({"model_steps": 0, "block_steps": 0}, "both 0"),
        ({"objective": "best"}, "objective is 'best'"),
        ({"widths": [3, 4]}, "only with avg_bits"),
        ({"bits": 4, "avg_bits": 4.0}, "one of them"),
    ],
)
def test_what_cannot_be_learned_is_refused(options, why):
    with pytest.raises(InputError, match=why):
        planned("embedded:tiny", policy="fair", text=udhr(NAMES), tokens=64, **options)
