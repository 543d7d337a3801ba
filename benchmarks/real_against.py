"""Tables that compare `fair` with AutoRound, and with itself less one ingredient, on the same calibration text."""

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from measured import contrast_counts, number, paired_ratios
from real_ablations import TITLES
from real_autoround import Recipe
from real_groups import TEXTS, UNIT, Group, name_of, table

OURS = "fair@all"
HEADS = (
    *("model", "setting", "text", "languages", "compared with", "worst KL", "worst KL of `fair`", "ratio"),
    *("mean KL", "mean KL of `fair`", "ratio", "lower", "higher", "seconds", "seconds of `fair`", "seeds"),
)


def against_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields the section on AutoRound; nothing if AutoRound or `fair` was not measured on all text."""
    rows = [
        row_of(group, policy, languages, name)
        for group, policy in compared(groups, lambda policy: Recipe.of(policy) is not None and policy.endswith("@all"))
        for name, languages in parts_of(group)
    ]
    if rows:
        yield "\n### Against AutoRound\n"
        yield (
            f"{name_of(OURS)}, compared with AutoRound on the same text: KL in bits per byte. A ratio is that of "
            "`fair` to AutoRound; its interval resamples documents, the same for both. `lower` and `higher` count the "
            "languages in which `fair` is significantly lower and higher. Seconds are of quantizing alone. `seeds` are "
            "those of AutoRound and of `fair`."
        )
        yield ""
        yield from table(HEADS, rows)


def ablation_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields the section on the ingredients of `fair`; nothing if none was left out."""
    rows = [
        row_of(group, policy, languages, name)
        for group, policy in compared(groups, TITLES.__contains__)
        for name, languages in parts_of(group)[:1]
    ]
    if rows:
        yield "\n### Ingredients of `fair`\n"
        yield (
            f"{name_of(OURS)}, compared with the same policy less one ingredient. A ratio is that of `fair` to `fair` "
            "without it: below 1 the ingredient helps. Intervals and counts are those of the table above."
        )
        yield ""
        yield from table(HEADS, rows)


def compared(groups: Sequence[Group], chosen: Callable[[str], bool]) -> Iterator[tuple[Group, str]]:
    """Yields the chosen policies of every group that has `fair` on all text too."""
    for group in groups:
        if OURS in group.policies:
            yield from ((group, policy) for policy in group.policies if chosen(policy))


def parts_of(group: Group) -> list[tuple[str, list[str]]]:
    """Returns the languages of the calibration text and the others, as far as the text has them, with a name each."""
    calibrated = [code for code in group.languages if code in group.calibrated]
    others = [code for code in group.languages if code not in group.calibrated]
    parts = ((f"{len(calibrated)} calibrated", calibrated), (f"{len(others)} others", others))
    return [(name, languages) for name, languages in parts if languages]


def row_of(group: Group, policy: str, languages: Collection[str], name: str) -> list[str]:
    """Returns the comparison of `fair` with one recipe of AutoRound on one text, in some languages."""
    pair = (policy, OURS)
    theirs, mine = (group.policies[method].frame("divergence", UNIT, languages) for method in pair)
    worst, mean = map(interval, paired_ratios(mine, theirs))
    return [
        *(group.title, str(group.setting), TEXTS.get(group.text, group.text), name, name_of(policy)),
        *(worst_of(theirs), worst_of(mine), worst),
        *(number(theirs.mean().value), number(mine.mean().value), mean),
        *map(str, contrast_counts(mine, theirs)[2:]),
        *(f"{np.mean([facts['seconds'] for facts in group.facts[method]]):,.0f}" for method in pair),
        ", ".join(str(len(group.policies[method].scores)) for method in pair),
    ]


def worst_of(frame: LanguageFrame) -> str:
    """Returns the worst language and its damage."""
    code, worst = frame.worst()
    return f"{number(worst.value)} {code[:3]}"


def interval(estimate: Estimate) -> str:
    """Returns a ratio with its interval."""
    return f"{number(estimate.value, 2)} [{number(estimate.low, 2)}, {number(estimate.high, 2)}]"
