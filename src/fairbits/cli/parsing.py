"""Values of options, read from the text that the user typed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairbits.core.errors import InputError

if TYPE_CHECKING:
    from fairbits.models.scales.scheme import Group


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
    from fairbits.text.language_codes import user_language  # heavy: only when shares are given
    from fairbits.text.mix import parse_weights

    weights = parse_weights(given)
    if isinstance(weights, str) or not all(share > 0 for share in weights.values()):
        raise InputError(f"--shares is {given!r:.60}; it must be a positive number per language: eng=0.4,fra=0.2")
    return {user_language(name).code: share for name, share in weights.items()}


def files_with_weights(given: Sequence[str]) -> list[tuple[str, float]]:
    """Returns files with their weights, which are 1 where none is written.

    >>> files_with_weights(["eng.gguf=2", "fra.gguf"])
    [('eng.gguf', 2.0), ('fra.gguf', 1.0)]
    """
    found = []
    for each in given:
        file, equals, weight = each.rpartition("=")
        try:
            found.append((file, float(weight)) if equals else (each, 1.0))
        except ValueError:
            raise InputError(f"--merge is {each!r:.80}; it must be a file and its weight: eng.gguf=2") from None
    return found


def languages_by_task(given: Iterable[str]) -> dict[str, str]:
    """Returns the language of each task, or pattern of tasks.

    >>> languages_by_task(["xwinograd_jp=jpn"])
    {'xwinograd_jp': 'jpn'}
    """
    found: dict[str, str] = {}
    for pair in given:
        task, equals, language = (part.strip() for part in pair.partition("="))
        if not (task and equals and language):
            raise InputError(f"--language-of is {pair!r:.60}; it must be a task and its language: xwinograd_jp=jpn")
        if found.setdefault(task, language) != language:
            raise InputError(f"--language-of gives {task} two languages, {found[task]} and {language}; give it one")
    return found


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


def seeds_of(given: str) -> list[int]:
    """Returns the seeds in a list with commas."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds is {given!r:.40}; it must be whole numbers such as 0,1,2")
    return [int(part) for part in parts]
