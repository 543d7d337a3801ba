"""The table of formats in docs/guides/evaluate.md: python tests/formats/table.py --environments DIR --out DIR.

Every format is written by its own tool, in the environment of that tool, which is made in DIR where it is missing;
fairbits evaluates it three ways, and independent.py says what is right. What is in --out is not written again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
for place in ("benchmarks", "tests", "tests/architectures"):
    sys.path.append(str(ROOT / place))
from environments import PACKAGES, QUANTIZERS, python_of  # noqa: E402

PAGE = ROOT / "docs/guides/evaluate.md"
START, END = "<!-- formats: written by tests/formats/table.py -->", "<!-- end of formats -->"
CLOSE, EXACT = 1e-3, 2e-7
"""The largest relative difference from the right KL; and the KL that is none, in nats per token."""
WAYS = (("whole", "right"), ("blocks", "right"), ("reference", "right reference"))
NEED_PACKAGES = ("bnb-", "torchao-")
BATCHED = {"bnb-int8": "what bitsandbytes rounds depends on the other tokens of a batch"}


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
    """Returns the lines of all formats, and what is wrong: a value that is not right, a crash, a value unchecked."""
    written = dict(line.split(": ") for line in (home / "written.txt").read_text(encoding="utf-8").splitlines())
    lines = ["| format | written by | whole | block by block | as reference | KL | |", "|---|---|---|---|---|---|---|"]
    wrong = []
    for name, tool in written.items():
        outcome = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        cells = [_cell(outcome, way, right) for way, right in WAYS]
        if name not in BATCHED:
            wrong += [f"{name}, {way}: {cell}" for (way, _), cell in zip(WAYS, cells, strict=True) if "!" in cell]
        right = outcome["right"]
        shown = "–" if isinstance(right, str) else f"{right:.5f}"
        lines.append(f"| {name} | {tool} | {' | '.join(cells)} | {shown} | {_note(outcome)} |")
    return "\n".join(lines), wrong


def _cell(outcome: dict, way: str, right: str) -> str:
    value, expected = outcome[way], outcome[right]
    if isinstance(value, str):
        return "refused" if value.startswith("refused: ") and "\n" not in value else f"! {value}"
    if isinstance(expected, str):
        return f"! {value:.5f} unchecked"
    return "right" if abs(value - expected) <= CLOSE * expected + EXACT else f"! {value:.5f}, not {expected:.5f}"


def _note(outcome: dict) -> str:
    refusals = [value.removeprefix("refused: ") for way, _ in WAYS if isinstance(value := outcome[way], str)]
    reason = re.sub(r"(/\S+/)(\S+)", r"\2", refusals[0]) if refusals else BATCHED.get(outcome["name"], "")
    return reason.split(";")[0].replace("|", "\\|").replace("\n", " ")[:160]


def main() -> None:
    """Writes the formats, tries them, and puts the table into the page, if it has a place for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="directory of the tools' environments")
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints and results")
    options = parser.parse_args()
    home, results = (options.out.resolve() / name for name in ("checkpoints", "results"))
    home.mkdir(parents=True, exist_ok=True)
    write_formats(options.environments, home)
    try_formats(options.environments, home, results)
    text, wrong = table(home, results)
    (options.out / "table.md").write_text(f"{text}\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    if START in page:
        before, rest = page.split(START)
        PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
