"""What the site has beside its pages: the report of the demo, the command line, from the app, and the Python names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from rich.text import Text

import fairbits
from fairbits.cli import app


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Returns the files of the site with the report and the generated pages among them."""
    files.append(File.generated(config, "report.html", abs_src_path=str(demo_report(config))))
    for path, content in (("reference/cli.md", command_line()), ("reference/python.md", python_names())):
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Returns a page whose formulas are no emphasis and no link: α* and E[x²](w − Q(w))²."""
    if page.file.src_uri not in ("research/theory.md", "research/experiments.md"):
        return markdown
    plain = re.sub(r"(?<=[αBE])\*", r"\\*", markdown)
    return plain.replace("](", "]\\(") if page.file.src_uri == "research/theory.md" else plain


def demo_report(config: MkDocsConfig) -> Path:
    """Returns the report that the first page shows."""
    report = Path(config.config_file_path).parent / config.extra["demo_report"]
    if not report.is_file():
        raise PluginError(f"{report} is not there; the first page shows it: `make demo` writes it, or set DEMO_REPORT")
    return report


def command_line() -> str:
    """Returns the page on the command line: every command, its examples, arguments and options."""
    group: Any = typer.main.get_command(app)
    commands = (line for name, command in group.commands.items() for line in _command(name, command.load()))
    return "\n".join([HEAD, *_parameters(group.params), *commands])


def python_names() -> str:
    """Returns the page on the Python names, which mkdocstrings fills in from the docstrings."""
    lines = [PYTHON]
    for name, module in sorted(fairbits._HOMES.items()):
        lines += [f"::: {module}.{name}", "    options:", f"      heading: fairbits.{name}", ""]
    return "\n".join(lines)


def _command(name: str, command: Any) -> Iterator[str]:
    if command.hidden:
        return
    about, _, examples = _plain(command.help or "").partition("Examples:\n")
    arguments = [_shape(each) for each in command.params if not _is_option(each)]
    yield from (f"## {name}", "", about.strip(), "", "```text", " ".join(["fairbits", name, *arguments, "[OPTIONS]"]))
    yield from ("", *(line.strip() for line in examples.strip().splitlines()), "```", "")
    yield from _parameters(command.params)


def _parameters(parameters: list[Any]) -> Iterator[str]:
    """Returns a table of arguments and options, arguments first."""
    yield from ("| | | default |", "|---|---|---|")
    for each in sorted(parameters, key=_is_option):
        if not getattr(each, "hidden", False):
            flags = ", ".join((*each.opts, *each.secondary_opts)) if _is_option(each) else _shape(each)
            yield f"| `{_cell(flags)}` | {_cell(_plain(each.help or ''))} | {_cell(_default(each))} |"
    yield ""


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _plain(help_text: str) -> str:
    """Returns help without the marks that are for a terminal."""
    return Text.from_markup(re.sub(r"[\b\f]\n?", "", help_text)).plain


def _shape(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    many = f"{name}…" if argument.nargs != 1 else name
    return many if argument.required else f"[{many}]"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    unset = parameter.default is None or parameter.default is False
    return "" if unset else f"`{parameter.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


HEAD = """# Command line

Every command and option, as in `fairbits COMMAND --help`. Results go to stdout; notes, progress and errors go to
stderr.

## Exit codes

| | |
|---|---|
| 0 | done; for `gate`, every limit is met with 95 % confidence |
| 1 | `gate` only: a limit is exceeded, or there is too little text to decide |
| 2 | wrong usage, bad input, or a problem of the machine that you can solve, such as a full disk |
| 3 | a bug in fairbits |
| 130, 143 | interrupted by Ctrl-C; ended by SIGTERM |

`fairbits serve` exits with 0 after Ctrl-C or SIGTERM. Under `torchrun`, an error ends torchrun with 1.

## Environment variables

| | |
|---|---|
| `XDG_CACHE_HOME` | dequantized GGUF models and marks of checked tokenizers: its `fairbits` (default: `~/.cache`) |
| `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE` | cache, token and network of `huggingface_hub`, which reads the Hub |
| `OMP_NUM_THREADS`, `NUMBA_NUM_THREADS` | the threads of torch, and of the clipping kernels on the CPU |
| `CUDA_VISIBLE_DEVICES` | the GPUs that torch finds |
| `CC` | the C compiler that Triton needs on a GPU; without one, the clip is computed on the CPU |
| `RAY_USAGE_STATS_ENABLED` | fairbits sets it to 0 unless you set it: Ray then sends no statistics |
| `NO_COLOR` | no colours in the terminal |

## Options of every command

Give these before or after the command:
"""
PYTHON = """# Python

Look up every public name here. `import fairbits as fb` gives you the commands and their arguments.
"""
