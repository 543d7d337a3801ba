"""Values of options, read from the text that the user typed."""

from typing import TYPE_CHECKING, Literal

from fairbits.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairbits.model.scheme import Group


def flag_of(option: str) -> str:
    """Returns the flag of an option.

    >>> flag_of("avg_bits")
    '--avg-bits'
    """
    return f"--{option.replace('_', '-')}"


def names_of(languages: str | None) -> list[str] | None:
    """Returns the names in a list with commas."""
    return None if languages is None else [name.strip() for name in languages.split(",")]


def shares_of(given: str | None) -> dict[str, float] | None:
    """Returns the share of each language, by its code.

    >>> shares_of("eng=0.4,fra=0.2")
    {'eng_Latn': 0.4, 'fra_Latn': 0.2}
    """
    if given is None:
        return None
    from fairbits.language.lookup import own_language  # heavy: only when shares are given
    from fairbits.language.mix import parse_weights

    weights = parse_weights(given)
    if isinstance(weights, str) or not all(share > 0 for share in weights.values()):
        raise InputError(f"--shares is {given!r:.60}; it must be a positive number per language: eng=0.4,fra=0.2")
    return {own_language(name).code: share for name, share in weights.items()}


def budget_of(given: str) -> float:
    """Returns a share that is written in percent, or as a number up to 1.

    >>> budget_of("5%"), budget_of("0.05")
    (0.05, 0.05)
    """
    written = given.strip()
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise InputError(f"--budget is {given!r:.40}; it must be a share of the base from 0 to 1: 5%, or 0.05")
    return share


def group_of(given: str) -> "Group":
    """Returns how many weights share a scale, or channel.

    >>> group_of("64"), group_of("channel")
    (64, 'channel')
    """
    if given != "channel" and not given.isdecimal():
        raise InputError(f"--group is {given!r:.40}; it must be a number of weights, such as 128, or channel")
    return "channel" if given == "channel" else int(given)


def plan_group_of(given: str) -> "Group":
    """Returns how many weights share a scale, or channel, or tensor.

    >>> plan_group_of("64"), plan_group_of("tensor")
    (64, 'tensor')
    """
    if given in ("channel", "tensor"):
        return given  # type: ignore[return-value]
    if not given.isdecimal():
        raise InputError(
            f"--group is {given!r:.40}; it must be a number of weights, such as 128, or channel, or tensor"
        )
    return int(given)


def embeddings_of(given: str) -> Literal["keep", 8, 4]:
    """Returns the bits of embedding and head, or keep."""
    if given not in ("keep", "8", "4"):
        raise InputError(f"--embeddings is {given!r:.40}; it must be keep, 8 or 4")
    return "keep" if given == "keep" else 8 if given == "8" else 4


def mix_of(given: str) -> "str | Mapping[str, float]":
    """Returns the name of a mix, or the weights of languages."""
    from fairbits.language.mix import parse_weights  # heavy: only when the verb runs

    return parse_weights(given) if "=" in given else given


def widths_of(given: str, flag: str = "--bits") -> list[int]:
    """Returns the widths in a list such as 4,3, in a range such as 2..8, or in both.

    >>> widths_of("4,3"), widths_of("2..4,8")
    ([4, 3], [2, 3, 4, 8])
    """
    widths: list[int] = []
    for part in given.split(","):
        ends = [end.strip() for end in part.split("..")]
        if len(ends) > 2 or not all(end.isdecimal() and len(end) <= 2 for end in ends) or int(ends[0]) > int(ends[-1]):
            raise InputError(f"{flag} is {given!r:.40}; it must be widths such as 4,3 or a range such as 2..8")
        widths += range(int(ends[0]), int(ends[-1]) + 1)
    return widths


def seeds_of(given: str) -> list[int]:
    """Returns the seeds in a list with commas."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds is {given!r:.40}; it must be whole numbers such as 0,1,2")
    return [int(part) for part in parts]
