"""The table of the README: the worst language and English of every model, one row for each policy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code
from measured import number
from real_groups import TEXTS, UNIT, Group, name_of, rank, table

ENGLISH = "eng_Latn"
DECIMALS = 3


def readme_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields a caption and the table; the groups have one setting and text, one for each model."""
    policies = sorted({policy for group in groups for policy in group.policies}, key=rank)
    found = {(group.title, policy): Cells.of(group, policy) for group in groups for policy in policies}
    yield from caption(groups, max(each.spread for each in found.values() if each is not None))
    heads = ["", "calibration tokens", *(f"{group.title}, {what}" for group in groups for what in ("worst", "English"))]
    rows = []
    for policy in policies:
        own = [found[group.title, policy] for group in groups]
        cells = [cell for each in own for cell in (("", "") if each is None else each.shown)]
        rows.append([name_of(policy), tokens_of(groups, policy), *cells])
    yield from table(heads, rows)


@dataclass(frozen=True)
class Cells:
    """The divergence of the worst language, whose code comes first, and of English."""

    code: str
    worst: Estimate
    english: Estimate | None

    @classmethod
    def of(cls, group: Group, policy: str) -> "Cells | None":
        """Returns those of a policy; None if it was not measured."""
        if policy not in group.policies:
            return None
        frame = group.policies[policy].frame("divergence", UNIT)
        return cls(*frame.worst(), frame.by_language().get(ENGLISH))

    @property
    def spread(self) -> float:
        """Half the width of the worst language's interval, as a share of its value."""
        return (self.worst.high - self.worst.low) / 2 / self.worst.value

    @property
    def shown(self) -> tuple[str, str]:
        """Both as the table writes them."""
        english = "" if self.english is None else number(self.english.value, DECIMALS)
        return f"**{number(self.worst.value, DECIMALS)}** {language_from_code(self.code).name}", english


def caption(groups: Sequence[Group], spread: float) -> Iterator[str]:
    """Yields what the numbers are and how they were measured."""
    first = groups[0].base.scores[0]
    text = TEXTS.get(groups[0].text, groups[0].text)
    every = [(policy, len(each.scores)) for group in groups for policy, each in group.policies.items()]
    several = {policy for policy, count in every if count > 1}
    counts = {count for policy, count in every if policy in several} or {1}
    yield (
        f"KL divergence from the reference model in bits per byte (lower is better), {groups[0].setting}. Evaluation: "
        f"{len(first.languages)} languages, {len(first.documents.lang) // len(first.languages)} unseen documents each "
        f"of {text}; 12 of the languages were in the calibration set, Greek was not. 95 % intervals of the worst "
        f"language are within ±{100 * spread:.0f} %; 1 or {max(counts)} seeds. The reference models are dequantized "
        "Q4_K_M files, because no full-precision weights were available here. "
        "[All languages, texts, bit widths and intervals](docs/results.md).\n"
    )


def tokens_of(groups: Sequence[Group], policy: str) -> str:
    """Returns the calibration tokens of a policy, of the first model that has it."""
    facts = next(group.facts[policy] for group in groups if policy in group.facts)
    counts = [sum(each["calibration_tokens"].values()) for each in facts]
    return f"{sum(counts) / len(counts):,.0f}"
