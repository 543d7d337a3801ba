"""κ of published models, by block and role: the tables of docs/research/index.md.

    python benchmarks/kurtosis_tables.py measure [gemma-3-270m …] [--languages eng,fra --tokens 512]
    python benchmarks/kurtosis_tables.py write

`measure` reads the weights of every model and keeps its numbers in build/kurtosis/NAME.json; with languages, it runs
the model too, for C2 and r. `--by-tensor` reads the GGUF file of a decoder one tensor at a time, without opening the
model, where memory is short. `write` puts the tables of all of them between the markers of the page.
"""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import published
from fairbits.api.audit import audit
from fairbits.api.inspect import inspect
from fairbits.api.screen import FromText, screen
from fairbits.core.table import Table
from fairbits.kurtosis.checklist import published_statistics, risk_assessment, risk_class, robust_outliers
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import Moments, mixture_moments, tensor_moments
from fairbits.text.corpus import Corpus
from fairbits.text.reading import open_corpus
from real_items import path_of

ROOT = Path(__file__).parents[1]
OUT, PAGE = ROOT / "build/kurtosis", ROOT / "docs/research/index.md"
MODELS = ("embedded:tiny", *published.MODELS)
BEGIN, END = "<!-- κ tables: written by benchmarks/kurtosis_tables.py write -->", "<!-- end of κ tables -->"
SHOWN = 3
"""Blocks of the largest κ that are shown of every stack."""
GGUF_ROLES = {
    **{f"attn_{role}": role for role in "qkv"},
    "attn_output": "o",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
PROFILES = {"BLOOM-560M": "BLOOM-560M", "XGLM-564M": "XGLM-564M", "GPT-2-small": "GPT-2"}
"""Models of the census whose κ is also published block by block."""


def run_model(checkpoint: Checkpoint, corpus: Corpus, bits: int, *, tokens: int) -> FromText:
    """Returns what a model does with text, on so many tokens of every language."""
    audited = audit(checkpoint, text=corpus, scheme=Scheme(bits, "channel"), tokens=tokens)
    damage = audited.predicted.estimates()
    return FromText(*({code: e.value for code, e in of.items()} for of in (audited.outlier_share, damage)))


def measure(names: Sequence[str], *, languages: Sequence[str] | None, tokens: int) -> None:
    """Measures models, and keeps their numbers."""
    corpus = None if languages is None else open_corpus("help", languages)
    for name in names:
        path = path_of(name)
        row = screen([path], corpus=corpus, measure=partial(run_model, tokens=tokens)).rows[0]
        if row.problem is not None:
            raise SystemExit(f"{name}: {row.problem}")
        inspection = inspect(path)
        data = {
            **row.as_data(),
            "stacks": [block.stack for block in inspection.checkpoint.architecture.blocks],
            "roles": inspection.as_data()["roles"],
            "weights": sum(info.numel for info in inspection.checkpoint.tensors.values()),
        }
        keep(name, data)


def measure_by_tensor(name: str) -> dict[str, Any]:
    """Returns the numbers of a GGUF file of a decoder, with one dequantized tensor in memory at a time."""
    import gguf
    import torch

    blocks: dict[int, dict[str, Moments]] = {}
    weights = 0
    for tensor in gguf.GGUFReader(path_of(name)).tensors:
        weights += int(tensor.n_elements)
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if match is not None and match[2] in GGUF_ROLES:
            values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type))
            blocks.setdefault(int(match[1]), {})[GGUF_ROLES[match[2]]] = tensor_moments(values)
    roles = [
        {role: block[role] for role in GGUF_ROLES.values() if role in block} for _, block in sorted(blocks.items())
    ]
    kappa = [mixture_moments([*parts.values()], [part.n for part in parts.values()]).kappa for parts in roles]
    return {
        "kappa": kappa,
        "robust_outliers": asdict(robust_outliers(kappa)),
        "research_notes": asdict(risk_assessment(kappa, outlier_share=None, bits=4)),
        "stacks": ["decoder"] * len(kappa),
        "roles": [{role: part.kappa for role, part in parts.items()} for parts in roles],
        "weights": weights,
    }


