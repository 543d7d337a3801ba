"""Rounding a model takes the memory of a block and of the text's activations, not that of the model."""

import os
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers as t
from safetensors.torch import save_file

from fairbits.models.checkpoint import Checkpoint

WIDTH, HIDDEN, VOCABULARY, BLOCKS = 512, 1408, 32768, 12

CODE = """
import sys
import threading
from fairbits.text.corpus import Corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.plan import LayerPlan, Plan
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.quantization.gptq.engine import round_model

checkpoint = Checkpoint(sys.argv[1])
linears = [linear for linear in checkpoint.architecture.linears.values() if linear.block is not None]
corpus = Corpus("weather", {"eng": [f"On day {i} the wind came from the north." for i in range(6)]}, {})
text = tokenize_corpus(checkpoint, corpus)
hard = ("attention_out", 0), ("attention_out", 11)  # for the others it would take long, not much
how = lambda w: "gptq" if (w.role, w.block) in hard else "nearest"
layers = [
    LayerPlan(w.name, w.block, w.role, Scheme(4, "channel", grid="twos", rounding=how(w)))
    for w in linears
]
plan = Plan("test", {}, "", "", "", tuple(layers), 0, {"eng_Latn": 1.0})
def rss(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
# without the pages of mapped files, which the kernel keeps for as long as it likes
before = peak = rss("RssAnon")
done = threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, rss("RssAnon"))
watcher = threading.Thread(target=watch)
watcher.start()
rounded = sum(len(block.layers) for block in round_model(checkpoint, plan, text=text))
done.set()
watcher.join()
print(rounded, before, peak)
"""


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Returns a random Llama in bfloat16; to be quick, its tensors are cut from the same normal numbers."""
    directory = tmp_path_factory.mktemp("deep")
    t.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=BLOCKS,
        num_attention_heads=8,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        tie_word_embeddings=True,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(directory)
    normal = 0.02 * np.random.default_rng(0).standard_normal(VOCABULARY * WIDTH, dtype=np.float32)
    drawn = torch.from_numpy(normal).bfloat16()
    ones = torch.ones(WIDTH, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": drawn.reshape(VOCABULARY, WIDTH), "model.norm.weight": ones.clone()}
    for i in range(BLOCKS):
        square, up = drawn[i : i + WIDTH * WIDTH].reshape(WIDTH, WIDTH), drawn[i : i + HIDDEN * WIDTH]
        maps = {f"self_attn.{name}_proj": square for name in "qkvo"}
        maps |= {f"mlp.{name}_proj": up.reshape(HIDDEN, WIDTH) for name in ("gate", "up")}
        maps |= {"mlp.down_proj": up.reshape(WIDTH, HIDDEN), "input_layernorm": ones, "post_attention_layernorm": ones}
        tensors |= {f"model.layers.{i}.{name}.weight": tensor.clone() for name, tensor in maps.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Checkpoint("embedded:tiny").directory / name, directory)
    return directory


@pytest.mark.long
def test_memory_is_a_small_part_of_the_model(deep):
    assert 4 * sum(info.numel for info in Checkpoint(deep).tensors.values()) > 220e6  # in float32
    done = subprocess.run(
        [sys.executable, "-c", CODE, deep],
        capture_output=True,
        text=True,
        check=True,
        # what is freed goes back at once: else what the allocator keeps is counted, twice as much and never the same
        env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "0"},
    )
    rounded, before, peak = map(int, done.stdout.split())
    assert rounded == 7 * BLOCKS
    # with what is imported on the way, which is more on ARM: 77e6 there in all
    assert peak - before < (60e6 if platform.machine() == "x86_64" else 90e6)
