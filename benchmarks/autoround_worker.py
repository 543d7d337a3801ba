"""AutoRound on a job of `real_autoround.py`, in an environment of its own, without fairbits.

It learns rounding and scales block by block, symmetric, by its recommended 200 iterations of 8 samples.

Scales have either sign, so that the largest weight of a group is the lowest code. All else is left at its default but
the precision: it learns in float32, where by itself it would cast the model to bfloat16 if the processor knows that.
Nothing is compiled. Options of a job change this: `iterations`, `alg_ext` (its extension of the algorithm),
`bfloat16`, `compile` (where AutoRound finds it useful, its default) and `seed`.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound, SignRoundConfig
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ITERATIONS = 200
AT_ONCE = 8
"""Samples of an iteration, its default."""
SEED = 42
"""Its default."""
OFF_GRID = 0.05
"""How far a weight in bfloat16, as a multiple of its scale, may be from a whole number."""


@dataclass(frozen=True)
class Job:
    """Linear layers of a model (dotted paths) to quantize, and token ids to calibrate on."""

    model: str
    modules: list[str]
    samples: list[list[int]]
    bits: int
    group: int | None
    threads: int
    device: str
    options: Mapping[str, Any]


class Warnings(logging.Handler):
    """Keeps what it warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one message."""
        self.messages.append(record.getMessage())


def main() -> None:
    """Carries out the job `JOB DIRECTORY` of the command line: writes weights.safetensors and result.json."""
    _, path, out = sys.argv
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    torch.set_num_threads(job.threads)
    warnings = Warnings()
    logging.getLogger("autoround").addHandler(warnings)
    options, tokenizer = job.options, AutoTokenizer.from_pretrained(job.model)
    half = options.get("bfloat16", False)
    dtype = torch.bfloat16 if half else torch.float32  # it would cast the positions' frequencies as well
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype).eval()
    give_own_positions(model)
    samples = list(islice(cycle(job.samples), len(job.samples) + -len(job.samples) % AT_ONCE))
    run = AutoRound(
        model,
        tokenizer,
        alg_configs=SignRoundConfig(
            iters=options.get("iterations", ITERATIONS),
            bits=job.bits,
            group_size=job.group or -1,
            sym=True,
            enable_alg_ext=options.get("alg_ext", False),
        ),
        dataset=batches(samples, padding=tokenizer.pad_token_id or 0),
        nsamples=len(samples),
        seqlen=max(map(len, samples)),
        batch_size=AT_ONCE,
        seed=options.get("seed", SEED),
        device_map="cuda:0" if job.device == "cuda" else job.device,
        enable_torch_compile=None if options.get("compile", False) else False,  # None: where it finds it useful
        amp=half,
        low_cpu_mem_usage=False,
    )
    if len(samples) > len(job.samples):
        warnings.messages.append(f"{len(samples) - len(job.samples)} of {len(job.samples)} samples were given twice")
    start = time.perf_counter()
    run.quantize()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    result = {
        "versions": {name: version(name) for name in ("auto-round", "torch", "transformers")},
        "seconds": time.perf_counter() - start,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated(),
        "notes": list(dict.fromkeys(warnings.messages)),
    }
    weights = {name: on_grid(model.get_submodule(name), job.bits) for name in job.modules}
    save_file({name: W.detach().float().contiguous() for name, W in weights.items()}, f"{out}/weights.safetensors")
    Path(out, "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def give_own_positions(model: torch.nn.Module) -> None:
    """Makes every attention layer compute its own position embeddings, where layers differ in them.

    AutoRound calls all blocks with what the first was called with. In Gemma 3 the first block is a local one; the
    global ones have another base of rotation, and would learn from wrong outputs.
    """
    body = getattr(model, "base_model", model)
    rotary = getattr(body, "rotary_emb", None)
    if not hasattr(rotary, "layer_types"):
        return
    for layer, kind in zip(body.layers, body.config.layer_types, strict=True):
        layer.self_attn.register_forward_pre_hook(partial(own_positions, rotary, kind), with_kwargs=True)


def own_positions(
    rotary: torch.nn.Module, kind: str, _: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of an attention layer with the position embeddings of its kind; text begins at 0."""
    hidden = positional[0] if positional else named["hidden_states"]
    positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
    return positional, named | {"position_embeddings": rotary(hidden, positions, kind)}


def batches(samples: list[list[int]], *, padding: int) -> list[dict[str, torch.Tensor]]:
    """Returns full batches of samples, each filled up to the longest of all.

    AutoRound drops samples that are shorter than `seqlen`, cannot put different lengths into one batch, and in a batch
    that is not full it misplaces the position biases of BLOOM. What is filled up is masked, and left out of its loss.
    """
    length = max(map(len, samples))
    ids = torch.tensor([sample + [padding] * (length - len(sample)) for sample in samples])
    mask = torch.tensor([[1] * len(sample) + [0] * (length - len(sample)) for sample in samples])
    parts = zip(ids.split(AT_ONCE), mask.split(AT_ONCE), strict=True)
    return [{"input_ids": some, "attention_mask": real} for some, real in parts]


def on_grid(module: Any, bits: int) -> torch.Tensor:
    """Returns whole multiples of the scales in float32; raises unless these are the weights of the module."""
    scale, lowest = module.scale.detach().cpu().float()[:, :, None], -(2 ** (bits - 1))
    weight = module.weight.detach().cpu()
    multiples = weight.float().unflatten(1, (scale.shape[1], -1)) / scale
    codes = multiples.round().clamp(lowest, -lowest - 1)
    exact = weight.dtype == torch.float32
    torch.testing.assert_close(multiples, codes, **({} if exact else {"rtol": 0.0, "atol": OFF_GRID}))
    return weight if exact else (codes * scale).flatten(1)


if __name__ == "__main__":
    main()
