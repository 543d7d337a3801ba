"""The commands of the research notes on one model, and what each of them prints, as a page of docs/research.

    python benchmarks/section_outputs.py run MODEL NAME --text help --languages eng,fra,… [--only laaciq …]
    python benchmarks/section_outputs.py page NAME

`run` keeps the output of every command in build/sections/NAME, and skips commands whose output is there; a command that
fails is named and the others go on. `page` writes docs/research/on-NAME.md from them. Results of experiments also go to
build/sections/NAME/records as JSON.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/sections"
DOCS = ROOT / "docs/research"
WIDTH = 100
TITLES = {
    "embedded": "The embedded model",
    "gemma-3-270m": "Gemma-3-270M",
    "opus-mt": "OPUS-MT English–French, an encoder–decoder",
}
COMMANDS = {
    "inspect": "inspect MODEL --roles",
    "screen": "screen MODEL TEXT",
    "audit": "audit MODEL TEXT TOKENS --group channel",
    "laaciq": "laaciq MODEL TEXT TOKENS",
    "auto-notes": "plan MODEL TEXT TOKENS --policy auto --chooser notes --group channel",
    "auto": "plan MODEL TEXT TOKENS --policy auto --group channel",
    "keep": "plan MODEL --policy rtn --group channel --keep 0,LAST",
    "gateway": "plan MODEL TEXT TOKENS --policy gateway --protect-for LOW --group channel",
}
"""Key -> command; TEXT, TOKENS, LOW, LAST stand for options and values of a run."""
EXPERIMENTS = (
    *("correlations", "redundancy", "mediation", "alignment", "probes", "gateway-assumptions", "resource-ratio"),
    *("bit-threshold", "bounds", "layer-ablation", "own-thresholds", "training-data", "gateway-layers"),
)


def run(options: argparse.Namespace) -> None:
    """Runs the commands that have no output yet."""
    place = OUT / options.name
    (place / "records").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    for key, command in commands_of(options).items():
        file = place / f"{key}.json"
        if file.exists() or (options.only and key not in options.only):
            continue
        start = time.perf_counter()
        process = subprocess.run([sys.executable, "-m", "fairbits", *command], capture_output=True, env=environment)
        seconds = time.perf_counter() - start
        print(f"{key}: exit {process.returncode}, {seconds:.0f} s", flush=True)
        if process.returncode:
            print(process.stderr.decode()[-600:], flush=True)
            continue
        shown = [part for part in command if part not in ("--device", options.device)]
        record = {"command": shlex.join(["fairbits", *_without_record(shown)]), "output": process.stdout.decode()}
        file.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")


def commands_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the arguments of every command."""
    text = ["--languages", options.languages, *(["--text", options.text] if options.text else [])]
    values = {
        "MODEL": [options.model],
        "TEXT": text,
        "TOKENS": ["--tokens", str(options.tokens)],
        "LOW": [options.low],
        "0,LAST": [f"0,{options.blocks - 1}"],
    }
    commands = {
        key: [part for word in command.split() for part in values.get(word, [word])]
        for key, command in COMMANDS.items()
    }
    sizes = ["--tokens", str(options.tokens), "--evaluation-tokens", str(options.tokens)]
    for name in EXPERIMENTS:
        record = str(OUT / options.name / "records" / f"{name}.json")
        device = ["--device", options.device]
        commands[name] = ["research", name, "--model", options.model, *text, *sizes, *device, "--out", record]
    return commands


def _without_record(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--out")] if "--out" in arguments else arguments


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
            output = [line.rstrip() for line in record["output"].strip("\n").splitlines()]
            lines += [f"## {key}", "", "```text", f"$ {record['command']}", *output, "```", ""]
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
    running.add_argument("--device", default="auto")
    running.add_argument("--only", nargs="+")
    running.set_defaults(action=run)
    writing = actions.add_parser("page")
    writing.add_argument("name", choices=TITLES)
    writing.set_defaults(action=page)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
