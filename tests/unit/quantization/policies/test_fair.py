from dataclasses import replace
from functools import cached_property

import pytest

from fairbits.core.errors import InputError
from fairbits.core.memory import CPU_END_TO_END_WEIGHTS
from fairbits.models import device
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Calibration, Learning
from fairbits.quantization.policies import decide, find_policy
from fairbits.quantization.policies.fair import CPU_BLOCK_STEPS, GPU_ROWS, GPU_TOKENS

EVIDENCE = Evidence(Checkpoint("embedded:tiny"), ("eng_Latn", "heb_Hebr"))
CALIBRATION = Calibration(
    "a corpus", dict.fromkeys(("eng_Latn", "heb_Hebr"), "0" * 64), tokens=512, sequence=64, seed=0
)


def learning(evidence=EVIDENCE, **options):
    plan = decide("fair", evidence, calibration=CALIBRATION, **options)
    settings = {
        name: plan.settings[name] for name in ("objective", "block_steps", "block_tokens", "model_steps", "rows")
    }
    assert replace(plan.learning, **settings) == plan.learning
    return plan.learning


def free_memory_of_gpu(monkeypatch, free):
    monkeypatch.setattr(device, "free_gpu_memory", lambda _device: free)


def test_a_gpu_reads_more_text(monkeypatch):
    free_memory_of_gpu(monkeypatch, 80e9)
    assert learning() == Learning()
    on_a_gpu = learning(replace(EVIDENCE, device="cuda"))
    assert on_a_gpu == Learning(rows=GPU_ROWS, block_tokens=GPU_TOKENS)
    assert Learning.rows < GPU_ROWS
    assert Learning.block_tokens < GPU_TOKENS
    options = {"model_steps": 7, "rows": 3, "block_tokens": 100}
    assert learning(replace(EVIDENCE, device="cuda"), **options) == Learning(**options)


def test_large_models_are_learned_block_by_block_unless_told_otherwise():
    class Large(Evidence):
        @cached_property
        def block_weights(self):
            return (CPU_END_TO_END_WEIGHTS // 12 + 1,) * 12

    large = Large(EVIDENCE.checkpoint, EVIDENCE.languages)
    assert (learning(large).model_steps, learning(large).block_steps) == (0, CPU_BLOCK_STEPS)
    assert learning(large, model_steps=5).model_steps == 5


@pytest.mark.parametrize(
    ("weights", "free", "whole"),
    [(1.3e9, 24e9, True), (7e9, 24e9, False), (7e9, 80e9, True), (7e9, 140e9, True), (70e9, 140e9, False)],
)
def test_the_memory_of_a_gpu_decides_whether_a_model_is_learned_end_to_end(monkeypatch, weights, free, whole):
    class Large(Evidence):
        @cached_property
        def block_weights(self):
            return (int(weights) // 10,) * 10

    free_memory_of_gpu(monkeypatch, free)
    chosen = learning(Large(EVIDENCE.checkpoint, EVIDENCE.languages, device="cuda"))
    assert chosen.model_steps == (Learning.model_steps if whole else 0)


def test_fair_reads_more_text_than_others_if_nobody_says_how_much():
    assert find_policy("fair").tokens == 4 * find_policy("gptq").tokens == 16384


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"block_tokens": 3}, "block_tokens is 3"),
        ({"block_steps": 0, "model_steps": 0}, "both 0"),
        ({"group": "tensor"}, "group is tensor"),
    ],
)
def test_what_cannot_be_learned_with_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        decide("fair", EVIDENCE, calibration=CALIBRATION, **options)


def test_defaults_in_words_are_those_that_are_used():
    words = {name: option.default for name, option in find_policy("fair").options.items()}
    assert words["block_steps"] == f"{Learning.block_steps}, or {CPU_BLOCK_STEPS} for a larger model on a CPU"
    assert words["model_steps"].split(",")[0] == str(Learning.model_steps)
    assert words["rows"] == f"{Learning.rows}, or {GPU_ROWS} on a GPU"
    assert words["block_tokens"] == f"{Learning.block_tokens}, or {GPU_TOKENS} on a GPU"
