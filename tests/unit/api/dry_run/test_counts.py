"""Sizes and counts against what the model itself does, and how they grow."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fairbits.api.dry_run.counts import Counter
from fairbits.api.dry_run.planning import planning_stage, stand_in_plan
from fairbits.api.dry_run.sizes import ModelSize, TextSize
from fairbits.api.dry_run.work import Rates, Work, total
from torch.utils.flop_counter import FlopCounterMode

from fairbits.forward.batches import batches
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.plan import Learning
from fairbits.text.included_texts import udhr
from fairbits.text.text_request import TextRequest

REQUEST = TextRequest("calibration", tokens=128, sequence=32)
OPTIONS = {"bits": 4, "group": 16}


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture(scope="module")
def counter(llama: Checkpoint) -> Counter:
    return Counter(ModelSize.of(llama), "cpu")


@pytest.fixture(scope="module")
def text(llama: Checkpoint) -> TextSize:
    return TextSize.of(tokenize_corpus(llama, udhr(["eng", "heb"]), request=REQUEST))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mt5", "mixtral"])
def test_sizes_are_those_of_the_loaded_model(family: str, reading_model: Callable[[str], Checkpoint]) -> None:
    checkpoint = reading_model(family)
    size, model = ModelSize.of(checkpoint), checkpoint.load()
    assert size.weights == sum(parameter.numel() for parameter in model.parameters())
    assert len(size.blocks) == checkpoint.architecture.n_blocks
    assert size.head == model.get_output_embeddings().weight.numel()


def test_floating_point_operations_are_those_that_torch_counts(llama: Checkpoint, counter: Counter) -> None:
    ids = torch.zeros(4, 24, dtype=torch.long)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        llama.load()(input_ids=ids, use_cache=False)
    batch = TextSize((24,) * 4, 96, 1).batches(96)
    expected = counter.forward_all(batch).products + counter.head(96).products
    assert counted.get_total_flops() == pytest.approx(expected, rel=0.1)


def test_batches_are_those_of_a_pass(llama: Checkpoint) -> None:
    found = tokenize_corpus(llama, udhr(["eng", "heb"]), request=REQUEST)
    made = list(batches(found, positions=100))
    shapes = [each.labels.shape for each in made]
    counted = TextSize.of(found).batches(100)
    assert counted.count == len(made)
    assert counted.positions == sum(rows * length for rows, length in shapes)
    assert counted.squares == sum(rows * length**2 for rows, length in shapes)


def test_gptq_holds_more_and_takes_longer_than_rounding_to_nearest(
    llama: Checkpoint, counter: Counter, text: TextSize
) -> None:
    plans = {
        name: stand_in_plan(
            llama, udhr(["eng", "heb"]), policy=name, options=OPTIONS, request=REQUEST, device="cpu"
        ).plan
        for name in ("rtn", "gptq")
    }
    rtn, gptq = (counter.round(plans[name], text, name=name, written=True) for name in ("rtn", "gptq"))
    assert gptq.held.ram >= rtn.held.ram
    assert gptq.work.products > 2 * rtn.work.products
    assert (rtn.work.clipped, rtn.work.columns) == (0, 0)
    assert gptq.work.clipped == sum(block.rounded for block in counter.model.blocks)
    assert rtn.held.written == plans["rtn"].size_bytes
    assert counter.round(plans["rtn"], None, name="rtn", written=False).held.written == 0


def test_learning_end_to_end_holds_more_than_in_blocks(counter: Counter, text: TextSize) -> None:
    learning = Learning()
    blocks = counter.learn_blocks(learning, text, text, name="blocks")
    whole = counter.learn_model(learning, text, text, name="whole")
    assert whole.held.ram > blocks.held.ram
    twice = counter.learn_blocks(replace(learning, block_steps=400), text, text, name="blocks")
    assert twice.work.fast == pytest.approx(2 * blocks.work.fast)


def test_a_gpu_holds_what_a_cpu_holds_in_ram(counter: Counter, text: TextSize) -> None:
    gpu = replace(counter, device="cuda")
    here, there = counter.evaluate_reference(text).held, gpu.evaluate_reference(text).held
    assert (here.gpu, here.scratch) == (0, there.scratch)
    assert there.gpu > 4 * counter.model.weights


@pytest.mark.parametrize(
    ("policy", "options", "requested"),
    [
        ("gptq", OPTIONS, {}),
        ("gptq", {**OPTIONS, "mix": "minimax"}, {"minimax": 1}),
        ("mixed", OPTIONS, {"kappa": 1}),
        ("allocate", {"avg_bits": 4.5, "group": 16, "widths": (4, 8)}, {"predicted": 2}),
        ("protect", {**OPTIONS, "k": 1, "sets": 0}, {"measured": 2, "damage": 1}),
    ],
)
def test_evidence_that_a_policy_requests_is_counted(
    policy: str, options: dict, requested: dict, llama: Checkpoint, counter: Counter, text: TextSize
) -> None:
    corpus = udhr(["eng", "heb"])
    planned = stand_in_plan(llama, corpus, policy=policy, options=options, request=REQUEST, device="cpu")
    assert planned.requests == requested
    stage = planning_stage(counter, planned, text, name="plan")
    assert (stage is None) == (not requested)
    if stage is not None:
        assert total([stage.work]) != Work()


def test_time_is_the_sum_of_counts_over_rates() -> None:
    rates = Rates(**{name: 2.0 for name in vars(Work()) if name != "seconds"})
    assert rates.time(Work(products=4, read=2, seconds=5)) == 8
    assert rates.parts(Work(products=4) * 3) == {"products": 6}
    assert rates.time(Work(products=1) + Work(products=3)) == 2
