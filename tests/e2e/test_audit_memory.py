"""An audit takes little more memory than the weights: 12 blocks, 1024 wide, 0.75 GB in float32."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers as t
from safetensors.numpy import save_file

from fairbits.models.checkpoint import Checkpoint

WIDTH, HIDDEN, VOCABULARY, BLOCKS = 1024, 2816, 16384, 12

# Resident memory counts the mapped pages of the weights as it counts any other; VmHWM is its peak, in KiB.
# (ru_maxrss is that of the process that started this one, where that was larger.)
CODE = """
import sys
from fairbits.text.corpus import Corpus
from fairbits.models.scales.scheme import Scheme
from fairbits.api.audit import audit

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

eng = [f"On day {i} the wind came from the north and brought rain." for i in range(6)]
heb = [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(6)]
weather = Corpus("weather", {"eng": eng, "heb": heb}, {})
audit("embedded:tiny", text=weather, scheme=Scheme(4, 32))  # imports everything
imported = memory("VmRSS")
record = audit(sys.argv[1], text=weather, scheme=Scheme(4, 128))
peak = memory("VmHWM")
print(1024 * imported, 1024 * peak, float(record.predicted.by_block.sum()))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a random Llama; to be quick, its tensors are cut from the same normal numbers."""
    directory = tmp_path_factory.mktemp("large")
    config = t.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=BLOCKS,
        num_attention_heads=16,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(directory)
    normal = 0.02 * np.random.default_rng(0).standard_normal(VOCABULARY * WIDTH, dtype=np.float32)
    ones = np.ones(WIDTH, dtype=np.float32)
    embedding, up = normal.reshape(VOCABULARY, WIDTH), normal[: HIDDEN * WIDTH]
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": embedding[::-1].copy(),
        "model.norm.weight": ones,
    }
    for i in range(BLOCKS):
        square = normal[i : i + WIDTH * WIDTH].reshape(WIDTH, WIDTH)
        tensors |= {f"model.layers.{i}.self_attn.{name}_proj.weight": square for name in "qkvo"}
        tensors |= {f"model.layers.{i}.mlp.{name}_proj.weight": up.reshape(HIDDEN, WIDTH) for name in ("gate", "up")}
        tensors[f"model.layers.{i}.mlp.down_proj.weight"] = up.reshape(WIDTH, HIDDEN)
        tensors |= {f"model.layers.{i}.{name}_layernorm.weight": ones for name in ("input", "post_attention")}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Checkpoint("embedded:tiny").directory / name, directory)
    return directory


@pytest.mark.long
def test_peak_memory_is_little_more_than_the_weights(large: Path) -> None:
    weights = sum(4 * info.numel for info in Checkpoint(large).tensors.values())
    assert weights > 7e8
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, large]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    imported, peak, damage = map(float, done.stdout.split())
    assert damage > 0
    assert weights < peak - imported < 1.2 * weights  # what the audit itself takes
