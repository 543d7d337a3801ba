"""κ of published models, by block and role: the tables of docs/research/index.md.

    python benchmarks/kurtosis_tables.py measure [gemma-3-270m …]
    python benchmarks/kurtosis_tables.py text [gemma-3-270m …] [--tokens 128]
    python benchmarks/kurtosis_tables.py write

`measure` reads the weights of every model and keeps its numbers in build/kurtosis/NAME.json. `--by-tensor` reads the
GGUF file of a decoder one tensor at a time, without opening the model, where memory is short. `text` runs the models on
LibreOffice help, for C2, r, and the damage of low- over that of high-resource languages. `write` puts the tables of
all of them between the markers of the page.
"""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

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
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.resource_ratio import DELTA, OBSERVED, resource_ratio
from fairbits_research.theory.redundancy_theorem import disparity_ratio
from real_items import path_of

ROOT = Path(__file__).parents[1]
OUT, PAGE = ROOT / "build/kurtosis", ROOT / "docs/research/index.md"
MODELS = ("embedded:tiny", *published.MODELS)
KAPPA = "<!-- κ tables: written by benchmarks/kurtosis_tables.py write -->", "<!-- end of κ tables -->"
TEXT = "<!-- models on text: written by benchmarks/kurtosis_tables.py write -->", "<!-- end of models on text -->"
"""Markers of the page."""
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


def measure(names: Sequence[str]) -> None:
    """Reads the weights of models, and keeps their numbers."""
    for name in names:
        path = path_of(name)
        row = screen([path]).rows[0]
        if row.problem is not None:
            raise SystemExit(f"{name}: {row.problem}")
        inspection = inspect(path)
        data = {
            **row.as_data(),
            "stacks": [block.stack for block in inspection.checkpoint.architecture.blocks],
            "roles": inspection.as_data()["roles"],
            "weights": sum(info.numel for info in inspection.checkpoint.tensors.values()),
        }
        keep(f"{name}.json", data)


def measure_text(names: Sequence[str], *, languages: Sequence[str], groups: str, tokens: int) -> None:
    """Runs models on text, and keeps C2, r of R̂ and D̂, and the ratio of the damage of groups of languages."""
    for name in names:
        path = str(path_of(name))

        def run_model(checkpoint: Checkpoint, corpus: Corpus, bits: int) -> FromText:
            audited = audit(checkpoint, text=corpus, scheme=Scheme(bits, "channel"), tokens=tokens)
            damage = audited.predicted.estimates()
            return FromText(*({code: e.value for code, e in of.items()} for of in (audited.outlier_share, damage)))

        row = screen([path], corpus=open_corpus("help", languages), measure=run_model).rows[0]
        setting = Setting(path, "help", languages, tokens=tokens, calibration=tokens, groups=groups)
        keep(f"{name}-text.json", {"screen": row.as_data(), "ratio": resource_ratio(Laboratory(setting)).as_data()})


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


def keep(file: str, data: Mapping[str, Any]) -> None:
    """Writes the numbers of a model."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / file.replace(":", "-")).write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(f"wrote {file}", flush=True)


def text_table(models: Mapping[str, dict[str, Any]]) -> Table:
    """Returns one row per model that was run, below the numbers of the research notes."""
    notes = published_statistics()
    r = float(np.corrcoef(notes.outlier_activation, notes.degradation)[0, 1])
    rows = [
        (
            "BLOOM-560M: published, not run here",
            " ".join(map(str, notes.outlier_layers)),
            f"{notes.outlier_activation.var():.2g}",
            f"{r:.2f} (measured D)",
            *("3.8", "1.5", f"{disparity_ratio(3.8, 1.5, delta=DELTA):.1f}", f"{OBSERVED:g}", "–", ""),
        )
    ]
    for title, data in models.items():
        screened, ratio = data["screen"], data["ratio"]
        outliers = screened["robust_outliers"]["blocks"] or []
        (c2,) = [part for part in screened["research_notes"]["conditions"] if part["name"] == "C2"]
        r = screened.get("r_of_share_and_predicted_damage")
        redundancy, tests = (table["rows"] for table in ratio["tables"])
        four, _, three, _ = tests
        rows.append(
            (
                title,
                " ".join(map(str, outliers)) or "none",
                f"{c2['value']:.2g}" if outliers else "–",
                f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if outliers and r else "–",
                *(row[2] for row in redundancy[:2]),
                four[2],
                four[3],
                three[3],
                ratio["answer"],
            )
        )
    headers = ("model", "outlier blocks", "variance of R̂", "r(R̂, D̂)", "R high", "R low", "predicted ratio")
    return Table("", (*headers, "at 4 bits", "at 3 bits", "corollary"), tuple(rows), left=(1, 9))


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
    yield "The models of the research notes:"
    yield census_table().markdown()
    yield f"κ by role, the {SHOWN} blocks of the largest κ of every stack:"
    for title, data in models.items():
        blocks = zip(data["stacks"], enumerate(zip(data["kappa"], data["roles"], strict=True)), strict=True)
        for stack, inside in groupby(blocks, key=lambda pair: pair[0]):
            yield roles_table(title, stack, [(i, *both) for _, (i, both) in inside]).markdown()


def write(page: Path) -> None:
    """Replaces what is between the markers of the page, where there are measurements."""
    read, ran = stored(""), stored("-text")
    parts = {KAPPA: page_lines(read) if read else (), TEXT: (text_table(ran).markdown(),) if ran else ()}
    for (begin, end), lines in parts.items():
        head, rest = page.read_text("utf-8").split(begin)
        body = "\n\n".join(part.strip() for part in lines)
        if body:
            page.write_text(f"{head}{begin}\n\n{body}\n\n{end}{rest.split(end, 1)[1]}", "utf-8")


def stored(kind: str) -> dict[str, dict[str, Any]]:
    """Returns the measurements of every model that has some, by its title."""
    titles = {name: published.MODELS[name].title if name in published.MODELS else name for name in MODELS}
    files = {title: OUT / f"{name.replace(':', '-')}{kind}.json" for name, title in titles.items()}
    return {title: json.loads(file.read_text("utf-8")) for title, file in files.items() if file.exists()}


def main() -> None:
    """Carries out a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    measuring, running, writing = map(stages.add_parser, ("measure", "text", "write"))
    for stage in (measuring, running):
        stage.add_argument("models", nargs="*", default=list(MODELS))
    running.add_argument("--high", default="eng,deu,fra,spa", help="high-resource languages")
    running.add_argument("--low", default="fin,est,eus,hun", help="low-resource languages")
    running.add_argument("--tokens", type=int, default=128, help="of every language")
    measuring.add_argument("--by-tensor", action="store_true", help="read GGUF files one tensor at a time")
    writing.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.stage == "write":
        write(options.page)
    elif options.stage == "text":
        languages, groups = f"{options.high},{options.low}".split(","), f"high={options.high};low={options.low}"
        measure_text(options.models, languages=languages, groups=groups, tokens=options.tokens)
    elif options.by_tensor:
        for name in options.models:
            keep(f"{name}.json", measure_by_tensor(name))
    else:
        measure(options.models)


if __name__ == "__main__":
    main()
