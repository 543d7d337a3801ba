"""The table of the README: the worst language and English of every model, one row for each policy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code
from measured import number
from real_groups import BASE, TEXTS, UNIT, Group, name_of, rank, table

ENGLISH = "eng_Latn"
DECIMALS = 3


def readme_lines(groups: Sequence[Group]) -> Iterator[str]:
    """Yields a caption and the table; the groups have one setting and text, one for each model.

    Models on which few policies were measured are left out.
    """
    most = max(len(group.policies) for group in groups)
    groups = [group for group in groups if len(group.policies) == most]
    policies = sorted({policy for group in groups for policy in group.policies}, key=rank)
    all_cells = {(group.title, policy): Cells.of(group, policy) for group in groups for policy in policies}
    yield from caption(groups, max(entry.spread for entry in all_cells.values() if entry is not None))
    heads = ["", "calibration tokens", *(f"{group.title}, {what}" for group in groups for what in ("worst", "English"))]
    rows = []
    for policy in policies:
        policy_cells = [all_cells[group.title, policy] for group in groups]
        cells = [cell for entry in policy_cells for cell in (("", "") if entry is None else entry.shown)]
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
        return f"{number(self.worst.value, DECIMALS)} {language_from_code(self.code).name}", english


def caption(groups: Sequence[Group], spread: float) -> Iterator[str]:
    """Yields what the numbers are and how they were measured."""
    first = groups[0].base.scores[0]
    text = TEXTS.get(groups[0].text, groups[0].text)
    calibrated = groups[0].facts[BASE][0]["calibration_tokens"]
    held_out = [language_from_code(code).name for code in first.languages if code not in calibrated]
    rest = f"; {', '.join(held_out[:-1])} and {held_out[-1]} are held out" if len(held_out) > 1 else ""
    seeds = max(len(measured.scores) for group in groups for measured in group.policies.values())
    yield (
        "Two small models, likelihood only, and **reference models that are dequantized Q4_K_M files**, because no "
        "full-precision weights were available here: what the 4-bit file had lost before is not in these numbers.\n"
    )
    yield (
        f"KL divergence from the reference model in bits per byte (lower is better), {groups[0].setting}. Evaluation: "
        f"{len(first.languages)} languages, {len(first.documents.lang) // len(first.languages)} unseen documents each "
        f"of {text}; the mix has {len(calibrated)} of them{rest}. 95 % intervals of the worst language are within "
        f"±{100 * spread:.0f} %; {seeds} seeds where the tokens are sampled, else one. "
        "[All languages, texts, bit widths and intervals](docs/results.md); [what a KL means](docs/scores.md).\n"
    )


def tokens_of(groups: Sequence[Group], policy: str) -> str:
    """Returns the calibration tokens of a policy, of the first model that has it."""
    facts = next(group.facts[policy] for group in groups if policy in group.facts)
    counts = [sum(seed_facts["calibration_tokens"].values()) for seed_facts in facts]
    return f"{sum(counts) / len(counts):,.0f}"
