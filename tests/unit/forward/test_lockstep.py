import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers as t

from fairbits.core.errors import InputError
from fairbits.forward.batches import batches
from fairbits.forward.lockstep import lockstep
from fairbits.models.streaming_model import StreamingModel

TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
FAMILIES = ("llama", "qwen2", "gemma3", "gpt2", "mt5", "xlmr", "mixtral", "llama4")
OTHERS = {
    "bloom": lambda: t.BloomForCausalLM(t.BloomConfig(hidden_size=32, n_head=4, n_layer=2, **TOKENS)),
    "opt": lambda: t.OPTForCausalLM(
        t.OPTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            word_embed_proj_dim=16,  # with projections in front of the blocks
            max_position_embeddings=64,
            **TOKENS,
        )
    ),
    "gpt_neox": lambda: t.GPTNeoXForCausalLM(
        t.GPTNeoXConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48, **TOKENS)
    ),
    "xglm": lambda: t.XGLMForCausalLM(t.XGLMConfig(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, **TOKENS)),
}


def first(output):
    return output[0] if isinstance(output, tuple) else output


def prepared(checkpoint, text, positions=100):
    chosen = list(batches(text, positions=positions))
    streaming = StreamingModel(checkpoint)
    ids = [tensor.flatten() for batch in chosen for name, tensor in batch.inputs.items() if name.endswith("input_ids")]
    streaming.load_outside(torch.unique(torch.cat(ids)), {})
    return streaming, chosen, [block.module for block in checkpoint.architecture.blocks]


def outputs_of(model, checkpoint, chosen):
    outputs = []
    for block in checkpoint.architecture.blocks:
        model.get_submodule(block.module).register_forward_hook(lambda _m, _a, output: outputs.append(first(output)))
    with torch.no_grad():
        for batch in chosen:
            model(**batch.inputs, use_cache=False)
    depth = len(checkpoint.architecture.blocks)
    return [outputs[i::depth] for i in range(depth)]


def walked(checkpoint, streaming, chosen, paths, **options):
    outputs = []
    with lockstep(streaming.model, paths, chosen, **options) as walk:
        for block in checkpoint.architecture.blocks:
            streaming.load_block(block, {})
            here = []
            inner = walk._forwards[block.module]
            walk._forwards[block.module] = lambda *args, inner=inner, here=here, **kwargs: kept(
                here, inner(*args, **kwargs)
            )
            walk.compute(lambda _batch: None)
            here.clear()
            walk.advance(lambda _batch: None)
            streaming.release_block(block)
            outputs.append(here)
    return outputs


def kept(here, output):
    here.append(first(output))
    return output


def check_equal(checkpoint, text, **options):
    streaming, chosen, paths = prepared(checkpoint, text)
    expected = outputs_of(checkpoint.load(), checkpoint, chosen)
    outputs = walked(checkpoint, streaming, chosen, paths, **options)
    for ours, theirs in zip(outputs, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert all(p.is_meta for p in streaming.model.get_submodule(paths[0]).parameters())
    assert threads() == 0


def threads():
    return sum(type(thread).__name__ == "BatchThread" for thread in threading.enumerate())


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_give_what_they_give_in_the_whole_model(reading_model, weather, family):
    checkpoint = reading_model(family)
    check_equal(checkpoint, weather(checkpoint))


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_too(saved, weather, family):
    checkpoint = saved(OTHERS[family]())
    check_equal(checkpoint, weather(checkpoint))


@pytest.mark.parametrize("family", ["llama", "gemma3", "mt5"])
def test_states_in_main_memory_give_the_same(reading_model, weather, family):
    """What a GPU is given and gives back passes through the same functions; here it stays where it is."""
    checkpoint = reading_model(family)
    check_equal(checkpoint, weather(checkpoint), device="cpu")


@pytest.fixture
def llama(reading_model, weather):
    checkpoint = reading_model("llama")
    return checkpoint, *prepared(checkpoint, weather(checkpoint))


def test_stored_half_precision_is_computed_with_in_single(saved, weather):
    config = t.LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=48,
        tie_word_embeddings=True,
        **TOKENS,
    )
    checkpoint = saved(t.LlamaForCausalLM(config).bfloat16())
    check_equal(checkpoint, weather(checkpoint))


def test_what_fails_in_a_thread_fails_in_the_caller_and_all_threads_end(llama):
    _, streaming, chosen, paths = llama
    broken = [*chosen[:1], replace(chosen[0], inputs={"input_ids": torch.tensor([[99999]])})]
    with pytest.raises(IndexError), lockstep(streaming.model, paths, broken):
        pass
    assert threads() == 0
    with contextlib.suppress(KeyboardInterrupt), lockstep(streaming.model, paths, chosen):
        assert threads() == len(chosen)
        raise KeyboardInterrupt
    assert threads() == 0
    assert "forward" not in vars(streaming.model.get_submodule(paths[0]))  # as before


def test_blocks_must_come_in_order(llama):
    _, streaming, chosen, paths = llama
    with (
        pytest.raises(InputError, match=r"layers\.0 was called where model\.layers\.1 was expected"),
        lockstep(streaming.model, paths[::-1], chosen),
    ):
        pass


class Skipping(torch.nn.Module):
    """A model that leaves out its second block."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])

    def forward(self, x, use_cache):
        assert not use_cache
        return self.layers[0](x)


def test_blocks_that_are_left_out_are_missed():
    batch = SimpleNamespace(inputs_for=lambda _model: {"x": torch.ones(1, 4)})
    with (
        lockstep(Skipping(), ["layers.0", "layers.1"], [batch]) as walk,
        pytest.raises(InputError, match=r"the model ended where layers\.1 was expected"),
    ):
        walk.advance(lambda _batch: None)
    assert threads() == 0


def test_a_block_that_changes_its_input_is_refused(llama):
    checkpoint, streaming, chosen, paths = llama
    with lockstep(streaming.model, paths, chosen) as walk:
        streaming.load_block(checkpoint.architecture.blocks[0], {})
        inner = walk._forwards[paths[0]]
        walk._forwards[paths[0]] = lambda x, **kwargs: inner(x.mul_(2), **kwargs)
        with pytest.raises(InputError, match="in place"):
            walk.compute(lambda _batch: None)


def test_a_walking_model_serves_nobody_else(llama):
    _, streaming, chosen, paths = llama
    with lockstep(streaming.model, paths, chosen), pytest.raises(InputError, match="from outside"):
        streaming.model(**chosen[0].inputs)


def test_only_rows_that_are_looked_up_are_filled(saved, weather):
    config = t.LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=48, **TOKENS)
    checkpoint = saved(t.LlamaForCausalLM(config).half())
    streaming, chosen, _ = prepared(checkpoint, weather(checkpoint))
    table = streaming.model.get_input_embeddings().weight
    stored = checkpoint.read("model.embed_tokens.weight")
    used = torch.unique(torch.cat([batch.inputs["input_ids"].flatten() for batch in chosen]))
    assert torch.equal(table[used], stored[used].float())
    assert len(used) < 200
    assert streaming.model.get_output_embeddings().weight.is_meta
