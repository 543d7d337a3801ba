"""The table of docs/formats.md: python tests/formats/table.py --environments DIR --out DIR.

Every format is written by its own tool, in the environment of that tool, which is made in DIR where it is missing;
fairbits evaluates it three ways, and independent.py says what is right. What is in --out is not written again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
for place in ("benchmarks", "tests", "tests/architectures"):
    sys.path.append(str(ROOT / place))
from environments import PACKAGES, QUANTIZERS, python_of  # noqa: E402

PAGE = ROOT / "docs/formats.md"
START, END = "<!-- formats: written by tests/formats/table.py -->", "<!-- end of formats -->"
CLOSE, SHOWN, EXACT, LOOSE = 1e-3, 1e-4, 2e-7, 0.1
"""Relative differences from the right KL that are right, and shown; the KL that is none, in nats per token; and the
difference that is allowed where the batch decides."""
WAYS = (("whole", "right"), ("blocks", "right"), ("reference", "right reference"))
NEED_PACKAGES = ("bnb-", "torchao-")
BATCHED = {"bnb-int8": "bitsandbytes chooses the columns that it does not round by all texts of a batch"}
TOOLS = {"llmcompressor": "llm-compressor", "auto-round": "AutoRound", "gptqmodel": "GPTQModel", "gguf": "gguf (GGUF)"}
TOOLS |= {"nvidia-modelopt": "ModelOpt"}
PREFIXES = re.compile("^(ct|llmc|ar|gptqmodel|mo|bnb|torchao|gguf)-")


def python_with_packages(home: Path) -> Path:
    """Returns the python of an environment with fairbits and what transformers reads some formats with."""
    return python_of(home / "packages", (str(ROOT), "compressed-tensors==0.20.0", *PACKAGES))


def write_formats(environments: Path, home: Path) -> None:
    """Writes the unquantized model and all formats, with what has written them in written.txt."""
    if not (home / "base").exists():
        _write_base(home / "base")
    writers = {"here": Path(sys.executable), "packages": python_with_packages(environments)}
    writers |= {name: python_of(environments / name, pins) for name, pins in QUANTIZERS.items()}
    settings = os.environ | {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "GPTQMODEL_CPU_WORKERS": "2"}
    for name, python in writers.items():
        command = [python, HERE / f"write_{name}.py", home / "base", home]
        written = subprocess.run(command, env=settings, cwd=home, check=True, stdout=subprocess.PIPE, text=True).stdout
        lines = re.findall(r"^(?!base)[\w.-]+: [\w.-]+ \S+$", written, re.MULTILINE)
        with (home / "written.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def _write_base(directory: Path) -> None:
    import torch

    from conftest import READING, save_with_tokenizer

    model, config, tokenizer = READING["wide_llama"]
    torch.manual_seed(0)
    directory.mkdir(parents=True)
    save_with_tokenizer(model(config()), directory, **tokenizer)


def try_formats(environments: Path, home: Path, results: Path) -> None:
    """Evaluates all formats, some of them where the packages are that read them."""
    tools = [line.split(": ")[0] for line in (home / "written.txt").read_text(encoding="utf-8").splitlines()]
    for python, needed in ((Path(sys.executable), False), (python_with_packages(environments), True)):
        names = [name for name in dict.fromkeys(tools) if name.startswith(NEED_PACKAGES) is needed]
        command = [python, HERE / "trial.py", results, *(home / name for name in names)]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)


def table(home: Path, results: Path) -> tuple[str, list[str]]:
    """Returns the sentence and the table of all formats, and what is wrong: another value, a crash, one unchecked.

    Formats of a tool with the same outcome share a line.
    """
    written = dict(line.split(": ") for line in (home / "written.txt").read_text(encoding="utf-8").splitlines())
    wrong, lines, counts = [], {}, Counter()
    for name, tool in written.items():
        outcome = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        cells = [_cell(outcome, way, right) for way, right in WAYS]
        off = [f"{name}, {way}: {cell}" for (way, _), cell in zip(WAYS, cells, strict=True) if "!" in cell]
        wrong += off
        kinds = {cell.partition(" ")[0] for cell in cells}
        counts["wrong" if off else kinds.pop() if len(kinds) == 1 else "in part"] += 1
        lines.setdefault((tool, *cells, _note(outcome)), []).append(_shown(name))
    head = ["| written by | format | whole | block by block | as reference | |", "|---|---|---|---|---|---|"]
    tools = list(dict.fromkeys(written.values()))
    for (tool, *cells, note), names in sorted(lines.items(), key=lambda line: tools.index(line[0][0])):
        head.append(f"| {_tool(tool)} | {', '.join(names)} | {' | '.join(cells)} | {note} |")
    return "\n".join([_summary(counts), "", *head]), wrong


def _summary(counts: Counter[str]) -> str:
    return (
        f"Of {counts.total()} checkpoints, {counts['right']} are right in all three ways, {counts['refused']} are "
        f"refused, {counts['in part']} are right in part or by batch (their lines say why), and {counts['wrong']} are "
        "wrong."
    )


def _tool(tool: str) -> str:
    name, _, version = tool.partition(" ")
    return f"{TOOLS.get(name, name)} {version}"


def _cell(outcome: dict, way: str, right: str) -> str:
    value, expected = outcome[way], outcome[right]
    if isinstance(value, str):
        return "refused" if value.startswith("refused: ") and "\n" not in value else f"! {value}"
    if isinstance(expected, str):
        return f"! {value:.5f} unchecked"
    difference = abs(value - expected)
    if outcome["name"] in BATCHED and difference <= LOOSE * expected:
        return "by batch"
    if difference > CLOSE * expected + EXACT:
        return f"! {value:.5f}, not {expected:.5f}"
    return "right" if difference <= SHOWN * expected + EXACT else f"right to {difference / expected:.2%}"


def _shown(name: str) -> str:
    return re.sub(r"^(\d)(?!-bits)", r"\1 bits", PREFIXES.sub("", name)).replace("-", " ")


def _note(outcome: dict) -> str:
    """Returns what the table says of a format: the beginning of a refusal, without the name of the checkpoint."""
    refusals = {way: value for way, _ in WAYS if isinstance(value := outcome[way], str)}
    notes = [BATCHED[outcome["name"]]] if outcome["name"] in BATCHED else []
    if refusals:
        reason = next(iter(refusals.values())).removeprefix("refused: ").split(";")[0]
        reason = re.sub(rf"(/\S+/)?{outcome['name']} (cannot be read: )?", "", re.sub(r"(/\S+/)(\S+)", r"\2", reason))
        notes.append(f"{'as reference: ' * (refusals.keys() == {'reference'})}{reason:.160}")
    return "; ".join(notes).replace("|", "\\|").replace("\n", " ")


def write_page(text: str) -> None:
    """Puts sentence and table into the page, between its marks."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    """Writes the formats, tries them, and puts the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="directory of the tools' environments")
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints and results")
    options = parser.parse_args()
    home, results = (options.out.resolve() / name for name in ("checkpoints", "results"))
    home.mkdir(parents=True, exist_ok=True)
    write_formats(options.environments, home)
    try_formats(options.environments, home, results)
    text, wrong = table(home, results)
    write_page(text)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
