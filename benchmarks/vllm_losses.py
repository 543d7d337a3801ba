"""Losses of every language in vLLM and in fairbits: the same files, the same tokens.

    python benchmarks/vllm_losses.py [VARIANT …] [--out build/vllm-losses] [--environment DIR]

The checkpoints are those of `practice.py`. vLLM, its CPU build in an environment of its own, computes each in bfloat16
and in float32; fairbits in float32, as `evaluate` does. What is in `--out` is kept: delete it to begin anew.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from environments import python_of
from fairbits import Checkpoint
from fairbits.core.progress import QUANTIZED
from fairbits.core.table import Table
from fairbits.evaluation.hidden_states import evaluated_model
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.text.corpus import TextRequest
from fairbits.text.language_codes import short_name
from fairbits.text.reading import open_corpus
from practice import ROOT, Place, report, write
from vllm_check import GPU_BUILDS, PACKAGES

WORKER = Path(__file__).with_name("vllm_losses_worker.py")
VARIANTS = ("FP8_DYNAMIC", "FP8", "FP8_BLOCK", "W8A8", "W4A8", "W4A16", "FP8-KV", "MXFP4", "NVFP4")
LANGUAGES, TYPES, REFERENCE = ("eng_Latn", "fin_Latn", "ell_Grek", "kor_Hang"), ("bfloat16", "float32"), "reference"
OPTIONS = {"FP8-KV": {"kv_cache_dtype": "fp8"}, "NVFP4": {"emulate": True}}
Losses = Mapping[str, Any]
"""The nats of every window, or an error."""


def text_of(reference: Path, options: argparse.Namespace) -> TokenizedText:
    """Returns the evaluation text of the languages."""
    request = TextRequest("evaluation", options.tokens, 512)
    return tokenize_corpus(Checkpoint(reference), open_corpus("help", options.languages), request=request, least=1)


def in_fairbits(model: Path, text: TokenizedText, file: Path) -> np.ndarray:
    """Returns the nats of every document as fairbits computes them."""
    if not file.exists():
        file.write_text(json.dumps(document_nats(model, text).tolist()), encoding="utf-8")
        report(f"{model.name}: in fairbits")
    return np.array(json.loads(file.read_text("utf-8")))


@torch.no_grad()
def document_nats(model: Path, text: TokenizedText) -> torch.Tensor:
    """Returns the nats of every document, of the model that `evaluate` computes with."""
    evaluated = evaluated_model(Checkpoint(model), text, device="cpu")
    sums = torch.zeros(len(text.lang), dtype=torch.float64)
    for states in evaluated.features(QUANTIZED, None):
        for part in states.split(evaluated.logit_positions):
            nats = cross_entropy(evaluated.head(part.features).float(), part.labels, reduction="none")
            sums.index_add_(0, part.documents, nats.double())
    return sums


def in_vllm(models: Mapping[str, Path], text: TokenizedText, options: argparse.Namespace) -> dict[str, Losses]:
    """Returns the nats of every document as vLLM computes them, or its error, by model and type.

    A process that dies is started again without what it died of.
    """
    asked = {
        f"{name}.{dtype}": [str(path.resolve()), dtype, OPTIONS.get(name, {})]
        for dtype in options.types
        for name, path in models.items()
    }
    files = {name: options.out / f"{name}.json" for name in asked}
    job, log = options.out / "job.json", options.out / "log.txt"
    windows = [window_of(window.main) for window in text.windows]
    job.write_text(json.dumps({"models": asked, "windows": windows}))
    while missing := [name for name, file in files.items() if not file.exists()]:
        report(f"in vLLM: {', '.join(missing)}")
        python = python_of(options.environment, PACKAGES, without=GPU_BUILDS)
        with log.open("ab") as output:
            subprocess.run([python, WORKER, job, options.out], stdout=output, stderr=output, check=False)
        died = next((name for name in missing if not files[name].exists()), None)
        if died is not None:
            files[died].write_text(json.dumps({"error": f"the process ended; {log} says more"}))
    return {name: json.loads(file.read_text("utf-8")) for name, file in files.items()}


def window_of(part: Any) -> dict[str, list[int]]:
    """Returns the tokens of a window and the places of those that are predicted."""
    predicted = [t + 1 for t, label in enumerate(part.labels) if label != NO_LABEL]
    assert all(part.ids[t] == part.labels[t - 1] for t in predicted)
    return {"ids": part.ids, "predicted": predicted}


def table(text: TokenizedText, fairbits: Mapping[str, np.ndarray], vllm: Mapping[str, Losses]) -> str:
    """Returns a row for every format and language: nats per token; and what vLLM refuses."""
    documents = [window.document for window in text.windows]
    lengths = [len(window_of(window.main)["predicted"]) for window in text.windows]
    counts = np.bincount(documents, lengths)
    rows, refused = [], []
    for name, dtype in product(VARIANTS, TYPES):
        reply = vllm.get(f"{name}.{dtype}", {})
        refused += [f"- {name}, {dtype}: {reply['error']}"] if "error" in reply else []
        if "nats" in reply:
            plain = np.bincount(documents, vllm[f"{REFERENCE}.{dtype}"]["nats"])
            served = np.bincount(documents, reply["nats"]) - plain
            here = fairbits[name] - fairbits[REFERENCE]
            columns = np.array([served, here, served - here, plain - fairbits[REFERENCE]])
            for code in text.languages:
                of = text.lang == code
                cells = columns[:, of].sum(1) / counts[of].sum()
                error = np.linalg.norm(columns[2, of] - cells[2] * counts[of]) / counts[of].sum()
                values = (*(f"{value:+z.4f}" for value in cells[:3]), f"{error:.4f}", f"{cells[3]:+z.4f}")
                rows.append((name, dtype, short_name(code), *values))
    heads = ("format", "type", "language", "added loss in vLLM", "in fairbits", "difference", "standard error")
    tokens = ", ".join(f"{short_name(code)} {counts[text.lang == code].sum():,.0f}" for code in text.languages)
    shown = Table("", (*heads, "noise of the type"), tuple(rows), left=(0, 1, 2)).markdown()
    return "\n\n".join([shown, f"Tokens: {tokens}.", *refused])


def main() -> None:
    """Computes what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS), help=", ".join(VARIANTS))
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--languages", nargs="+", default=LANGUAGES)
    parser.add_argument("--tokens", type=int, default=500, help="of every language, about")
    parser.add_argument("--out", type=Path, default=ROOT / "build/vllm-losses")
    parser.add_argument("--environment", type=Path, default=ROOT / "build/vllm-environment", help="vLLM's own")
    parser.add_argument("--types", nargs="+", default=TYPES, help="that vLLM computes in")
    options = parser.parse_args()
    options.device, options.awq_python = "cpu", ""
    write(options)
    place = Place(options.out, options.model)
    text = text_of(place.reference, options)
    models = {REFERENCE: place.reference} | {variant: place.checkpoint(variant) for variant in options.variants}
    vllm = in_vllm(models, text, options)
    served = [name for name in models if any("nats" in vllm[f"{name}.{dtype}"] for dtype in options.types)]
    fairbits = {name: in_fairbits(models[name], text, options.out / f"{name}.fairbits.json") for name in served}
    print(table(text, fairbits, vllm))


if __name__ == "__main__":
    main()
