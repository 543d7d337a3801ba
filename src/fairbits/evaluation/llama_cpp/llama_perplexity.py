"""llama-perplexity: found, run on one base file, and what it prints as numbers of every chunk.

It prints means over all chunks so far, to PRINTED decimals, and those over all chunks once more to two or one more. A
chunk's share is a difference of two such means times the tokens they are over, so that it is rounded by up to
`chunk_precision`; the sum over all chunks is not. Rounding adds to the spread between chunks: it widens intervals.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError, printable

FAIRBITS, LLAMA_CPP = ENGINES = ("fairbits", "llama.cpp")
"""What computes the predictions of the quantized model."""
COMMAND = "llama-perplexity"
PRINTED = 5  # decimals of a mean in the line of a chunk
LEAST_TOKENS = 100  # with fewer, llama-perplexity prints no statistics
NUMBER = r"(-?[\d.]+|-?nan|-?inf)"
PAIR = rf"\s+{NUMBER} ±\s+{NUMBER}"
CHUNK = re.compile(rf"\s*(\d+){PAIR}{PAIR}{PAIR}{PAIR} %{PAIR} %\s*")
STATISTIC = re.compile(rf"\s*(\S.*?)\s*:\s+{NUMBER}( ±.*|%)?\s*")
WANTED = {
    "base": "Mean PPL(base)",
    "ratio": "Mean ln(PPL(Q)/PPL(base))",
    "kl": "Mean    KLD",
    "kl_p50": "Median  KLD",
    "kl_p95": "95.0%   KLD",
    "kl_p99": "99.0%   KLD",
    "kl_p99_9": "99.9%   KLD",
}
TELLING = re.compile(r"error|fail|abort|assert|inconsistent|unable|invalid|not enough", re.IGNORECASE)
MISREAD = ("inconsistent vocabulary", "Increase it with -c")  # after which llama-perplexity goes on nevertheless
SETTINGS = "LLAMA_ARG_"  # environment variables that are options of llama.cpp


@dataclass(frozen=True, eq=False)
class ChunkSums:
    """Sums over the predicted tokens of every chunk; `percentiles` of the divergence, `base` the reference's loss."""

    added: Floats  # loss added to what the base file says, in nats
    kl: Floats
    flips: Floats
    percentiles: Mapping[str, float]
    base: float  # its mean over all tokens, as llama-perplexity read it


def check_engine(
    engine: str, quantized: object, llama_perplexity: str | Path | None, *, repeat: object = None, dry_run: bool = False
) -> None:
    """Raises if an engine cannot evaluate a model with these arguments."""
    if one_of("engine", engine, ENGINES) == FAIRBITS:
        if llama_perplexity is not None:
            raise InputError(f"--{COMMAND} is given, but the engine is {engine}; add --engine {LLAMA_CPP}")
        return
    path = Path(os.path.expanduser(quantized)) if isinstance(quantized, str | Path) else None
    if path is None or path.suffix != ".gguf" or not path.is_file():
        raise InputError(f"the quantized model is {quantized!s:.80}; llama.cpp needs a .gguf file that exists")
    for name, value in (("--repeat", repeat), ("--dry-run", dry_run)):
        if value:
            raise InputError(f"{name} is not available with --engine {LLAMA_CPP}; leave one of them out")
    find_llama_perplexity(llama_perplexity)


def find_llama_perplexity(path: str | Path | None) -> str:
    """Returns the path of the program; raises if it is not there."""
    program = shutil.which(os.path.expanduser(COMMAND if path is None else path))
    if program is None:
        where = "on PATH" if path is None else f"at {path}, or it may not be executed"
        raise InputError(f"there is no {COMMAND} {where}; build llama.cpp or install it, and give --{COMMAND} PATH")
    if os.name != "posix":
        raise InputError("--engine llama.cpp needs Linux or macOS, where a program reads a file that has no name")
    return program