def keep(name: str, data: Mapping[str, Any]) -> None:
    """Writes the numbers of a model."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name.replace(':', '-')}.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(f"{name}: max κ {max(data['kappa']):.2f}", flush=True)


def models_table(models: Mapping[str, dict[str, Any]]) -> Table:
    """Returns one row per model that was read."""
    rows = []
    for title, data in models.items():
        notes, top = data["research_notes"], max(data["kappa"])
        marks = {part["name"]: {True: "yes", False: "no", None: "–"}[part["holds"]] for part in notes["conditions"]}
        block = data["kappa"].index(top)
        role, tensor = max(
            ((role, kappa) for of in data["roles"] for role, kappa in of.items()), key=lambda pair: pair[1]
        )
        outliers = data["robust_outliers"]["blocks"]
        rows.append(
            (
                title,
                f"{data['weights'] / 1e6:,.0f} M",
                str(len(data["kappa"])),
                f"{top:.1f}",
                f"{data['stacks'][block]} {block}" if len(set(data["stacks"])) > 1 else str(block),
                f"{tensor:.1f} ({role})",
                "–" if outliers is None else " ".join(map(str, outliers)) or "none",
                notes["risk"],
                *(marks[name] for name in ("C1", "C2", "C3")),
            )
        )
    headers = ("model", "weights", "blocks", "max κ", "in", "largest κ of a role", "outlier blocks", "class")
    return Table("", (*headers, "C1", "C2", "C3"), tuple(rows), left=(4, 5, 6, 7))


def census_table() -> Table:
    """Returns the published models, which were not read."""
    statistics = published_statistics()
    rows = []
    for name, kappa in sorted(statistics.max_kurtosis.items(), key=lambda pair: -pair[1]):
        profile = statistics.kurtosis[PROFILES[name]].tolist() if name in PROFILES else []
        largest = f"{max(profile):.1f} in {profile.index(max(profile))}" if profile else "–"
        rows.append((f"{name}: published, not read here", f"{kappa:g}", largest, risk_class(kappa)))
    return Table(
        "", ("model", "max κ, census", "max κ, profile by block", "class by the census"), tuple(rows), left=(3,)
    )


def roles_table(title: str, stack: str, blocks: Sequence[tuple[int, float, Mapping[str, float]]]) -> Table:
    """Returns κ by role of the blocks with the largest κ of a stack, and the median over its blocks."""
    columns = list(dict.fromkeys(role for _, _, roles in blocks for role in roles))
    top = sorted(sorted(blocks, key=lambda block: -block[1])[:SHOWN])
    rows = [
        (str(index), f"{kappa:.2f}", *(f"{roles[role]:.2f}" if role in roles else "–" for role in columns))
        for index, kappa, roles in top
    ]
    middle = [median(roles[role] for _, _, roles in blocks if role in roles) for role in columns]
    rows.append(("median", f"{median(kappa for _, kappa, _ in blocks):.2f}", *(f"{value:.2f}" for value in middle)))
    return Table(f"{title}, {stack}", ("block", "all", *columns), tuple(rows))


def page_lines(models: Mapping[str, dict[str, Any]]) -> Iterable[str]:
    """Yields everything between the markers."""
    yield models_table(models).markdown()
    yield (
        "Gemma, Qwen and SmolLM2 are read from GGUF files of 4 to 8 bits, so their κ is that of rounded weights. "
        "OPUS-MT and the embedded model are not quantized. κ is of all linear weights of a block together. C3 is for 4 "
        "bits. C2 needs text; – means that the model was not run."
    )
    for title, data in models.items():
        if (text := data.get("r_of_share_and_predicted_damage")) is not None:
            estimate = f"{text['value']:.2f} [{text['low']:.2f}, {text['high']:.2f}]"
            yield f"{title}: r of R̂ and the predicted damage is {estimate} over {text['n']} languages."
    yield "The models of the research notes:"
    yield census_table().markdown()
    yield f"κ by role, the {SHOWN} blocks of the largest κ of every stack:"
    for title, data in models.items():
        blocks = zip(data["stacks"], enumerate(zip(data["kappa"], data["roles"], strict=True)), strict=True)
        for stack, inside in groupby(blocks, key=lambda pair: pair[0]):
            yield roles_table(title, stack, [(i, *both) for _, (i, both) in inside]).markdown()


def write(page: Path) -> None:
    """Replaces what is between the markers of the page."""
    models = {}
    for name in MODELS:
        file = OUT / f"{name.replace(':', '-')}.json"
        if file.exists():
            title = published.MODELS[name].title if name in published.MODELS else name
            models[title] = json.loads(file.read_text("utf-8"))
    head, rest = page.read_text("utf-8").split(BEGIN)
    body = "\n\n".join(part.strip() for part in page_lines(models))
    page.write_text(f"{head}{BEGIN}\n\n{body}\n\n{END}{rest.split(END, 1)[1]}", "utf-8")


def main() -> None:
    """Carries out a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    measuring, writing = map(stages.add_parser, ("measure", "write"))
    measuring.add_argument("models", nargs="*", default=list(MODELS))
    measuring.add_argument(
        "--languages", type=lambda names: names.split(","), help="also run the models, such as eng,fra"
    )
    measuring.add_argument("--tokens", type=int, default=512, help="of every language")
    measuring.add_argument("--by-tensor", action="store_true", help="read GGUF files one tensor at a time")
    writing.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.stage == "write":
        write(options.page)
    elif options.by_tensor:
        for name in options.models:
            keep(name, measure_by_tensor(name))
    else:
        measure(options.models, languages=options.languages, tokens=options.tokens)


if __name__ == "__main__":
    main()
