"""The commands of the research notes on one model, and what each of them prints, as a page of docs/research.

    python benchmarks/section_outputs.py run MODEL NAME --text help --languages eng,fra,… [--only laaciq …]
    python benchmarks/section_outputs.py page NAME

`run` keeps the output of every command in build/sections/NAME, and skips commands whose output is there; a command that
fails is named and the others go on. `page` writes docs/research/on-NAME.md from them. Results of experiments also go to
build/sections/NAME/records as JSON.
"""

import argparse
import io
import json
import math
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from fairbits.cli import terminal
from fairbits_research.experiments.result import Result
from fairbits_research.research_command import result_panel

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/sections"
DOCS = ROOT / "docs/research"
WIDTH = 100
REFUSED = 2
"""The exit code of a command that says why it cannot run on this model; the page shows that, too."""
TITLES = {
    "embedded": "The embedded model",
    "gemma-3-270m": "Gemma-3-270M",
    "opus-mt": "OPUS-MT English–French, an encoder–decoder",
}
COMMANDS = {
    "inspect": "inspect MODEL --roles",
    "screen": "screen MODEL TEXT OUTLIER-KAPPA",
    "audit": "audit MODEL TEXT TOKENS OUTLIERS --group channel",
    "laaciq": "laaciq MODEL TEXT TOKENS",
    "auto": "plan MODEL TEXT TOKENS --policy auto --group channel",
    "auto-notes": "plan MODEL TEXT TOKENS --policy auto --chooser notes --group channel",
    "keep": "plan MODEL --policy rtn --group channel --keep 0,LAST",
    "gateway": "plan MODEL TEXT TOKENS --policy gateway --protect-for LOW --group channel",
    "compare": "compare MODEL TEXT TOKENS EVALUATED GROUPS --group channel --policies "
    "gptq,auto,auto:chooser=notes,aciq,laaciq:form=global",
}
"""Key -> command. Words in capitals stand for options and values of a run."""
EXPERIMENTS = {
    **dict.fromkeys(("correlations", "redundancy", "mediation"), "OUTLIERS"),
    **dict.fromkeys(("alignment", "probes", "gateway-assumptions", "own-thresholds", "bit-threshold", "bounds"), ""),
    "resource-ratio": "GROUPS",
    "layer-ablation": "OUTLIERS",
    "training-data": "OUTLIERS",
    "gateway-layers": "SETS",
}
"""Experiment -> its options besides the model and the text."""


def run(options: argparse.Namespace) -> None:
    """Runs the commands that have no output yet."""
    place = OUT / options.name
    (place / "records").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    began = time.perf_counter()
    for key, command in commands_of(options).items():
        file = place / f"{key}.json"
        late = time.perf_counter() - began > options.seconds
        if file.exists() or late or (options.only and key not in options.only):
            continue
        start = time.perf_counter()
        process = subprocess.run([sys.executable, "-m", "fairbits", *command], capture_output=True, env=environment)
        seconds = time.perf_counter() - start
        print(f"{key}: exit {process.returncode}, {seconds:.0f} s", flush=True)
        output = process.stdout.decode()
        if process.returncode:
            errors = process.stderr.decode()
            output += errors[max(errors.find("error: "), 0) :]
            print(output[-600:], flush=True)
        if process.returncode not in (0, REFUSED):
            continue
        shown = [part for part in command if part not in ("--device", options.device)]
        record = {"command": shlex.join(["fairbits", *_without_record(shown)]), "output": output}
        file.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")


def commands_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the arguments of every command."""
    high = [code for code in options.languages.split(",") if code not in options.low.split(",")]
    layers = options.outlier_layers
    values = {
        "MODEL": [options.model],
        "TEXT": ["--languages", options.languages, *(["--text", options.text] if options.text else [])],
        "TOKENS": ["--tokens", str(options.tokens)],
        "EVALUATED": ["--evaluation-tokens", str(options.tokens)],
        "GROUPS": ["--groups", f"high={','.join(high)};low={options.low}"],
        "LOW": [options.low],
        "OUTLIERS": ["--outlier-layers", layers] if layers else [],
        "OUTLIER-KAPPA": ["--outlier-kappa", options.outlier_kappa] if options.outlier_kappa else [],
        "SETS": ["--sets", options.sets] if options.sets else [],
        "0,LAST": [f"0,{options.blocks - 1}"],
    }
    commands = COMMANDS | {
        name: f"research {name} --model MODEL TEXT TOKENS EVALUATED {own} --device {options.device} "
        f"--out {OUT / options.name / 'records' / name}.json"
        for name, own in EXPERIMENTS.items()
    }
    return {
        key: [part for word in command.split() for part in values.get(word, [word])]
        for key, command in commands.items()
    }


def _without_record(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--out")] if "--out" in arguments else arguments


def shown(result: Result) -> str:
    """Returns a result as its command prints it."""
    terminal.out.width = WIDTH
    console = Console(width=WIDTH, no_color=True, file=io.StringIO())
    with console.capture() as capture:
        console.print(result_panel(result))
    return capture.get().strip("\n")


def page(options: argparse.Namespace) -> None:
    """Writes the page of a model."""
    place = OUT / options.name
    lines = [
        f"# {TITLES[options.name]}",
        "",
        "What the commands of the [research notes](sections.md) print on this model. Written by "
        f"`python benchmarks/section_outputs.py page {options.name}`; do not edit it.",
        "",
    ]
    for key in (*COMMANDS, *EXPERIMENTS):
        file = place / f"{key}.json"
        if file.exists():
            record = json.loads(file.read_text(encoding="utf-8"))
            result = place / "records" / f"{key}.json"
            output = shown(Result.load(result)) if result.exists() else record["output"].strip("\n")
            text = [line.rstrip() for line in output.splitlines()]
            lines += [f"## {key}", "", "```text", f"$ {record['command']}", *text, "```", ""]
    if not any((place / f"{name}.json").exists() for name in EXPERIMENTS):
        lines += [
            "## Experiments",
            "",
            "All experiments on this model are on [a page of their own](experiments.md).",
            "",
        ]
    (DOCS / f"on-{options.name}.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Runs the commands, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    running = actions.add_parser("run")
    running.add_argument("model")
    running.add_argument("name", choices=TITLES)
    running.add_argument("--languages", required=True)
    running.add_argument("--low", required=True, help="the low-resource languages among them")
    running.add_argument("--text")
    running.add_argument("--tokens", type=int, default=1024)
    running.add_argument("--blocks", type=int, required=True)
    running.add_argument("--outlier-layers", help="outlier blocks, where the rule should not choose them")
    running.add_argument("--outlier-kappa", help="the same for screen: a cut-off")
    running.add_argument("--sets", help="gateway-layers: these sets of blocks instead of all")
    running.add_argument("--device", default="auto")
    running.add_argument("--seconds", type=float, default=math.inf, help="no command is begun later")
    running.add_argument("--only", nargs="+")
    running.set_defaults(action=run)
    writing = actions.add_parser("page")
    writing.add_argument("name", choices=TITLES)
    writing.set_defaults(action=page)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
