"""Sizes are those of the model, and what stages hold grows with what they do."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairbits.api.dry_run import planning_stages, stand_in_plan
from fairbits.api.memory_needed import ModelSize, TextSize, WorkCounter
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.server.request import Text
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

REQUEST = TextRequest("calibration", tokens=128, sequence=32)
OPTIONS = {"bits": 4, "group": 16}


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture(scope="module")
def counter(llama: Checkpoint) -> WorkCounter:
    return WorkCounter(llama, "cpu")


@pytest.fixture(scope="module")
def text(llama: Checkpoint) -> Text:
    return tokenize_corpus(llama, udhr(["eng", "heb"]), request=REQUEST)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mt5", "mixtral"])
def test_sizes_are_those_of_the_loaded_model(family: str, reading_model: Callable[[str], Checkpoint]) -> None:
    checkpoint = reading_model(family)
    size, model = ModelSize.of(checkpoint), checkpoint.load()
    assert size.weights == sum(parameter.numel() for parameter in model.parameters())
    assert len(size.blocks) == checkpoint.architecture.n_blocks
    assert size.head == model.get_output_embeddings().weight.numel()


def test_operations_are_those_that_torch_counts(llama: Checkpoint, counter: WorkCounter) -> None:
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        llama.load()(input_ids=torch.zeros(4, 8, dtype=torch.long), use_cache=False)
    model = counter.model
    expected = 32 * (model.depth * model.measured.operations + 2 * model.head)
    assert counted.get_total_flops() == pytest.approx(expected, rel=0.1)


def test_text_that_is_requested_is_about_the_text_that_is_read(llama: Checkpoint, text: Text) -> None:
    read, requested = TextSize.of(text), TextSize.requested(REQUEST, llama, udhr(["eng", "heb"]))
    assert requested == TextSize(windows=8, positions=256, predicted=256, languages=2)
    assert requested.languages == read.languages


def test_gptq_holds_more_than_rounding_to_nearest(llama: Checkpoint, counter: WorkCounter, text: Text) -> None:
    rtn, gptq = (
        stand_in_plan(llama, udhr(["eng", "heb"]), name, OPTIONS, request=REQUEST, device="cpu")[0]
        for name in ("rtn", "gptq")
    )
    stages = [counter.rounding(plan, text, name="quantize", written=True) for plan in (rtn, gptq)]
    assert stages[1].held.ram >= stages[0].held.ram
    assert stages[0].held.written == rtn.size_bytes
    assert counter.rounding(rtn, None, name="rtn", written=False).held.written == 0


def test_learning_end_to_end_holds_more_than_in_blocks(llama: Checkpoint, counter: WorkCounter, text: Text) -> None:
    corpus = udhr(["eng", "heb"])
    plan, _ = stand_in_plan(llama, corpus, "fair", {**OPTIONS, "model_steps": 10}, request=REQUEST, device="cpu")
    _, blocks, whole = counter.execution(plan, text, name="fair", written=True)
    assert whole.held.ram > blocks.held.ram
    twice = replace(plan, learning=replace(plan.learning, block_steps=2 * plan.learning.block_steps))
    _, again, _ = counter.execution(twice, text, name="fair", written=True)
    assert again.work["learned fair"] == 2 * blocks.work["learned fair"]


def test_a_gpu_holds_what_a_cpu_holds_in_ram(llama: Checkpoint, counter: WorkCounter, text: Text) -> None:
    size = TextSize.of(text)
    here, there = (
        work_counter.evaluation(size, name="evaluate", loaded=True).held
        for work_counter in (counter, WorkCounter(llama, "cuda"))
    )
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
    policy: str, options: dict, requested: dict, llama: Checkpoint, counter: WorkCounter, text: Text
) -> None:
    plan, requests = stand_in_plan(llama, udhr(["eng", "heb"]), policy, options, request=REQUEST, device="cpu")
    assert requests == requested
    stages = list(planning_stages(counter, plan, requests, text, name="plan"))
    assert len(stages) == bool(requested)
    assert all(any(stage.work.values()) for stage in stages)