def version_of(program: str) -> str:
    """Returns the version that llama-perplexity states."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise InputError(f"{program} --version does not work ({problem}); it must be {COMMAND} of llama.cpp") from None
    match = re.search(r"^version:\s*(\S.*)$", done.stdout + done.stderr, re.MULTILINE)
    if match is None:
        raise InputError(
            f"{program} --version {_ending(done.returncode)} and states no version"
            f"{_quote(done.stdout + done.stderr)}; it must be {COMMAND} of llama.cpp"
        )
    return printable(match[1].strip())[:100]


def settings_here() -> tuple[str, ...]:
    """Returns the options of llama.cpp that the environment sets."""
    return tuple(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS))


def chunk_precision(chunks: int) -> float:
    """Returns by how much the mean of a chunk may be rounded, at most; the last of many is the worst.

    >>> chunk_precision(32)
    0.000315
    """
    return (2 * chunks - 1) * 0.5 * 10.0**-PRINTED


def run_llama_perplexity(
    program: str,
    model: Path,
    base: IO[bytes],
    *,
    length: int,
    predicted: int,
    chunks: int,
    show: Callable[[int], object],
) -> ChunkSums:
    """Returns the sums of every chunk of a base file; `show` gets the number of each chunk when it is done."""
    number = base.fileno()
    command = [program, "-m", str(model), "--kl-divergence", "--kl-divergence-base", f"/dev/fd/{number}"]
    command += ["-c", str(length), "-b", str(length)]
    base.seek(0)  # where a name of a file that is open shares its position
    with tempfile.TemporaryFile() as messages:
        lines: list[str] = []
        with _process(command, number, messages) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                match = CHUNK.fullmatch(lines[-1])
                if match:
                    show(int(match[1]))
            code = process.wait()
        messages.seek(0)
        text = messages.read().decode(errors="replace")
    wrong = next((words for words in MISREAD if words in text), None)
    if code or wrong:
        raise InputError(f"{program} {_ending(code)} on {model}{_quote(text)}; {_advice(code)}")
    try:
        return parse_output(lines, chunks=chunks, predicted=predicted)
    except InputError as problem:
        raise InputError(f"{program} on {model}: {problem}{_quote(text)}") from None


def parse_output(lines: Iterable[str], *, chunks: int, predicted: int) -> ChunkSums:
    """Returns the sums of every chunk, given the lines that llama-perplexity prints."""
    rows, statistics = [], dict[str, float]()
    names = {name: key for key, name in WANTED.items()}
    for line in lines:
        if match := CHUNK.fullmatch(line):
            rows.append([float(match[group]) for group in (1, 4, 6, 10)])
        elif (match := STATISTIC.fullmatch(line)) and match[1] in names:
            statistics[names[match[1]]] = float(match[2])
    missing = [name for key, name in WANTED.items() if key not in statistics]
    table = np.array(rows).reshape(-1, 4)
    if missing or not np.array_equal(table[:, 0], np.arange(1, chunks + 1)):
        what = f"no line {missing[0]!r}" if missing else f"{len(rows)} chunks"
        raise InputError(f"it printed {what}; it must print all {chunks} chunks and the statistics after them")
    if not (np.isfinite(table).all() and np.isfinite([*statistics.values()]).all()):
        raise InputError("it printed NaN or infinity: its kernels, or the weights in the file, are broken")
    tokens = predicted * table[:, 0]
    same = np.round(table[:, 3] / 100 * tokens)
    return ChunkSums(
        added=_shares(table[:, 1] * tokens, statistics["ratio"] * tokens[-1]),
        kl=_shares(table[:, 2] * tokens, statistics["kl"] * tokens[-1], rising=True),
        flips=_shares(tokens - same, tokens[-1] - same[-1], rising=True),
        percentiles={name: max(statistics[name], 0.0) for name in WANTED if name.startswith("kl_")},
        base=float(np.log(statistics["base"])),
    )


def _shares(sums: Floats, last: float, *, rising: bool = False) -> Floats:
    """Returns the differences of sums; `last` is the last one, more exactly. What only rises is not less than 0."""
    sums = np.append(sums[:-1], last)
    if rising:
        sums = np.maximum.accumulate(np.minimum(sums, last).clip(0))
    return np.diff(sums, prepend=0.0)


@contextmanager
def _process(command: list[str], number: int, messages: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """Gives a running process, which ends with the body of the `with` statement at the latest."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            pass_fds=[number],
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as problem:
        raise InputError(f"{command[0]} cannot be run ({problem.strerror}); it must be {COMMAND}") from None
    with process:
        try:
            yield process
        finally:
            process.kill()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}" if code else "ended"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _advice(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it may have needed more memory than there is: use a shorter --sequence"
    return "run it with this file by itself, or use another version of llama.cpp"


def _quote(text: str) -> str:
    """Returns the line of messages that tells most: the last that speaks of an error, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)] or lines
    return f": {telling[-1]:.300}" if telling else ""
