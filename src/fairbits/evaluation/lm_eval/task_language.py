"""The language of a task, from its name: belebele_fra_Latn, global_mmlu_sw, mgsm_direct_fr."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache

from fairbits.core.errors import InputError
from fairbits.text.catalog import catalog, codes, fold, names
from fairbits.text.language_codes import find_language, user_language

SEPARATORS = re.compile(r"[_-]+")
SHORTEST_NAME = 4
"""Letters of the shortest name of a language that is looked for in a task: "ga" and "ewe" must be codes."""
LONGEST_CODE = 3
NOT_LANGUAGES = frozenset({"mt"})
"""Parts of names of tasks that are codes of languages too: lambada_openai_mt is machine-translated, not Maltese."""
STAR = "*"


def task_languages(tasks: Iterable[str], named: Mapping[str, str]) -> dict[str, str]:
    """Returns the language code of every task: as named by task or pattern, else from the task's name."""
    wanted = list(tasks)
    for pattern in named:
        if not any(fnmatchcase(task, pattern) for task in wanted):
            raise InputError(f"--language-of names {pattern}, and no task matches it; the tasks are {_shown(wanted)}")
    codes_by_task = {task: _named_language(task, named) or language_in(task) for task in wanted}
    unclear = [task for task, code in codes_by_task.items() if code is None]
    if unclear:
        raise InputError(
            f"the language of {_shown(unclear)} is not clear from the name; name it with --language-of "
            f"{unclear[0]}=eng, or choose other tasks with --tasks"
        )
    return {task: code for task, code in codes_by_task.items() if code is not None}


def language_in(task: str) -> str | None:
    """Returns the last code with script in a task's name, else the last English name or short code; None without."""
    parsed = _parse(task)
    return None if parsed is None else parsed[0]


def _named_language(task: str, named: Mapping[str, str]) -> str | None:
    matching = [name for pattern, name in named.items() if fnmatchcase(task, pattern)]
    return user_language(matching[-1]).code if matching else None


def task_family(task: str) -> str:
    """Returns a task's name with a star instead of its language: items of one family may be translations."""
    parsed = _parse(task)
    return task if parsed is None else parsed[1]


def _parse(task: str) -> tuple[str, str] | None:
    parts = SEPARATORS.split(task)
    for read, length in ((_tag, 2), (_name, 1), (_code, 1)):
        for start in range(len(parts) - length, 0, -1):
            code = read(*parts[start : start + length])
            if code is not None:
                return code, "_".join([*parts[:start], STAR, *parts[start + length :]])
    return None


@cache
def _tag(language: str, script: str) -> str | None:
    if not re.fullmatch("[A-Za-z]{2,3}", language) or script.title() not in _scripts():
        return None
    try:
        return find_language(f"{language}_{script.title()}").code
    except InputError:
        return None


@cache
def _name(part: str) -> str | None:
    return _only(names().get(fold(part), {})) if len(part) >= SHORTEST_NAME else None


@cache
def _code(part: str) -> str | None:
    return None if fold(part) in NOT_LANGUAGES or len(part) > LONGEST_CODE else _only(codes().get(fold(part), {}))


def _only(meant: Mapping[str, str]) -> str | None:
    return next(iter(meant)) if len(meant) == 1 else None


@cache
def _scripts() -> frozenset[str]:
    return frozenset(language.script for language in catalog())


def _shown(tasks: list[str]) -> str:
    more = len(tasks) - 5
    return ", ".join(tasks[:5]) + (f" and {more} more" if more > 0 else "")
