"""A plan costs the same however often it is tried: no trial changes the reference, or the model, of the next."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.api.compare import compare
from fairbits.api.make_plan import plan
from fairbits.comparison.plan_trial import PlanTrial, corpus_for
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import TextRequest

TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **TOKENS}
GROUPED = {**SIZE, "num_key_value_heads": 2}
SCALED: dict[str, Callable[[], Any]] = {
    "cohere": lambda: t.CohereForCausalLM(t.CohereConfig(**GROUPED)),
    "gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**GROUPED, head_dim=8, final_logit_softcapping=0.5)),
    "modernbert": lambda: t.ModernBertForMaskedLM(t.ModernBertConfig(**SIZE)),
}
"""Models whose logits are not the output of their last linear layer."""
APART = ("llama", "gpt2", "m2m100")
TOGETHER = ("mt5", "xlmr", *SCALED)
LANGUAGES = ["eng_Latn", "heb_Hebr"]


@pytest.fixture
def model(reading_model: Callable[[str], Checkpoint], saved: Callable[..., Checkpoint]) -> Callable[[str], Checkpoint]:
    """Returns the function that gives a small model of a family."""

    def model(family: str) -> Checkpoint:
        if family not in SCALED:
            return reading_model(family)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return saved(SCALED[family](), **({"mask_token": "<unk>"} if family == "modernbert" else {}))

    return model


@pytest.mark.parametrize("family", [*APART, *TOGETHER])
def test_a_plan_costs_the_same_every_time(model: Callable[[str], Checkpoint], family: str) -> None:
    checkpoint = model(family)
    corpus = corpus_for(checkpoint, languages=LANGUAGES, text=None)
    plans = [plan(checkpoint, policy="rtn", bits=bits, group="channel") for bits in (8, 2, 8)]
    with PlanTrial.of(checkpoint, corpus, request=TextRequest("evaluation", 64, 32)) as trial:
        assert any("kept on disk" in note for note in trial.reference.notes) == (family in TOGETHER)
        document_scores = [trial.run(candidate, name=str(i)).scores.documents for i, candidate in enumerate(plans)]
    for name in ("nll_reference", "nll_quantized", "kl", "flips"):
        first, second, third = (getattr(scores, name) for scores in document_scores)
        assert np.array_equal(first, third), name
        assert np.array_equal(first, second) == (name == "nll_reference"), name


@pytest.mark.parametrize("family", ["mt5", "xlmr"])
def test_a_comparison_does_not_depend_on_what_came_before(
    reading_model: Callable[[str], Checkpoint], family: str
) -> None:
    text = {"languages": LANGUAGES, "evaluation_tokens": 64, "sequence": 32, "bits": [8]}
    checkpoint = reading_model(family)
    together = compare(checkpoint, policies=["rtn", "mse"], **text, group="channel").entries
    (alone,) = compare(checkpoint, policies=["mse"], **text, group="channel").entries
    assert np.array_equal(together[1].scores[0].documents.kl, alone.scores[0].documents.kl)
