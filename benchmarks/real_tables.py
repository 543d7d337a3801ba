"""Writes what `real.py run` has measured into docs/real-models.md and README.md: tables, a figure, all numbers as CSV.

Everything is the mean over seeds with 95 % intervals over documents. Text between two markers is replaced; a page
without markers is left alone.
"""

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import published
import real_figure
from bench import FACTS, Setting
from fairbits.language.lookup import language_of
from fairbits.measure.scores.scores import Scores
from fairbits.units import GB, MB, bits_per_byte
from measured import Measure, Measured, contrast_counts, number, shown

BEGIN, END = "<!-- real models: written by benchmarks/real.py tables -->", "<!-- end of real models -->"
BASE = "gptq"
NAMES = {
    "rtn": "plain rounding",
    "gptq:mix=english": "GPTQ, English",
    "gptq:mix=english@all": "GPTQ, English",
    BASE: "GPTQ, equal mix",
    "fair": "`fair`",
    "gptq@all": "GPTQ, equal mix, all text",
    "fair@all": "`fair`, all text",
}
"""Policies in the order of the tables, and how they are written there."""
TEXTS = {"help": "LibreOffice help", "declaration": "Universal Declaration of Human Rights"}
MEASURES: Mapping[Measure, str] = {"divergence": "KL", "loss": "added loss"}
UNIT, PER_TOKEN = "bits_per_byte", "nats_per_token"
SHARED = ("text", "calibration", "languages", "evaluation", "evaluation_tokens", "sequence")
"""Settings that all scores of one page must share."""

