"""What vLLM is asked to serve: families, widths, groups, embeddings, policies; and the checkpoints of these."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import fairbits as fb
from fairbits.models.scales.scheme import Group, Scheme
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.option import SCHEMES
from vllm_models import EMBEDDED, EXPERT_MODELS, LANGUAGES, MODELS, OTHER_MODELS, small_model

BFLOAT16 = ("gemma2", "gemma3", "gpt_oss", "glm4", "apertus")
"""Families that vLLM does not serve in float16."""
WITH_TEXT = {"languages": LANGUAGES[:2], "tokens": 256, "sequence": 64}
BLOCKS_OF_TWO_WIDTHS = {"policy": "protect", "k": 1, **WITH_TEXT}


@dataclass(frozen=True)
class Case:
    """A checkpoint and the type that it is served in; `bits` None is the model before quantization.

    `embeddings`  "keep", 8 or 4, or "head 4": the head alone in 4 bits
    `damaged`     one scale is doubled after quantization, to see that the comparison notices
    `scheme`      a format that servers know, instead of bits and group
    """

    family: str
    bits: int | None = 4
    group: Group = 64
    embeddings: str | int = "keep"
    options: Mapping[str, Any] = field(default_factory=lambda: {"policy": "rtn"}, hash=False)
    dtype: str = "float16"
    damaged: bool = False
    scheme: str | None = None

    @property
    def tokenizer(self) -> str:
        """Which tokenizer it has."""
        return "embedded" if self.family == "embedded" else "small"

    @property
    def policy(self) -> str:
        """The policy with the options that matter to the file."""
        grid = f", grid {self.options['grid']}" if "grid" in self.options else ""
        return f"{self.options['policy']}{grid}"

    @property
    def name(self) -> str:
        """A name for files."""
        how = (
            "plain"
            if self.bits is None and self.scheme is None
            else f"w{self.bits}-{self.group}-{self.embeddings}-{self.policy}"
        )
        how = how if self.scheme is None else f"{self.scheme}-{self.policy}"
        return f"{self.family}-{how}-{self.dtype}{'-damaged' * self.damaged}".replace(" ", "").replace(",", "-")


def cases() -> list[Case]:
    """Returns all cases: every family plain and in 4 bits, and everything else on a family that shows it.

    vLLM's CPU kernel computes 4 bits in float16 and bfloat16, and Gemma 3 not in float16. What it does not compute is
    served in float32, where differences are smallest.
    """
    exact = {"dtype": "float32"}
    every = [Case(family, bits, dtype=sixteen_bits(family)) for family in (*MODELS, "embedded") for bits in (4, None)]
    precise = [Case(family, **exact) for family in ("llama", "qwen2", "gemma3", "bloom")]
    tables = [Case("llama", embeddings=embeddings) for embeddings in ("head 4", 8, 4)] + [Case("qwen2", embeddings=8)]
    signed = Case("llama", options={"policy": "rtn", "grid": "signed"})
    policies = [
        Case("llama", options={"policy": "gptq", **WITH_TEXT}),
        Case("llama", options={"policy": "laaciq", **WITH_TEXT}),
        Case("llama", options=BLOCKS_OF_TWO_WIDTHS, **exact),
        Case("bloom", options=BLOCKS_OF_TWO_WIDTHS, **exact),
    ]
    groups = [Case("llama", group=group) for group in (32, 128, "channel")]
    widths = [Case("llama", bits, **exact) for bits in (8, 3, 2, 5, 6, 7)]
    others = [Case("bloom", group="channel"), *(Case(family, 8, **exact) for family in ("qwen2", "gemma3", "bloom"))]
    return [*every, *precise, Case("llama", damaged=True), *tables, signed, *policies, *groups, *widths, *others]


def gpu_cases() -> list[Case]:
    """Returns what is served on a GPU: every family plain, in 4 and in 8 bits, and what no CPU kernel computes."""
    families = (*MODELS, "embedded", *EXPERT_MODELS)
    every = [Case(family, bits, dtype=sixteen_bits(family)) for family in families for bits in (4, 8, None)]
    large = [Case(family, group=128, dtype=sixteen_bits(family)) for family in families]
    groups = [Case("llama", group=group) for group in (32, "channel")]
    widths = [Case("llama", bits) for bits in (3, 2, 5, 6, 7)]
    signed = [Case("llama", group=group, options={"policy": "rtn", "grid": "signed"}) for group in (64, 128)]
    policies = [Case(family, options=BLOCKS_OF_TWO_WIDTHS) for family in ("llama", "bloom")]
    head = Case("llama", embeddings="head 4")
    others = [Case(family, bits, dtype=sixteen_bits(family)) for family in OTHER_MODELS for bits in (4, None)]
    return [*every, *others, *large, *groups, *widths, *signed, *policies, head, Case("llama", damaged=True)]


def scheme_cases() -> list[Case]:
    """Returns every format that `quantize --scheme` writes, on five families, with gptq."""
    families, options = ("llama", "qwen2", "gemma3", "mixtral", "bloom"), {"policy": "gptq", **WITH_TEXT}
    return [
        Case(family, None, options=options, dtype="bfloat16", scheme=scheme)
        for scheme in SCHEMES
        for family in families
    ]


def sixteen_bits(family: str) -> str:
    """Returns the type of 16 bits that vLLM serves a family in."""
    return "bfloat16" if family in BFLOAT16 else "float16"


def model_of(case: Case, root: Path) -> Path:
    """Returns the model of a case before quantization."""
    if case.family == "embedded":
        return fb.Checkpoint(EMBEDDED).directory
    return small_model(case.family, root / "models" / case.family)


def checkpoint_of(case: Case, root: Path) -> Path:
    """Returns the directory that is served, which is written if it is not there."""
    model = model_of(case, root)
    if case.bits is None and case.scheme is None:
        return model
    out = root / "checkpoints" / replace(case, dtype="any").name
    if not out.exists():
        if case.damaged:
            damage(checkpoint_of(replace(case, damaged=False), root), out)
        else:
            fb.quantize(model, plan_of(case, model), out=out)
    return out


def plan_of(case: Case, model: Path) -> Plan:
    """Returns the plan of a case."""
    settings = dict(case.options) | {"bits": case.bits, "group": case.group}
    if case.scheme is not None:
        settings = dict(case.options) | {"scheme": case.scheme}
    if case.embeddings != "head 4":
        return fb.plan(model, **settings, embeddings=case.embeddings)
    plan = fb.plan(model, **settings)
    head = Scheme(4, case.group)
    layers = [replace(layer, scheme=head) if layer.role == "head" else layer for layer in plan.layers]
    return replace(plan, layers=tuple(layers))


def damage(source: Path, out: Path) -> None:
    """Copies a checkpoint and doubles one scale of its first packed matrix."""
    shutil.copytree(source, out)
    for file in sorted(out.glob("model-*.safetensors")):
        tensors = load_file(file)
        scales = next((name for name in sorted(tensors) if name.endswith("down_proj.weight_scale")), None)
        if scales is not None:
            tensors[scales][0, 0] *= 2
            save_file(tensors, file, metadata={"format": "pt"})
            return
    raise ValueError(f"{source} has no packed matrix")


def token_ids(directory: Path, *, prompts: int, length: int) -> tuple[list[list[int]], dict[str, list[list[int]]]]:
    """Returns prompts, and texts of every language, as tokens: from the evaluation split of the help text."""
    tokenizer = fb.Checkpoint(directory).tokenizer()
    split = fb.help_text(LANGUAGES).evaluation
    texts = {
        lang: [ids for text in split[lang] if len(ids := tokenizer(text).input_ids[:length]) == length][:prompts]
        for lang in LANGUAGES
    }
    starts = [ids[: length // 2] for language_texts in texts.values() for ids in language_texts[:2]]
    return starts, texts


@torch.no_grad()
def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """Returns the most probable next tokens, each given those before, and the logits after the prompt."""
    ids = list(prompt)
    first = None
    for _ in range(count):
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        first = logits if first is None else first
        ids.append(int(logits.argmax()))
    assert first is not None
    return ids[len(prompt) :], first


@torch.no_grad()
def nats_of(model: Any, ids: list[int]) -> float:
    """Returns the negative log-likelihood of a text, given its first token."""
    batch = torch.tensor([ids])
    logits = model(input_ids=batch).logits[0, :-1].float()
    return float(torch.nn.functional.cross_entropy(logits, batch[0, 1:], reduction="sum"))
