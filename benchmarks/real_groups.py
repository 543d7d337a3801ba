"""What `real.py run` has measured, by model, setting and text."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import published
from bench import FACTS, Setting
from fairbits.evaluation.scores import Scores
from measured import Measured
from real_ablations import TITLES
from real_autoround import title_of

BASE = "gptq"
NAMES = {
    "rtn": "plain rounding",
    "gptq:mix=english": "GPTQ, English",
    "gptq:mix=english@all": "GPTQ, English",
    BASE: "GPTQ, equal mix",
    "fair": "`fair`",
    "gptq@all": "GPTQ, equal mix, all text",
    "fair@all": "`fair`, all text",
    **{policy: str(title_of(policy)) for policy in ("autoround@all", "autoround:iterations=1000:alg_ext@all")},
}
"""Policies in the order of the tables, and how they are written there."""
TEXTS = {"help": "LibreOffice help", "declaration": "Universal Declaration of Human Rights"}
UNIT = "bits_per_byte"
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
        published_model = published.MODELS.get(self.model)
        return self.model if published_model is None else published_model.title

    def without(self, policies: Collection[str]) -> "Group":
        """Returns the group without some policies."""
        kept = {name: measured for name, measured in self.policies.items() if name not in policies}
        return replace(self, policies=kept, facts={name: self.facts[name] for name in kept})

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
    groups = [group_of(at, text, facts) for at in {place.parents[1] for place in facts} for text in texts]
    order = [*published.MODELS]
    return sorted(
        (group for group in groups if BASE in group.policies),
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
            name: Measured(name, tuple(Scores.load(place / f"{text}.json") for place in seed_places))
            for name, seed_places in places.items()
            if seed_places
        },
        {name: tuple(facts[place] for place in seed_places) for name, seed_places in places.items() if seed_places},
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
    return NAMES.get(policy) or TITLES.get(policy) or title_of(policy) or f"`{policy}`"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (f"| {' | '.join(row)} |" for row in rows)