Facts = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Group:
    """All policies on one model, setting and text; `facts` has those of every seed, by policy."""

    model: str
    setting: Setting
    text: str
    policies: Mapping[str, Measured]
    facts: Mapping[str, tuple[Facts, ...]]

    @property
    def title(self) -> str:
        """The name of the model for readers."""
        known = published.MODELS.get(self.model)
        return self.model if known is None else known.title

    @property
    def base(self) -> Measured:
        """The policy that the others are compared with."""
        return self.policies[BASE]

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the text."""
        return self.base.scores[0].languages

    @property
    def calibrated(self) -> frozenset[str]:
        """The languages of the calibration text."""
        return frozenset(self.facts[BASE][0]["settings"]["languages"])


def read_groups(root: Path) -> list[Group]:
    """Returns everything measured, by model, setting and text."""
    facts = {file.parent: json.loads(file.read_text()) for file in root.glob(f"*/*/*/*/{FACTS}")}
    if not facts:
        raise FileNotFoundError(f"{root} holds no scores; measure them: python benchmarks/real.py run --out {root}")
    check_shared(facts)
    texts = next(iter(facts.values()))["settings"]["evaluation"]
    found = [group_of(at, text, facts) for at in {place.parents[1] for place in facts} for text in texts]
    order = [*published.MODELS]
    return sorted(
        (group for group in found if BASE in group.policies),
        key=lambda group: (
            order.index(group.model) if group.model in order else len(order),
            -group.setting.bits,
            str(group.setting),
            list(texts).index(group.text),
        ),
    )


def group_of(at: Path, text: str, facts: Mapping[Path, Facts]) -> Group:
    """Returns the group of one model and setting, whose directory is `at`."""
    names = {path.name.replace(",", ":"): path for path in at.iterdir()}
    places = {
        name: sorted((place for place in facts if place.parent == names[name]), key=lambda place: int(place.name))
        for name in sorted(names, key=rank)
    }
    return Group(
        at.parent.name,
        Setting.of(at.name.replace("_", ":")),
        text,
        {
            name: Measured(name, tuple(Scores.load(place / f"{text}.json") for place in own))
            for name, own in places.items()
            if own
        },
        {name: tuple(facts[place] for place in own) for name, own in places.items() if own},
    )


def check_shared(facts: Mapping[Path, Facts]) -> None:
    """Raises unless all scores were measured on the same text with the same amounts."""
    first, *others = facts
    for place in others:
        for name in SHARED:
            if facts[place]["settings"][name] != facts[first]["settings"][name]:
                raise ValueError(f"{place} and {first} differ in {name}; measure one of them again")


def rank(policy: str) -> tuple[int, str]:
    """Returns the place of a policy in the tables: those with options of their own come after the plain ones."""
    names = list(NAMES)
    return (names.index(policy) if policy in names else len(names), policy)


def name_of(policy: str) -> str:
    """Returns a policy as tables name it."""
    return NAMES.get(policy, f"`{policy}`")


def write(root: Path, *, page: Path, readme: Path) -> None:
    """Writes both pages, and figure and numbers next to the first."""
    groups = read_groups(root)
    assets = page.parent / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    write_numbers(groups, assets / "real-models.csv")
    figures = {
        group.title: {name_of(policy): each.frame("divergence", UNIT) for policy, each in group.policies.items()}
        for group in main_groups(groups)
    }
    real_figure.draw(figures, assets / "real-models.svg", order=name_of(BASE))
    replace_between(page, page_lines(groups))
    replace_between(readme, readme_lines(groups))


def replace_between(path: Path, lines: Iterable[str]) -> None:
    """Replaces what is between the markers of a page."""
    page = path.read_text("utf-8")
    if BEGIN not in page:
        print(f"{path} has no marker: left as it is")
        return
    head, rest = page.split(BEGIN)
    text = "\n".join(lines)
    path.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", "utf-8")


def main_groups(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups of the first setting and text, one for each model."""
    return [each for each in groups if (each.setting, each.text) == (groups[0].setting, groups[0].text)]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def readme_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields one row for each model: the divergence of the worst language, and its ratio to the base."""
    main = main_groups(groups)
    first, shared = main[0].base.scores[0], main[0].facts[BASE][0]["settings"]
    policies = sorted({policy for group in main for policy in group.policies}, key=rank)
    counts = [len(each.scores) for group in main for policy, each in group.policies.items() if policy in seeded(main)]
    seeds = dict.fromkeys((min(counts, default=1), max(counts, default=1)))
    yield (
        f"The worst language of real models under {len(policies)} policies, {main[0].setting}: KL between the model "
        "before and after in bits per byte, its 95 % interval over documents, and its ratio to GPTQ with an equal mix. "
        f"{len(first.languages)} languages, {len(first.documents.lang):,} documents of "
        f"{TEXTS.get(main[0].text, main[0].text)} that calibration has not seen; calibration on `{shared['text']}`, "
        f"with the same number of tokens or all text; {' or '.join(map(str, seeds))} "
        "seeds where a seed matters. [All languages, widths and texts](docs/real-models.md).\n"
    )
    heads = ["", *map(name_of, policies)]
    rows = []
    for group in main:
        worst = {policy: each.frame("divergence", UNIT).worst() for policy, each in group.policies.items()}
        cells = {policy: f"{shown(each)} {language_of(code).name}" for policy, (code, each) in worst.items()}
        for policy in cells.keys() - {BASE}:
            cells[policy] += f", **{ratio(worst[policy][1].value, worst[BASE][1].value)}x**"
        rows.append([group.title, *(cells.get(policy, "") for policy in policies)])
    yield from table(heads, rows)


def seeded(groups: Iterable[Group]) -> set[str]:
    """Returns the policies that were measured with more than one seed."""
    return {policy for group in groups for policy, each in group.policies.items() if len(each.scores) > 1}


def page_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields everything that the page shows."""
    yield from amount_lines(groups)
    for text in dict.fromkeys(group.text for group in groups):
        own = [group for group in groups if group.text == text]
        known = [code for code in own[0].languages if code in own[0].calibrated]
        others = [code for code in own[0].languages if code not in own[0].calibrated]
        yield f"\n## {TEXTS.get(text, text)}"
        for languages, title in ((known, "languages of the calibration text"), (others, "other languages")):
            if languages:
                yield from summary_lines(own, languages, title)
    yield "\n## Every language"
    yield "\n![KL of every language under every policy](assets/real-models.svg)"
    yield "\nIn bits per byte. All numbers, in both units: [real-models.csv](assets/real-models.csv)."
    for group in groups:
        if group.setting == groups[0].setting:
            yield from language_lines(group)
    yield "\n## Time and memory\n"
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
    every = (one for group in groups for policy, each in group.facts.items() if "@" not in policy for one in each)
    notes = dict.fromkeys(note for one in every for note in one["notes"])  # all text is less than requested
    yield from (f"\n- {note}" for note in notes)


