"""How long `evaluate` takes on an FP8_DYNAMIC checkpoint and on the bfloat16 model it was made from, block by block.

A Llama of a real shape with random weights. Both models pass the same text, one block in memory at a time, after one
pass of the reference; each pass is timed twice, and the shorter time counts.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from safetensors.torch import load_file, save_file

from fairbits import Checkpoint
from fairbits.core.units import gigabytes
from fairbits.evaluation import hidden_states
from fairbits.evaluation.reference import ReferenceModel
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import open_corpus
from presets import copy_tokenizer
from random_models import SHAPES, write_model, write_text

E4M3_MAX, BOUND, TURNS = 448.0, 1.3, 2


def measure(options: argparse.Namespace) -> None:
    """Writes the models and the text if they are not there, and prints seconds and memory of both."""
    name = f"{options.shape}-{options.blocks}"
    plain = write_model(options.out / name, SHAPES[options.shape], options.blocks, device=options.device)
    fp8 = write_fp8(plain, options.out / f"{name}-FP8_DYNAMIC", device=options.device)
    text = write_text(
        options.out / f"text-{options.languages}-{options.tokens}",
        languages=options.languages,
        tokens=options.tokens,
        document=512,
    )
    print(f"{plain}, {fp8}", flush=True)
    if options.only_write:
        return
    hidden_states.fits_whole = lambda *_: False  # also where the model would fit
    request = TextRequest("evaluation", options.tokens, 512)
    rows: dict[str, dict[str, float]] = {}
    with ReferenceModel.on_corpus(
        Checkpoint(plain), open_corpus(str(text), None), request=request, device=options.device
    ) as answers:
        for turn in range(TURNS):
            for format_name, model in (("bfloat16", plain), ("FP8_DYNAMIC", fp8)):
                row = _pass(answers, model, options.device)
                best = rows.get(format_name, row)
                rows[format_name] = row if row["seconds"] < best["seconds"] else best
                print(f"{turn + 1}: {format_name} {json.dumps(row)}", flush=True)
            _write(options, rows)


def _pass(answers: ReferenceModel, model: Path, device: str) -> dict[str, float]:
    """Returns the seconds of one evaluation and the most GPU memory in bytes."""
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    sums = answers.compare(Checkpoint(model), device=device)
    seconds = time.perf_counter() - start
    whole = [note for note in sums.notes if "in memory as a whole" in note]
    if whole:
        raise SystemExit(f"not block by block: {whole[0]}")
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if on_gpu else (0, 0)
    kl = float(sums.kl.sum() / sums.predicted.sum())
    return {"seconds": seconds, "allocated": peaks[0], "reserved": peaks[1], "kl_nats_per_token": kl}


def _write(options: argparse.Namespace, rows: dict[str, dict[str, float]]) -> None:
    ratio = rows["FP8_DYNAMIC"]["seconds"] / rows["bfloat16"]["seconds"]
    record = {"shape": options.shape, "blocks": options.blocks, "languages": options.languages}
    record |= {"tokens": options.tokens, "ratio": ratio, "rows": rows}
    (options.out / "speed.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    peak = gigabytes(max(row["reserved"] for row in rows.values()))
    print(f"ratio {ratio:.2f} (bar {BOUND}), at most {peak} of GPU memory reserved (bar 10 GB)", flush=True)


def write_fp8(plain: Path, out: Path, *, device: str) -> Path:
    """Returns the model in FP8_DYNAMIC: a scale for every row, half the bytes of the linear layers; file by file."""
    if (out / "config.json").is_file():
        return out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    index = json.loads((plain / "model.safetensors.index.json").read_text(encoding="utf-8"))
    for file in sorted(plain.glob("*.safetensors")):
        tensors = {}
        for name, tensor in load_file(file, device=device).items():
            if not name.endswith("_proj.weight"):
                tensors[name] = tensor.cpu()
                continue
            scale = tensor.abs().amax(1, keepdim=True) / E4M3_MAX
            codes = (tensor / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
            tensors |= {name: codes.cpu(), f"{name}_scale": scale.cpu()}
            index["weight_map"][f"{name}_scale"] = file.name
        save_file(tensors, out / file.name, {"format": "pt"})
    (out / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    copy_tokenizer(plain, out)
    scheme = preset_name_to_scheme("FP8_DYNAMIC", ["Linear"])
    settings = QuantizationConfig(
        config_groups={"group_0": scheme},
        ignore=["lm_head"],
        format="float-quantized",
        quantization_status="compressed",
    )
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = json.loads(settings.model_dump_json(exclude_none=True))
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")  # last: it marks the model as complete
    return out
