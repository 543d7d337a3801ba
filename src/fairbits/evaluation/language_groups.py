"""Groups of languages, such as high- and low-resource ones: how they are named, their damage, and its ratio.

Nothing that comes with fairbits knows how much text of a language exists, so the user names the groups. Only the
embedded model's training text is known: `training` halves its languages by their shares of that text.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, count_of
from fairbits.core.records import Code, Name, read_object
from fairbits.core.table import Cell, NumberFormat, Table, dim
from fairbits.models.embedded import training_shares
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, combination, estimate_within, marginal
from fairbits.stats.resample import Replicates
from fairbits.stats.worst_language import bias_corrected_range
from fairbits.text.language_codes import resolve_language

Groups = Mapping[Name, tuple[Code, ...]]
"""The languages of every group; the others are compared with the first."""
NamedGroups = str | Path | Mapping[str, Iterable[str]]
TRAINING = "training"
HIGH, LOW = "high", "low"
EXAMPLE = "high=eng,fra;low=swh,yor"
LONGEST_NAME = 40


@dataclass(frozen=True)
class GroupDamage:
    """The damage of groups in one unit: its mean over the languages of each, which count equally, and ratios.

    `ratios` has every group but the first: its mean over that of the first, the research notes' ε_LR/ε_HR (004-08) if
    the first is the high-resource one. `worst_over_best` is the ratio of the most to the least damaged group, corrected
    for selection. `no_ratio` says why there is none: a damage that may be 0 cannot be divided by. `left_out` are
    languages of the groups that have no interval; a mean is without them, unless its group has no other.
    """

    unit: str
    means: Mapping[str, Estimate]
    ratios: Mapping[str, Estimate]
    worst_over_best: Estimate | None
    no_ratio: str | None
    left_out: tuple[str, ...]

    @property
    def first(self) -> str:
        return next(iter(self.means))

    def as_data(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "means": {name: mean.to_dict() for name, mean in self.means.items()},
            "ratios": {name: ratio.to_dict() for name, ratio in self.ratios.items()},
            "worst_over_best": self.worst_over_best and self.worst_over_best.to_dict(),
            "no_ratio": self.no_ratio,
            "left_out": list(self.left_out),
        }


def read_groups(groups: NamedGroups, languages: Collection[str], *, model: str) -> dict[str, tuple[str, ...]]:
    """Returns the codes of every group among the languages of a measurement.

    Groups are "high=eng,fra;low=swh,yor", a mapping, or the path of a JSON file: lists of languages by group, or the
    share of every language in the training text, which halves the languages. "training" takes the shares of `model`.
    """
    if isinstance(groups, Mapping):
        named = {str(name): list(members) for name, members in groups.items()}
    elif groups == TRAINING:
        shares = training_shares(model)
        if shares is None:
            raise InputError(f"what {model} was trained on is not known; name the groups: {EXAMPLE}")
        named = split_by_share(shares, languages)
    elif isinstance(groups, str) and "=" in groups:
        named = _parse(groups)
    else:
        named = _read_file(Path(groups), languages)
    return check_groups({name: [_code(member, languages) for member in members] for name, members in named.items()})


def split_by_share(shares: Mapping[str, float], languages: Iterable[str]) -> dict[str, list[str]]:
    """Returns the half of the languages with the larger shares and that with the smaller; an odd one is in neither."""
    order = sorted((code for code in languages if code in shares), key=lambda code: (-shares[code], code))
    half = len(order) // 2
    return {HIGH: order[:half], LOW: order[len(order) - half :]}


def group_damage(frame: LanguageFrame, groups: Groups) -> GroupDamage:
    """Returns the damage of every group and its ratios, with intervals paired by document."""
    members = {
        name: [i for i, code in enumerate(frame.bounded.languages) if code in codes] for name, codes in groups.items()
    }
    counted = {name: columns for name, columns in members.items() if columns}
    means = {name: _plain_mean(frame, codes) for name, codes in groups.items()}
    drawn = _average(frame.bounded, counted) if counted else frame.bounded
    if counted:
        for name, value, low, high in zip(counted, drawn.value, *marginal(drawn, frame.confidence), strict=True):
            n, confidence = means[name].n, frame.confidence
            means[name] = estimate_within(value, low, high, n=n, confidence=confidence, least=frame.least)
    unbounded = [name for name, mean in means.items() if not mean.bounded]
    no_ratio = f"the damage of {unbounded[0]} has no interval" if unbounded else _may_be_zero(drawn, means)
    logs = None if no_ratio else _logarithm(drawn)
    return GroupDamage(
        unit=frame.unit,
        means=means,
        ratios={} if logs is None else {name: _ratio(logs, i, frame) for i, name in enumerate(means) if i > 0},
        worst_over_best=None if logs is None else bias_corrected_range(logs, frame.confidence).transform(np.exp),
        no_ratio=no_ratio,
        left_out=tuple(code for codes in groups.values() for code in codes if code in frame.without_interval),
    )


def _ratio(logs: Replicates, group: int, frame: LanguageFrame) -> Estimate:
    """Returns the damage of a group over that of the first, from the difference of their logarithms."""
    difference = np.zeros(len(logs.languages))
    difference[[group, 0]] = 1, -1
    value, low, high = combination(logs, difference, frame.confidence)
    return estimate_within(value, low, high, n=logs.clusters, confidence=frame.confidence).transform(np.exp)


def outside(groups: Groups, languages: Iterable[str]) -> list[str]:
    """Returns the languages that are in no group."""
    grouped = {code for codes in groups.values() for code in codes}
    return [code for code in languages if code not in grouped]


def group_table(groups: Groups, damage: Mapping[str, GroupDamage], *, ungrouped: Sequence[str]) -> Table:
    """Returns the mean damage of every group and the ratios, with a column for every measure."""
    formats = [NumberFormat(max(abs(mean.value) for mean in part.means.values())) for part in damage.values()]
    columns = list(zip(damage.values(), formats, strict=True))
    rows: list[tuple[Cell, ...]] = [
        (
            f"{name}, {count_of(len(codes), 'language')}",
            *(number.estimate(part.means[name]) for part, number in columns),
        )
        for name, codes in groups.items()
    ]
    first, *others = groups
    ratios = {f"{name} / {first}": [part.ratios.get(name) for part in damage.values()] for name in others}
    if len(others) > 1:
        ratios["worst / best"] = [part.worst_over_best for part in damage.values()]
    rows += [
        (name, *("–" if ratio is None else NumberFormat(ratio.value, factor=1.0).estimate(ratio) for ratio in parts))
        for name, parts in ratios.items()
        if any(ratio is not None for ratio in parts)
    ]
    below = ["The mean over the languages of a group, which count equally, and the ratio of these means."]
    below += [f"No ratio of {name}: {part.no_ratio}." for name, part in damage.items() if part.no_ratio is not None]
    below += [f"In no group: {', '.join(ungrouped)}."] if ungrouped else []
    headers = ("", *(f"{name}, {number.prefix}bits/byte" for name, number in zip(damage, formats, strict=True)))
    return Table("Groups of languages", headers, tuple(rows), tuple(map(dim, below)), left=(1, 2))


def _average(drawn: Replicates, members: Mapping[str, Sequence[int]]) -> Replicates:
    """Returns the replicates of the mean over the columns of each group, with the correlations of languages fixed."""
    size = len(drawn.languages)
    A: Floats = np.array([np.isin(np.arange(size), columns) / len(columns) for columns in members.values()])
    covariance = A @ drawn.covariance @ A.T
    error = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.where(error > 0, error, 1.0)
    inner = []
    for a in A:
        scaled = a * drawn.replicate_error
        spread = np.einsum("bi,ij,bj->b", scaled, drawn.correlation, scaled, optimize=True)
        inner.append(np.sqrt(np.maximum(spread, 0.0)))
    return Replicates(
        languages=tuple(members),
        value=A @ drawn.value,
        error=error,
        deviation=drawn.deviation @ A.T,
        replicate_error=np.stack(inner, axis=1),
        correlation=np.where(np.eye(len(A), dtype=bool), 1.0, covariance / np.outer(scale, scale)),
        documents=np.array([drawn.documents[list(columns)].min() for columns in members.values()]),
        clusters=drawn.clusters,
    )


def _logarithm(drawn: Replicates) -> Replicates:
    """Returns the replicates of log v with v* of every resample, which cover better than the delta method's if v is
    skewed: log v* − log v, and se*/v* as the error inside a resample."""
    star = drawn.value + drawn.deviation
    return replace(
        drawn,
        value=np.log(drawn.value),
        error=drawn.error / drawn.value,
        deviation=np.log(star / drawn.value),
        replicate_error=drawn.replicate_error / star,
    )


def _may_be_zero(drawn: Replicates, means: Mapping[str, Estimate]) -> str | None:
    star = (drawn.value + drawn.deviation).min(axis=0)
    small = [name for name, least in zip(means, star, strict=True) if min(means[name].low, least) <= 0]
    return f"the damage of {small[0]} may be 0" if small else None


def _plain_mean(frame: LanguageFrame, codes: Sequence[str]) -> Estimate:
    documents = len(np.unique(frame.document[np.isin(frame.lang, codes)]))
    value = float(np.mean([frame.draws.values[code] for code in codes]))
    return Estimate.without_interval(value, documents, frame.confidence)


def _parse(text: str) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, members = (piece.strip() for piece in part.partition("="))
        if not (name and equals):
            raise InputError(f"{part!r:.60} is not a group of languages; write NAME=CODES, such as {EXAMPLE}")
        if name in named:
            raise InputError(f"the group {name!r:.60} is there twice; give every group a name of its own")
        named[name] = [member.strip() for member in members.split(",") if member.strip()]
    return named


def _read_file(path: Path, languages: Collection[str]) -> dict[str, list[str]]:
    remedy = (
        f"groups of languages are {EXAMPLE}, a JSON file with lists of languages or with shares of the training text, "
        f"or {TRAINING} for the embedded model; fairbits does not know the resource level of languages"
    )
    data = read_object(path, remedy=remedy)
    values = list(data.values())
    if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return split_by_share({_any_code(name, languages): float(share) for name, share in data.items()}, languages)
    if not all(isinstance(value, list) and all(isinstance(code, str) for code in value) for value in values):
        raise InputError(f"{path} has neither lists of languages nor one number per language; {remedy}")
    return data


def _any_code(name: str, languages: Collection[str]) -> str:
    return name if name in languages else resolve_language(name, user_codes=languages).language.code


def _code(name: str, languages: Collection[str]) -> str:
    code = _any_code(name, languages)
    if code not in languages:
        raise InputError(f"{name} ({code}) is in a group, but not measured; measured: {', '.join(languages):.400}")
    return code


def check_groups(groups: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Returns the groups if there are two or more, none is empty, and no language is in two."""
    if len(groups) < 2:
        raise InputError(f"there is {count_of(len(groups), 'group')} of languages; give at least 2, such as {EXAMPLE}")
    places: dict[str, str] = {}
    for name, codes in groups.items():
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise InputError(f"a group is called {name!r:.60}; a name has 1 to {LONGEST_NAME} printable characters")
        if not codes:
            raise InputError(f"the group {name} has no languages; name at least one, such as {EXAMPLE}")
        for code in codes:
            if code in places:
                where = f"the groups {places[code]} and {name}" if places[code] != name else f"the group {name} twice"
                raise InputError(f"{code} is in {where}; it may be in one group, once")
            places[code] = name
    return {name: tuple(codes) for name, codes in groups.items()}
