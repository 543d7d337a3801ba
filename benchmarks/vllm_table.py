"""Writes what `vllm_check.py run` has found into docs/models.md: a table with a row for every case."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measured import number
from real_groups import table

PAGE = Path(__file__).parents[1] / "docs/models.md"
BEGIN, END = "<!-- vLLM: written by benchmarks/vllm_check.py table -->", "<!-- end of vLLM -->"
GPU_BEGIN = "<!-- vLLM on a GPU: written by benchmarks/vllm_check.py table --gpu -->"
GPU_END = "<!-- end of vLLM on a GPU -->"
NAMES = {
    "llama": "Llama",
    "qwen2": "Qwen2, tied",
    "qwen3": "Qwen3",
    "gemma3": "Gemma 3, tied",
    "bloom": "BLOOM, tied",
    "opt": "OPT, tied",
    "gpt_neox": "GPT-NeoX",
    "embedded": "`embedded:tiny`",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3-MoE",
    "mistral": "Mistral",
    "phi3": "Phi 3",
    "gemma2": "Gemma 2, tied",
    "cohere2": "Cohere 2, tied",
    "olmo2": "OLMo 2",
    "granite": "Granite",
    "glm4": "GLM 4",
    "smollm3": "SmolLM3, tied",
    "apertus": "Apertus",
    "starcoder2": "StarCoder 2, tied",
    "olmoe": "OLMoE",
    "qwen2_moe": "Qwen2-MoE",
    "deepseek_v2": "DeepSeek V2",
    "deepseek_v3": "DeepSeek V3",
    "glm4_moe": "GLM 4 MoE",
    "gpt_oss": "GPT-OSS",
    "granite_moe": "Granite MoE",
    "qwen3_next": "Qwen3-Next",
    "granite_hybrid": "Granite 4 hybrid",
    "falcon_h1": "Falcon H1",
    "lfm2": "LFM2",
    "llama4": "Llama 4, text",
}
STAND_IN = "PlainKernel"
HEADS = (
    *("model", "bits", "group", "embedding and head", "policy", "type"),
    *("vLLM", "same tokens", "logits", "loss", "transformers"),
)


def write_table(results: Path, page: Path, *, gpu: bool = False) -> None:
    """Replaces what is between the markers of the page, those of the CPU or of a GPU."""
    begin, end = (GPU_BEGIN, GPU_END) if gpu else (BEGIN, END)
    content = json.loads(results.read_text("utf-8"))
    head, rest = page.read_text("utf-8").split(begin)
    text = "\n".join(lines(content, build="CUDA build" if gpu else "CPU build"))
    page.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}", "utf-8")


def lines(results: Mapping[str, Any], *, build: str = "CPU build") -> Iterator[str]:
    """Yields the caption, the table and what the damaged checkpoint showed."""
    settings, every = results["settings"], results["cases"]
    shown = [case for case in every if not case["damaged"]]
    measured = next(case for case in shown if "losses" in case)
    where = settings.get("machine") or "processor not recorded"
    yield (
        f"vLLM {settings['vllm']} ({build}, {where}) and transformers {settings['transformers']} with "
        f"compressed-tensors {settings['compressed_tensors']}, on the same files. Small models of the real classes, "
        "trained for seconds. "
        f"{measured['prompts']} prompts and {settings['new_tokens']} greedy tokens each; the logits after every prompt "
        f"(their standard deviation in the first row is {measured['logits']['spread']:.1f}); texts in "
        f"{len(measured['losses'])} languages, {settings['texts_per_language']} of {settings['tokens_per_text']} "
        "tokens each. The largest absolute difference between the two programs, over all prompts and over all "
        "languages. Tokens and logits: transformers in the same type; losses: transformers in float32.\n"
    )
    yield from table(HEADS, [row(case) for case in shown])
    for case in every:
        if case["damaged"]:
            loss = worst_loss(case)
            lost = "" if math.isnan(loss) else f", and the loss of a language by up to {loss:.2g}"
            yield (
                "\nAs a control, one scale of the 4-bit Llama was doubled: logits then differ by up to "
                f"{case['logits']['most']:.2g}{lost}."
            )


def row(case: Mapping[str, Any]) -> Sequence[str]:
    """Returns the cells of a case."""
    plain = case["bits"] is None
    bits = f"{case['bits']} and 8" if case["policy"] == "protect" else str(case["bits"])
    how = ["–"] * 4 if plain else [bits, str(case["group"]), embeddings(case), f"`{case['policy']}`"]
    start = [NAMES[case["family"]], *how, case["dtype"]]
    if "error" in case:
        return [*start, f"fails: {case['error'].split(': ')[0]}", "", "", "", "loads"]
    same = f"{case['equal']} of {case['prompts']}"
    return [*start, served(case), same, size(case["logits"]["most"]), size(worst_loss(case)), "loads"]


def embeddings(case: Mapping[str, Any]) -> str:
    """Returns what became of embedding and head."""
    return {"keep": "kept", "head 4": "head 4 bits"}.get(
        str(case["embeddings"]), f"`--embeddings {case['embeddings']}`"
    )


def served(case: Mapping[str, Any]) -> str:
    """Returns which kernels of vLLM computed the model, if its own did."""
    if STAND_IN in case["kernels"]:
        return "loads; stand-in kernel"
    kernels = [kernel.removesuffix("LinearKernel") for kernel in case["kernels"] if kernel != "CPUWNA16LinearKernel"]
    return f"serves: {', '.join(kernels)}" if kernels else "serves"


def worst_loss(case: Mapping[str, Any]) -> float:
    """Returns the largest difference in the loss of a language, nats per token; NaN if vLLM told no losses."""
    return max(map(abs, case["loss_differences"].values()), default=math.nan)


def size(value: float) -> str:
    """Returns a difference, or that there is hardly any; nothing if it is not known."""
    if math.isnan(value):
        return ""
    return "< .0001" if value < 1e-4 else number(value, 4)


FORMATS_PAGE = PAGE.with_name("formats.md")
SCHEMES_BEGIN = "<!-- schemes: written by benchmarks/vllm_check.py table --schemes -->"
SCHEMES_END = "<!-- end of schemes -->"


def write_schemes(results: Path, page: Path = FORMATS_PAGE) -> None:
    """Replaces the table of the formats that fairbits writes."""
    content = json.loads(results.read_text("utf-8"))
    head, rest = page.read_text("utf-8").split(SCHEMES_BEGIN)
    text = "\n".join(scheme_lines(content))
    page.write_text(f"{head}{SCHEMES_BEGIN}\n\n{text}\n\n{SCHEMES_END}{rest.split(SCHEMES_END)[1]}", "utf-8")


def scheme_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the caption, a row for every format with a column for every family, and why vLLM refused."""
    settings, every = results["settings"], results["cases"]
    families = list(dict.fromkeys(case["family"] for case in every))
    languages = len(next(case for case in every if "losses" in case)["losses"])
    by_scheme: dict[str, dict[str, Any]] = {}
    for case in every:
        by_scheme.setdefault(case["scheme"], {})[case["family"]] = case
    yield (
        f"vLLM {settings['vllm']} (CPU build, {settings.get('machine') or 'processor not recorded'}, bfloat16), "
        f"transformers {settings['transformers']} with compressed-tensors {settings['compressed_tensors']} and "
        "fairbits read the same files, which `quantize --policy gptq --scheme` wrote. Small models of the real "
        "classes, trained for seconds. Column transformers: the largest difference of its logits from those of "
        "fairbits, relative to the largest logit, over all models but Mixtral, the inputs of whose experts it does "
        "not round; † computed in bfloat16. Columns of models: the largest difference of vLLM's loss from that of "
        f"fairbits (float32), over {languages} languages of {settings['texts_per_language']} texts with "
        f"{settings['tokens_per_text']} tokens, in nats per token.\n"
    )
    reasons: list[str] = []
    rows = []
    for scheme, cases in by_scheme.items():
        read = [case["transformers"] for case in cases.values() if case["family"] != "mixtral"]
        most = size(max(entry["logits"] for entry in read)) + " †" * any(entry["type"] != "float32" for entry in read)
        rows.append([scheme, most, *(_scheme_cell(cases[family], reasons) for family in families)])
    yield from table(("scheme", "transformers", *(NAMES[family] for family in families)), rows)
    for number_of, reason in enumerate(reasons, 1):
        yield f"\n[{number_of}] vLLM: `{reason}`"


def _scheme_cell(case: Mapping[str, Any], reasons: list[str]) -> str:
    if "error" not in case:
        return size(worst_loss(case))
    reason = re.split(r" for layer_name| \(weight_key|\. Reasons| Declaration", case["error"])[0]
    if reason not in reasons:
        reasons.append(reason)
    return f"[{reasons.index(reason) + 1}]"