def summary_lines(groups: Sequence[Group], languages: Collection[str], title: str) -> Iterator[str]:
    """Yields, for each measure, one row for every model, setting and policy."""
    documents = sum(code in languages for code in groups[0].base.scores[0].documents.lang.tolist())
    heads = (
        *("model", "setting", "policy", "tokens", "seeds", "worst", "ratio", "mean", "ratio", "lower", "higher"),
        *("worst, nats per token", "mean, nats per token"),
    )
    for measure, name in MEASURES.items():
        yield f"\n**{name[0].upper()}{name[1:]}, bits per byte, {len(languages)} {title}, {documents:,} documents**\n"
        rows = []
        for group in groups:
            for policy, each in group.policies.items():
                tokens = sum(group.facts[policy][0]["calibration_tokens"].values())
                start = [group.title, str(group.setting), name_of(policy), f"{tokens:,}", str(len(each.scores))]
                rows.append([*start, *comparison(each, group.base, measure, languages)])
        yield from table(heads, rows)


def comparison(each: Measured, base: Measured, measure: Measure, languages: Collection[str]) -> list[str]:
    """Returns worst and mean with their ratios to the base, and how many languages differ significantly."""
    mine, theirs = (one.frame(measure, UNIT, languages) for one in (each, base))
    nats = each.frame(measure, PER_TOKEN, languages)
    code, worst = mine.worst()
    cells = [f"{shown(worst)} {code[:3]}", ratio(worst.value, theirs.worst()[1].value)]
    cells += [shown(mine.mean()), ratio(mine.mean().value, theirs.mean().value)]
    cells += ["", ""] if each is base else map(str, contrast_counts(mine, theirs)[2:])
    return [*cells, f"{number(nats.worst()[1].value)} {nats.worst()[0][:3]}", number(nats.mean().value)]


def ratio(value: float, base: float) -> str:
    """Returns how many times the base a value is; nothing where one of them is not above 0."""
    return number(value / base, 2) if min(value, base) > 0 else ""


def language_lines(group: Group) -> Iterator[str]:
    """Yields the table of every language of one model on one text, in bits per byte."""
    frames = {
        (measure, policy): each.frame(measure, UNIT).by_language()
        for measure in MEASURES
        for policy, each in group.policies.items()
    }
    heads = [f"{MEASURES[measure]}, {name_of(policy)}" for measure, policy in frames]
    first, rows = group.base.scores[0].documents, []
    for code in sorted(group.languages, key=lambda code: -frames["divergence", BASE][code].value):
        own = first.lang == code
        before = bits_per_byte(float(first.nll_reference[own].sum()), float(first.bytes[own].sum()))
        mark = "" if code in group.calibrated else " *"
        start = [f"{language_of(code).name}{mark}", str(int(own.sum())), number(before, 2)]
        rows.append([*start, *(shown(each[code]) for each in frames.values())])
    yield f"\n### {group.title}, {group.setting}, {TEXTS.get(group.text, group.text)}\n"
    yield from table(["language", "documents", "loss of the reference", *heads], rows)
    if not set(group.languages) <= group.calibrated:
        yield "\n\\* not in the calibration text"


def cost_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields what quantizing and evaluating took; time is the mean over seeds, memory the most."""
    rows = []
    for group in groups:
        for policy, facts in group.facts.items() if group.text == groups[0].text else ():
            seconds = [np.mean([each[name] for each in facts]) for name in ("seconds", "evaluation_seconds")]
            peak = max(each.get("peak_gpu_bytes", 0) for each in facts)
            start = [group.title, str(group.setting), name_of(policy), *(f"{each:,.0f}" for each in seconds)]
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
            for policy, each in group.policies.items():
                start = (group.model, group.setting, group.text, policy, len(each.scores))
                for measure in MEASURES:
                    for unit in (UNIT, PER_TOKEN):
                        for code, found in each.frame(measure, unit).by_language().items():
                            numbers = (f"{value:.6g}" for value in (found.value, found.low, found.high))
                            rows.writerow((*start, code, measure, unit, *numbers, found.n))
