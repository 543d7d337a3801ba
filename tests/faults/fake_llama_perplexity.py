"""A program with the protocol of llama-perplexity: python fake_llama_perplexity.py MODE OPTION …

It reads a base file and prints what llama.cpp prints. Its "model" knows pairs of tokens alone: the logits after a token
are a row of a table of random numbers. The mode says what goes wrong.
"""

import os
import signal
import sys
from itertools import pairwise
from math import exp, sqrt
from pathlib import Path

import numpy as np


def logits_after(vocabulary: int) -> np.ndarray:
    """Returns the logits of every next token after every token."""
    return np.random.default_rng(1).standard_normal((vocabulary, vocabulary)).astype(np.float32)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return values.mean(), sqrt(max(np.mean(values**2) - values.mean() ** 2, 0) / (len(values) - 1))


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of every chunk, and the log-probabilities of every predicted position."""
    data = Path(path).read_bytes()
    assert data[:8] == b"_logits_"
    length, vocabulary, chunks = np.frombuffer(data, "<i4", 3, 8).tolist()
    tokens = np.frombuffer(data, "<i4", length * chunks, 20).reshape(chunks, length)
    width = 2 * ((vocabulary + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", offset=20 + tokens.nbytes).reshape(-1, width)
    assert len(rows) == chunks * (length - 1 - length // 2)
    scale, least = np.ascontiguousarray(rows[:, :4]).view("<f4").T
    return tokens, scale[:, None] * rows[:, 4 : 4 + vocabulary] + least[:, None]


def measure(tokens: np.ndarray, log_p: np.ndarray) -> np.ndarray:
    """Returns both losses, the divergence and whether the first choice is the same, of every predicted token."""
    table, columns, first = logits_after(log_p.shape[1]).astype(np.float64), [], tokens.shape[1] // 2
    places = ((row[t], row[t + 1]) for row in tokens for t in range(first, tokens.shape[1] - 1))
    for (before, token), p in zip(places, log_p.astype(np.float64), strict=True):
        q = table[before] - np.logaddexp.reduce(table[before])
        read = p > -16
        kl = float(np.exp(p[read]) @ (p - q)[read])
        columns.append([-q[token], -p[token], kl, float(q.argmax() == p.argmax())])
    return np.array(columns)


def line_of(number: int, values: np.ndarray) -> str:
    mine, base, kl, same = values.T
    loss, error = mean_and_error(mine)
    ratio, ratio_error = mean_and_error(mine - base)
    mean, mean_error = mean_and_error(kl)
    top = 100 * same.mean()
    return (
        f"{number:4d}    {exp(loss):9.4f} ± {exp(loss) * error:9.4f}    {ratio:10.5f} ± {ratio_error:10.5f}"
        f"    {mean:10.5f} ± {mean_error:10.5f}    {12.3:6.3f} ± {0.4:6.3f} %    {top:6.3f} ± {0.5:6.3f} %"
    )


def main(mode: str, options: list[str]) -> int:
    if mode == "no version":
        return 1
    if "--version" in options:
        print("version: 0.0.0 (build 1, commit fake)\nbuilt with Python for tests", file=sys.stderr)
        return 0
    value = dict(pairwise(options))
    if mode == "cannot load":
        print("0.00.123 E llama_model_load: error loading model: missing tensor", file=sys.stderr)
        print("E main: unable to load model", file=sys.stderr)
        return 1
    tokens, log_p = read(value["--kl-divergence-base"])
    assert value["-c"] == str(tokens.shape[1])
    if mode == "other vocabulary":
        print("kl_divergence: inconsistent vocabulary (260 vs 256)", file=sys.stderr)
    if mode == "other file format":
        log_p = log_p - 0.01
    values = measure(tokens, log_p)
    per_chunk = len(values) // len(tokens)
    print(
        "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS"
        "            Same top p"
    )
    for number in range(1, len(tokens) + 1):
        if mode == "killed" and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "stops" and number == 2:
            print("kl_divergence : failed to decode", file=sys.stderr)
            return 0
        line = line_of(number, values[: number * per_chunk])
        print(line.replace(line.split()[1], "nan") if mode == "nan" else line, flush=True)
    mine, base, kl, same = values.T
    print("\n====== Perplexity statistics ======")
    print(f"Mean PPL(Q)                   : {exp(mine.mean()):10.6f} ±   0.100000")
    print(f"Mean PPL(base)                : {exp(base.mean()):10.6f} ±   0.100000")
    print(f"Cor(ln(PPL(Q)), ln(PPL(base))): {99.5:6.2f}%")
    print(f"Mean ln(PPL(Q)/PPL(base))     : {mine.mean() - base.mean():10.6f} ±   0.010000")
    print("\n====== KL divergence statistics ======")
    print(f"Mean    KLD: {'nan' if mode == 'nan' else f'{kl.mean():10.6f}'} ±   0.010000")
    print(f"Maximum KLD: {kl.max():10.6f}")
    for share, name in ((0.999, "99.9%"), (0.99, "99.0%"), (0.95, "95.0%"), (0.5, "Median"), (0.01, " 1.0%")):
        print(f"{name:6s}  KLD: {np.quantile(kl, share):10.6f}")
    print(f"\n====== Token probability statistics ======\nMean    Δp: {-1.5:6.3f} ± {0.2:5.3f} %")
    print(f"Same top p: {100 * same.mean():6.3f} ± {0.5:5.3f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
