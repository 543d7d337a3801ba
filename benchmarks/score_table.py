"""What a score means: bits and policies against first choices that change, perplexity and KL, on real models.

    python benchmarks/real.py run --settings 8:128 6:128 5:128 4:128 3:128 2:128 --policies rtn gptq --seeds 0 \\
        --evaluation help --models gemma-3-270m qwen2.5-coder-0.5b --device cuda
    python benchmarks/real.py run --settings 8:128 6:128 5:128 4:128 3:128 --policies gptq:mix=english@all …
    python benchmarks/real.py run --settings 4:128 3:128 --policies fair@all …
    python benchmarks/score_table.py collect build/real   into docs/assets/score-table.csv
    python benchmarks/score_table.py                      prints the tables and writes them into docs/scores.md

`fairbits.evaluation.meaning` takes its words and the suggested limit from these tables.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from fairbits.core.files import write_files
from fairbits.core.table import Table
from fairbits.evaluation.meaning import LEVELS, percent, times
from fairbits.evaluation.scores import Scores
from fairbits.text.language_codes import language_from_code
from real_figure import STYLE

ROOT = Path(__file__).parents[1]
CSV, PAGE = ROOT / "docs/assets/score-table.csv", ROOT / "docs/scores.md"
FIGURE = ROOT / "docs/assets/score-table.svg"
SHOWN, EXAMPLE, SPAN = "fin_Latn", 0.1, (1e-4, 3.0)
"""The language and the KL that the figure points out, and the range of KL."""
BEGIN, END = "<!-- written by benchmarks/score_table.py -->", "<!-- end of the tables -->"
MODELS = {"gemma-3-270m": "Gemma-3-270M", "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct"}
POLICIES = {
    "gptq": "GPTQ, equal mix",
    "fair@all": "learned rounding (fair)",
    "rtn": "plain rounding",
    "gptq,mix=english@all": "GPTQ, English",
}
NEAR = 1.25  # a language counts for a level if its share is within this factor of it
Row = dict[str, str]


def collect(directories: Sequence[Path]) -> None:
    """Writes one row for every language of every scores file, and one for the worst, corrected for selection."""
    rows = [row for directory in directories for file in sorted(directory.rglob("help.json")) for row in rows_of(file)]
    with CSV.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows in {CSV}")


def rows_of(file: Path) -> Iterator[Row]:
    """Yields the rows of the scores in MODEL/BITS_GROUP/POLICY/SEED/help.json."""
    model, setting, policy, seed, _ = file.parts[-5:]
    scores = Scores.load(file)
    bits, group = setting.split("_")
    changed, kl, code = scores.flips, scores.frame().by_language(), scores.meaning.language
    for language, share in [("worst", scores.changed_frame.worst()[1]), *changed.items()]:
        of = code if language == "worst" else language
        yield {
            "model": model,
            "bits": bits,
            "group": group,
            "policy": policy,
            "seed": seed,
            "language": language,
            "code": of,
            "documents": str(kl[of].n),
            **{f"changed{end}": f"{100 * value:.4g}" for end, value in _ends(share)},
            "perplexity_ratio": f"{1 + scores.relative_perplexity[of].value:.5g}",
            **{f"kl_bits_per_byte{end}": f"{value:.4g}" for end, value in _ends(kl[of])},
        }


def _ends(estimate: object) -> list[tuple[str, float]]:
    return [("", estimate.value), ("_low", estimate.low), ("_high", estimate.high)]  # type: ignore[attr-defined]


def policy_table(rows: Sequence[Row]) -> Table:
    """Returns a row for every model, policy and bits: the language that changes most, and the mean over languages."""
    lines = []
    for model in MODELS:
        for policy in POLICIES:
            for bits in ("8", "6", "5", "4", "3", "2"):
                here = [r for r in rows if (r["model"], r["policy"], r["bits"]) == (model, policy, bits)]
                if not here:
                    continue
                worst, *languages = here
                share = percent(float(worst["changed"]))
                limits = f"{percent(float(worst['changed_low']))}–{percent(float(worst['changed_high']))}"
                lines.append(
                    (
                        MODELS[model],
                        POLICIES[policy],
                        bits,
                        f"{language_from_code(worst['code']).name} {share} ({limits})",
                        _times(float(worst["perplexity_ratio"])),
                        f"{float(worst['kl_bits_per_byte']):.2g}",
                        percent(float(np.mean([float(r["changed"]) for r in languages]))),
                    )
                )
    headers = (
        "model",
        "policy",
        "bits",
        "changed, of 100 (95 % CI)",
        "perplexity",
        "KL, bits per byte",
        "mean changed",
    )
    return Table("The language that changes most of 16", headers, tuple(lines), left=(1, 3))


def _times(ratio: float) -> str:
    return f"× {times(ratio)}" if ratio < 100 else "over × 100"


def level_table(rows: Sequence[Row]) -> Table:
    """Returns which KL and perplexity go with the share of first choices at which one level ends."""
    lines = []
    for limit, words in LEVELS[:-1]:
        near = [
            (float(r["kl_bits_per_byte"]), float(r["perplexity_ratio"]))
            for r in rows
            if r["language"] != "worst" and limit / NEAR <= float(r["changed"]) <= limit * NEAR
        ]
        kl, ratio = (np.quantile([pair[i] for pair in near], [0.1, 0.5, 0.9]) for i in (0, 1))
        lines.append(
            (
                f"up to {limit:g}",
                words,
                f"{kl[1]:.2g} ({kl[0]:.2g}–{kl[2]:.2g})",
                f"× {ratio[1]:.3f} ({ratio[0]:.3f}–{ratio[2]:.3f})",
                str(len(near)),
            )
        )
    lines.append((f"over {LEVELS[-2][0]:g}", LEVELS[-1][1], "", "", ""))
    headers = ("changed, of 100", "in words", "KL there, bits per byte", "perplexity there", "languages and variants")
    return Table("Levels", headers, tuple(lines), left=(1,))


def tables() -> str:
    """Returns both tables of the stored rows."""
    with CSV.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return "\n\n".join(table.markdown() for table in (level_table(rows), policy_table(rows)))


def draw(rows: Sequence[Row]) -> None:
    """Writes the figure: changed tokens against KL, one language in colour, and the levels."""
    with pyplot.rc_context(STYLE):
        canvas, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
        for language, colour, name in (("", "#ced4da", "other languages"), (SHOWN, "#3b5bdb", "Finnish")):
            here = [row for row in rows if row["language"] != "worst" and (row["language"] == SHOWN) is bool(language)]
            points = [(float(row["kl_bits_per_byte"]), float(row["changed"])) for row in here]
            axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=4, label=name)
        for limit, words in LEVELS[:-1]:
            axes.axhline(limit, color="#868e96", linewidth=0.7, linestyle=":")
            axes.text(SPAN[0], limit * 0.97, f" up to {limit:g}: {words}", fontsize=7.5, va="top", color="#495057")
        axes.axvline(EXAMPLE, color="#e8590c", linewidth=0.8)
        axes.text(EXAMPLE * 0.93, 75, f"{EXAMPLE:g} bits per byte", fontsize=8, color="#e8590c", ha="right")
        axes.set(xscale="log", yscale="log", xlim=SPAN, ylim=(1, 100))
        axes.set(xlabel="KL, bits per byte", ylabel="changed, of 100 tokens")
        axes.set_yticks([1, 2, 5, 10, 25, 50, 100], ["1", "2", "5", "10", "25", "50", "100"])
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        canvas.savefig(FIGURE, metadata={"Date": None})
        pyplot.close(canvas)


def write() -> None:
    """Prints the tables, and writes them between their marks in the page, with the figure."""
    with CSV.open(encoding="utf-8", newline="") as file:
        draw(list(csv.DictReader(file)))
    text = tables()
    print(text)
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        sys.exit(f"{PAGE} has no marks for the tables")
    write_files({PAGE: f"{before}{BEGIN}\n\n{text}\n\n{END}{after}".encode()})


if __name__ == "__main__":
    collect([Path(name) for name in sys.argv[2:]]) if sys.argv[1:2] == ["collect"] else write()
