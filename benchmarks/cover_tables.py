"""Tables of what cover.py has measured: seen against unseen languages, and sets of languages next to random ones."""

from collections.abc import Sequence

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.stats.frame import LanguageFrame
from language_trial import Results
from measured import number, shown

NAMES = {
    "largest": "largest",
    "cover damage mean": "**cover**",
    "cover damage worst": "worst",
    "cover distance mean": "distance",
    "cover distance worst": "distance, worst",
}
"""Sets in the order of the tables, and how they are written there."""


class Sets:
    """The KL of every document after calibration on each set, of the languages inside and outside."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.lang = np.array(results.lang)
        self.languages = tuple(dict.fromkeys(results.lang))
        self.tokens = np.array(results.tokens)
        self.kl = {name: np.array(each["kl"]) for name, each in results.sets.items()}
        self.random = [name for name in self.kl if name.startswith("random ")]

    def inside(self, name: str) -> Floats:
        """Returns which languages a set has."""
        return np.isin(self.languages, self.results.sets[name]["languages"])

    def by_language(self, nats: Floats) -> Floats:
        """Returns the nats per token of every language."""
        own = [self.lang == code for code in self.languages]
        return np.array([nats[rows].sum() / self.tokens[rows].sum() for rows in own])

    def usual(self, *, seen: bool) -> Floats:
        """Returns the KL of every document, the mean over the random sets that have its language, or that have not."""
        total, count = np.zeros(len(self.lang)), np.zeros(len(self.lang))
        for name in self.random:
            rows = np.isin(self.lang, self.results.sets[name]["languages"]) == seen
            total[rows] += self.kl[name][rows]
            count[rows] += 1
        with np.errstate(invalid="ignore"):
            return total / count  # NaN where no set is of that kind

    def frame(self, nats: Floats, languages: Sequence[str]) -> LanguageFrame:
        """Returns the nats of the documents of some languages, in nats per token, with intervals over documents."""
        rows = np.isin(self.lang, languages)
        documents = np.array(self.results.document)[rows]
        given = {"values": nats[rows], "weights": self.tokens[rows], "unit": "nats_per_token"}
        return LanguageFrame(self.lang[rows], documents, **given)


def table(results: Results) -> str:
    """Returns both tables of one model, setting and size."""
    sets = Sets(results)
    size = next(iter(results.sets.values()))["size"]
    head = f"**{results.model}, W{results.setting}, {size} of {len(sets.languages)} languages**"
    return "\n".join([head, "", *forgotten(sets), "", *compared(sets), ""])


def forgotten(sets: Sets) -> list[str]:
    """Returns what languages lose if they are not in the set, from the random sets."""
    seen, unseen = sets.usual(seen=True), sets.usual(seen=False)
    both = ~(np.isnan(sets.by_language(seen)) | np.isnan(sets.by_language(unseen)))
    languages = [code for code, known in zip(sets.languages, both, strict=True) if known]
    if not languages:
        return ["No language is in some of the random sets and not in others."]
    a, b = sets.by_language(seen)[both], sets.by_language(unseen)[both]
    difference = sets.frame(unseen - seen, languages)
    ratio, names = b / a, [code[:3] for code in languages]
    least, most = int(np.argmin(ratio)), int(np.argmax(ratio))
    sure = sum(each.low > 0 for each in difference.by_language().values())
    cells = [
        *(f"{len(sets.random)}", f"{len(languages)}", number(a.mean()), number(b.mean())),
        *(number(b.mean() / a.mean(), 2), shown(difference.mean())),
        *(f"{number(ratio[least], 2)} {names[least]}", f"{number(ratio[most], 2)} {names[most]}"),
        *(f"{int((b > a).sum())}", f"{sure}"),
    ]
    return [
        "| random sets | languages | KL seen | unseen | ratio | difference | least | most | lose | significantly |",
        "|---|---|---|---|---|---|---|---|---|---|",
        f"| {' | '.join(cells)} |",
    ]


def compared(sets: Sets) -> list[str]:
    """Returns the KL of the languages outside each set, next to that of the same languages outside random sets."""
    rows = [
        "| set | all: mean | worst | outside: mean | worst | the same, random | ratio | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    usual = sets.usual(seen=False)
    random = np.array([row(sets, name) for name in sets.random]).reshape(-1, 4)
    if not len(random):
        return ["No random set was measured."]
    middle, least, most = random.mean(axis=0), random.min(axis=0), random.max(axis=0)
    spread = [f"{number(m)} [{number(lo)}, {number(hi)}]" for m, lo, hi in zip(middle, least, most, strict=True)]
    rows.append(f"| random, {len(random)}: mean [least, most] | {' | '.join(spread)} | | | |")
    for name in (each for each in NAMES if each in sets.kl):
        outside = [code for code, held in zip(sets.languages, sets.inside(name), strict=True) if not held]
        values = row(sets, name)
        better = [f"{number(v)} ({int((random[:, i] < v).sum())})" for i, v in enumerate(values)]
        same = sets.frame(usual, outside).mean()
        difference = sets.frame(sets.kl[name] - usual, outside).mean()
        codes = " ".join(sorted(code[:3] for code in sets.results.sets[name]["languages"]))
        ratio = number(values[2] / same.value, 2)
        rows.append(
            f"| {NAMES[name]}: {codes} | {' | '.join(better)} | {number(same.value)} | {ratio} | {shown(difference)} |"
        )
    return [*rows, "", "In parentheses: how many of the random sets have less."]


def row(sets: Sets, name: str) -> tuple[float, float, float, float]:
    """Returns mean and worst KL over all languages, and over those outside the set."""
    kl, outside = sets.by_language(sets.kl[name]), ~sets.inside(name)
    return float(kl.mean()), float(kl.max()), float(kl[outside].mean()), float(kl[outside].max())
