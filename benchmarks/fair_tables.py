"""Prints what `fair.py` has measured: `fair` against GPTQ, minimax against equal weights, and every step of the way.

    python benchmarks/fair_tables.py DIR

All are means over seeds with 95 % intervals over documents, with ratios to GPTQ, how many languages have a lower or
higher damage, and how many are better or worse by a paired test, Holm-corrected. Damage is added nats per token; KL is
that to the full-precision model, per token.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import Setting
from fairbits.evaluation.scores import Scores
from measured import Measured, contrast_counts, shown

UNIT = "nats_per_token"
HEADS = ("worst before", "after", "ratio", "mean", "KL worst", "KL mean", "lower", "higher", "better", "worse")


def groups(root: Path) -> Iterator[tuple[str, list[Measured]]]:
    """Yields all policies that were measured on one text, for every model, setting and text."""
    for at in sorted({path.parents[2] for path in root.glob("*/*/*/*/facts.json")}):
        policies = sorted(
            (path for path in at.iterdir() if any(path.glob("*/facts.json"))),
            key=lambda path: rank(path.name),
        )
        setting = Setting.of(at.name.replace("_", ":"))
        for text in sorted({path.stem for path in at.glob("*/*/*.json")} - {"facts"}):
            files = {path.name.replace(",", ":"): sorted(path.glob(f"*/{text}.json")) for path in policies}
            found = [Measured(policy, tuple(map(Scores.load, paths))) for policy, paths in files.items() if paths]
            yield f"{at.parent.name}, {setting}, {text}", found


def rank(policy: str) -> int:
    """Returns where in the order of the steps a policy stands."""
    steps = ("gptq", "mse", "weighted", "allocate", "model_steps=0", "objective=mean", "avg_bits", "fair")
    place = next(i for i, each in enumerate(steps) if each in policy)
    return len(steps) if steps[place] == "avg_bits" else place


def role(policy: str) -> str:
    """Returns what a policy is held to others as: the base, learned for the worst language, or for all alike."""
    name, *options = policy.split(":")
    if name != "fair":
        return "base" if policy == "gptq" else ""
    if any(each.startswith(("avg_bits", "model_steps=0")) for each in options):
        return ""
    return "equal" if "objective=mean" in options else "worst"


def tables(root: Path) -> Iterator[str]:
    """Yields the lines of all tables."""
    measured = list(groups(root))
    roles = [(name, {role(each.policy): each for each in found}) for name, found in measured]
    yield f"### Learned for the worst language, against GPTQ, {UNIT}\n"
    yield f"| model, setting, text | {' | '.join(HEADS)} |"
    yield "|---|" + "---|" * len(HEADS)
    for name, by_role in roles:
        if {"base", "worst"} <= by_role.keys():
            yield f"| {name} | {' | '.join(gain(by_role['worst'], by_role['base']))} |"
    yield "\n### Weights that follow the worst language less equal weights\n"
    yield "| model, setting, text | worst damage | worst KL | mean damage | mean KL |"
    yield "|" + "---|" * 5
    for name, by_role in roles:
        if {"equal", "worst"} <= by_role.keys():
            yield f"| {name} | {' | '.join(minimax(by_role['worst'], by_role['equal']))} |"
    for name, found in measured:
        if {role(each.policy) for each in found} != {"base", "worst"}:
            yield f"\n### {name}, step by step\n"
            yield from table(found)


def gain(mine: Measured, base: Measured) -> list[str]:
    """Returns what is left of the damage of the base."""
    pairs = ((mine.damage, base.damage), (mine.kl, base.kl))
    worst = [a.worst()[1].value / b.worst()[1].value for a, b in pairs]
    mean = [a.mean().value / b.mean().value for a, b in pairs]
    before, after = (f"{shown(each.damage.worst()[1])} {each.damage.worst()[0][:3]}" for each in (base, mine))
    ratios = [f"{each:.2f}" for each in (worst[0], mean[0], worst[1], mean[1])]
    return [before, after, *ratios, *counts(mine, base)]


def minimax(mine: Measured, equal: Measured) -> list[str]:
    """Returns the differences of worst and mean, of damage and of KL."""
    pairs = ((mine.damage, equal.damage), (mine.kl, equal.kl))
    return [shown(a.worst_minus(b)) for a, b in pairs] + [shown(a.minus(b).mean()) for a, b in pairs]


def table(found: Sequence[Measured]) -> Iterator[str]:
    """Yields the lines of the table of one text."""
    base = found[0]
    yield "| policy | seeds | MB | worst | ratio | mean | ratio | KL worst | ratio | KL mean | ratio | better | worse |"
    yield "|" + "---|" * 13
    for each in found:
        cells = [f"`{each.policy}`", str(len(each.scores)), f"{each.size_bytes / 1e6:.2f}"]
        for mine, theirs in ((each.damage, base.damage), (each.kl, base.kl)):
            code, worst = mine.worst()
            cells += [f"{shown(worst)} {code[:3]}", f"{worst.value / theirs.worst()[1].value:.2f}"]
            cells += [shown(mine.mean()), f"{mine.mean().value / theirs.mean().value:.2f}"]
        yield f"| {' | '.join((*cells, *counts(each, base)[2:]))} |"


def counts(each: Measured, base: Measured) -> list[str]:
    """Returns how many languages have lower or higher damage than at the base, and how many significantly."""
    if each is base:
        return [""] * 4
    return [str(count) for count in contrast_counts(each.damage, base.damage)]


if __name__ == "__main__":
    print("\n".join(tables(Path(sys.argv[1]))))
