"""The pass with one block in memory gives what the pass with the whole model gives."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.core.errors import InputError
from fairbits.forward import statistics, streaming
from fairbits.forward.statistics import collect_statistics, measuring_dtype
from fairbits.forward.streaming import NotStreamableError, least_places, segments
from fairbits.models.scales.scheme import Scheme
from fairbits.models.streaming_model import StreamingModel
from fairbits.text.corpus import Corpus

TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 48, **TOKENS}
OTHERS = {
    "bloom": lambda: t.BloomForCausalLM(t.BloomConfig(hidden_size=32, n_head=4, n_layer=3, **TOKENS)),
    "opt": lambda: t.OPTForCausalLM(
        t.OPTConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            ffn_dim=48,
            word_embed_proj_dim=16,  # with projections before and after the blocks
            max_position_embeddings=64,
            **TOKENS,
        )
    ),
    "gemma2": lambda: t.Gemma2ForCausalLM(  # clips its logits
        t.Gemma2Config(**SIZE, num_key_value_heads=2, head_dim=16, sliding_window=8, final_logit_softcapping=0.5)
    ),
    "llama of bfloat16, tied": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZE, tie_word_embeddings=True)).bfloat16(),
}
CORPUS = Corpus(
    "weather",
    {
        "eng": [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(6)],
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(5)],
    },
    {},
)
SCHEMES = (Scheme(3, "channel"), Scheme(4, 16, "exact"))
PER_DOCUMENT = ("predicted", "nll", "entropy", "positions", "norm", "square", "unigrams", "size_bytes")


@pytest.fixture
def streamed(monkeypatch):
    """Returns a function that measures a model in blocks, whatever its size."""
    monkeypatch.setattr(statistics, "WHOLE_MODEL_BYTES", 0)
    return lambda checkpoint, **options: collect_statistics(
        checkpoint, CORPUS, schemes=SCHEMES, second_moments=True, **options
    )


def whole(checkpoint, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "WHOLE_MODEL_BYTES", 2**60)
        return collect_statistics(checkpoint, CORPUS, schemes=SCHEMES, second_moments=True, **options)


def check_equal(measured, expected, rtol=1e-5):
    assert measured.points == expected.points
    assert (measured.linears, measured.seen_by, measured.left_out) == (
        expected.linears,
        expected.seen_by,
        expected.left_out,
    )
    pairs = {name: (getattr(measured, name), getattr(expected, name)) for name in PER_DOCUMENT}
    for name in ("channels", "gradients", "inputs"):
        ours, theirs = getattr(measured, name), getattr(expected, name)
        assert ours.keys() == theirs.keys()
        pairs |= {f"{name} {key}": (ours[key], theirs[key]) for key in ours}
    for scheme in SCHEMES:
        ours, theirs = measured.damage[scheme], expected.damage[scheme]
        pairs |= {f"damage {form}": (ours[form], theirs[form]) for form in ours}
    for name, (ours, theirs) in pairs.items():
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max(), err_msg=name)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "gpt2", "xlmr", "mixtral"])
def test_both_passes_give_the_same_numbers(reading_model, streamed, family):
    checkpoint = reading_model(family)
    measured = streamed(checkpoint)
    assert measured.notes == ()
    check_equal(measured, whole(checkpoint))


@pytest.mark.parametrize("family", OTHERS)
def test_so_do_other_families(saved, streamed, family):
    checkpoint = saved(OTHERS[family]())
    measured = streamed(checkpoint)
    assert measured.notes == ()
    check_equal(measured, whole(checkpoint))


def test_states_that_were_not_kept_are_computed_again(saved, streamed, monkeypatch):
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**{**SIZE, "num_hidden_layers": 5})))
    expected = streamed(checkpoint)
    calls = []
    load = StreamingModel.load_block

    def counted(self, block, codes):
        calls.append(block.index)
        load(self, block, codes)

    monkeypatch.setattr(StreamingModel, "load_block", counted)
    monkeypatch.setattr(streaming, "STATES_BYTES", 1)
    monkeypatch.setattr(streaming, "LEAST_STATES_FACTOR", 1e9)  # in one part
    measured = streamed(checkpoint)
    check_equal(measured, expected, rtol=1e-9)
    # forward; in 3 places the last two backward; the first three again, and backward
    assert calls == [*(0, 1, 2, 3, 4), *(4, 3), *(0, 1), *(2, 1, 0)]


def test_the_text_may_pass_in_parts(saved, streamed, monkeypatch):
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**SIZE)))
    expected = streamed(checkpoint)
    monkeypatch.setattr(streaming, "BLOCK_BACKWARD_BYTES", 1)
    monkeypatch.setattr(streaming, "BLOCK_BACKWARD_POSITIONS", 1)
    monkeypatch.setattr(streaming, "STATES_BYTES", 1)
    parts = []
    forward = streaming._forward
    monkeypatch.setattr(
        streaming, "_forward", lambda work, part, *rest: parts.append(part) or forward(work, part, *rest)
    )
    check_equal(streamed(checkpoint), expected, rtol=1e-5)
    assert len(parts) > 3


def test_weights_of_one_block_are_in_memory_at_a_time(saved, streamed, monkeypatch):
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**SIZE)))
    assert checkpoint.architecture.n_blocks == 4  # maps the model with the same class, before it is watched
    models, most = [], []
    create = StreamingModel.__init__
    monkeypatch.setattr(
        StreamingModel, "__init__", lambda self, *args, **how: models.append(self) or create(self, *args, **how)
    )
    forward = t.models.llama.modeling_llama.LlamaMLP.forward

    def watched(module, x):
        loaded = [name for name, p in models[0].model.named_parameters() if not p.is_meta]
        most.append({name.split(".")[2] for name in loaded if name.startswith("model.layers.")})
        assert not any("embed" in name or "head" in name for name in loaded)
        return forward(module, x)

    monkeypatch.setattr(t.models.llama.modeling_llama.LlamaMLP, "forward", watched)
    streamed(checkpoint)
    assert {len(blocks) for blocks in most} == {1}
    assert {name for blocks in most for name in blocks} == {"0", "1", "2", "3"}
    assert sum(p.numel() for p in models[0].model.parameters() if not p.is_meta) == 32  # the last norm


def test_an_encoder_decoder_passes_as_a_whole_and_the_result_says_so(reading_model, streamed):
    checkpoint = reading_model("mt5")
    measured = streamed(checkpoint)
    assert "the whole model was in memory at once" in measured.notes[0]
    assert "encoder" in measured.notes[0]
    check_equal(measured, whole(checkpoint), rtol=1e-9)


def test_packed_weights_are_not_streamed():
    config = SimpleNamespace(is_encoder_decoder=False, quantization_config={"quant_method": "compressed-tensors"})
    with pytest.raises(NotStreamableError, match="packed"):
        streaming.streaming_pass(SimpleNamespace(checkpoint=SimpleNamespace(config=config)))


def test_a_model_that_changes_states_between_blocks_is_not_streamed(reading_model, streamed, monkeypatch):
    checkpoint = reading_model("llama")
    create = StreamingModel.__init__

    def scaling(self, *args, **how):
        create(self, *args, **how)
        self.model.model.layers[1].register_forward_pre_hook(lambda _module, args: (args[0] * 1.0, *args[1:]))

    monkeypatch.setattr(StreamingModel, "__init__", scaling)
    measured = streamed(checkpoint)
    assert "between the blocks 0 and 1" in measured.notes[0]
    check_equal(measured, whole(checkpoint), rtol=1e-9)


def test_a_model_that_answers_with_nan_is_refused(saved, streamed):
    model = t.LlamaForCausalLM(t.LlamaConfig(**SIZE))
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(InputError, match="NaN or infinity"):
        streamed(saved(model))


def test_progress_reaches_the_end(reading_model, streamed):
    seen = []
    streamed(reading_model("llama"), progress=lambda _, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


def test_small_models_pass_as_a_whole(reading_model, monkeypatch):
    monkeypatch.setattr(statistics, "streaming_pass", None)
    assert collect_statistics(reading_model("llama"), CORPUS).notes == ()


def test_only_models_of_bfloat16_are_measured_in_it_and_only_on_a_gpu(saved, reading_model):
    half = saved(t.LlamaForCausalLM(t.LlamaConfig(**SIZE)).bfloat16())
    assert measuring_dtype(half, "cpu") == torch.float32
    assert measuring_dtype(half, "cuda") == torch.bfloat16
    assert measuring_dtype(reading_model("llama"), "cuda") == torch.float32


def test_bfloat16_is_close_to_float32(saved, streamed):
    torch.manual_seed(0)
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**SIZE)).bfloat16())
    expected, measured = (streamed(checkpoint, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert (expected.dtype, measured.dtype) == ("float32", "bfloat16")
    for scheme in SCHEMES:
        for form, damage in expected.damage[scheme].items():
            np.testing.assert_allclose(measured.damage[scheme][form].sum(0), damage.sum(0), rtol=0.05, err_msg=form)
    np.testing.assert_allclose(measured.nll, expected.nll, rtol=1e-3)


@pytest.mark.parametrize("blocks", [1, 2, 3, 6, 7, 32, 80])
def test_segments_cover_all_blocks_in_the_places_there_are(blocks):
    for places in range(least_places(blocks), blocks + 2):
        plan = segments(blocks, places)
        assert [index for segment in plan for index in segment] == list(range(blocks))
        assert len(plan) - 1 + len(plan[-1]) <= max(places, 1)
        for number, segment in enumerate(plan):
            assert number + len(segment) <= places
        again = sum(len(segment) - 1 for segment in plan[:-1])
        assert again == 0 or places < blocks
    with pytest.raises(InputError, match="too few"):
        segments(blocks, least_places(blocks) - 1)
