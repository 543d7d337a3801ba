"""Writes what `real.py run` has measured into docs/results.md and README.md: tables, a figure, all numbers as CSV.

Everything is the mean over seeds with 95 % intervals over documents. Text between two markers is replaced; a page
without markers is left alone.
"""

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import real_figure
from fairbits.core.units import GB, MB
from measured import Measure, number, shown
from real_ablations import TITLES
from real_against import ablation_lines, against_lines
from real_groups import BASE, TEXTS, UNIT, Group, name_of, read_groups, table
from real_readme import readme_lines

MEASURES: tuple[Measure, ...] = ("divergence", "loss")
PER_TOKEN = "nats_per_token"
BEGIN, END = "<!-- real models: written by benchmarks/real.py tables -->", "<!-- end of real models -->"


def write(root: Path, *, page: Path, readme: Path) -> None:
    """Writes both pages, and figure and numbers next to the first."""
    every = read_groups(root)
    groups = [group.without(TITLES) for group in every]
    assets = page.parent / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    write_numbers(groups, assets / "real-models.csv")
    figures = {
        group.title: {name_of(policy): runs.frame("divergence", UNIT) for policy, runs in group.policies.items()}
        for group in main_groups(groups)
    }
    real_figure.draw(figures, assets / "real-models.svg", order=name_of(BASE))
    replace_between(page, page_lines(groups, every))
    replace_between(readme, readme_lines(main_groups(groups)))


def replace_between(path: Path, lines: Iterable[str]) -> None:
    """Replaces what is between the markers of a page."""
    page = path.read_text("utf-8")
    if BEGIN not in page:
        print(f"{path} has no marker: left as it is")
        return
    head, rest = page.split(BEGIN)
    text = "\n".join(lines)
    path.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}", "utf-8")


def main_groups(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups of the first setting and text, one for each model."""
    return [group for group in groups if (group.setting, group.text) == (groups[0].setting, groups[0].text)]


def page_lines(groups: Sequence[Group], every: Sequence[Group]) -> Iterator[str]:
    """Yields everything that the page shows; `every` has the ablations of `fair` too."""
    yield from amount_lines(groups)
    for text in dict.fromkeys(group.text for group in groups):
        text_groups = [group for group in groups if group.text == text]
        calibrated = [code for code in text_groups[0].languages if code in text_groups[0].calibrated]
        others = [code for code in text_groups[0].languages if code not in text_groups[0].calibrated]
        yield f"\n### {TEXTS.get(text, text)}"
        for languages, title in ((calibrated, "languages of the calibration text"), (others, "other languages")):
            if languages:
                yield from summary_lines(text_groups, languages, title)
    yield from against_lines(groups)
    yield from ablation_lines(every)
    yield "\n### Time and memory\n"
    yield from cost_lines(groups)


def amount_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields how much text there was, and what computed the numbers."""
    facts = groups[0].facts
    shared = facts[BASE][0]["settings"]
    yield (
        f"Calibration on `{shared['text']}`, {len(shared['languages'])} languages, about {shared['tokens']:,} tokens "
        f"of each, or all. Evaluation on at most about {shared['evaluation_tokens']:,} tokens per language and text, "
        f"in windows of {shared['sequence']}. Computed with {facts[BASE][0]['environment']}."
    )
    every = (one for group in groups for policy, seeds in group.facts.items() if "@" not in policy for one in seeds)
    notes = dict.fromkeys(note for one in every for note in one["notes"])  # all text is less than requested
    yield from (f"\n- {note}" for note in notes)


def summary_lines(groups: Sequence[Group], languages: Collection[str], title: str) -> Iterator[str]:
    """Yields the divergence in one row for every model, setting and policy."""
    documents = sum(code in languages for code in groups[0].base.scores[0].documents.lang.tolist())
    yield f"\n**KL, bits per byte, {len(languages)} {title}, {documents:,} documents**\n"
    rows = []
    for group in groups:
        base = group.base.frame("divergence", UNIT, languages)
        for policy, measured in group.policies.items():
            frame = measured.frame("divergence", UNIT, languages)
            code, worst = frame.worst()
            tokens = sum(group.facts[policy][0]["calibration_tokens"].values())
            start = [group.title, str(group.setting), name_of(policy), f"{tokens:,}", str(len(measured.scores))]
            cells = [f"{shown(worst)} {code[:3]}", ratio(worst.value, base.worst()[1].value)]
            rows.append([*start, *cells, shown(frame.mean()), ratio(frame.mean().value, base.mean().value)])
    yield from table(("model", "setting", "policy", "tokens", "seeds", "worst", "ratio", "mean", "ratio"), rows)


def ratio(value: float, base: float) -> str:
    """Returns how many times the base a value is; nothing where one of them is not above 0."""
    return number(value / base, 2) if min(value, base) > 0 else ""


def cost_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields what quantizing and evaluating took; time is the mean over seeds, memory the most."""
    rows = []
    for group in groups:
        for policy, facts in group.facts.items() if group.text == groups[0].text else ():
            seconds = [np.mean([run[name] for run in facts]) for name in ("seconds", "evaluation_seconds")]
            peak = max(run.get("peak_gpu_bytes", 0) for run in facts)
            start = [group.title, str(group.setting), name_of(policy), *(f"{duration:,.0f}" for duration in seconds)]
            rows.append([*start, f"{peak / GB:.1f}" if peak else "", f"{group.policies[policy].size_bytes / MB:,.0f}"])
    heads = ("model", "setting", "policy", "seconds to quantize", "seconds to evaluate", "GPU memory, GB", "size, MB")
    yield from table(heads, rows)


def write_numbers(groups: Sequence[Group], path: Path) -> None:
    """Writes every estimate of every language in both units."""
    heads = ("model", "setting", "text", "policy", "seeds", "language", "measure", "unit", "value", "low", "high", "n")
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(heads)
        for group in groups:
            for policy, measured in group.policies.items():
                start = (group.model, group.setting, group.text, policy, len(measured.scores))
                for measure in MEASURES:
                    for unit in (UNIT, PER_TOKEN):
                        for code, estimate in measured.frame(measure, unit).by_language().items():
                            numbers = (f"{value:.6g}" for value in (estimate.value, estimate.low, estimate.high))
                            rows.writerow((*start, code, measure, unit, *numbers, estimate.n))
