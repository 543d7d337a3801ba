"""Text of a Hugging Face dataset as a Corpus; needs the extra `datasets`."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.text.corpus import Corpus
from fairbits.text.documents import Collector
from fairbits.text.language_codes import requested_languages, user_language
from fairbits.text.reading import LIMIT, make_corpus


def read_dataset(
    name: str,
    languages: Iterable[str] | Mapping[str, str],
    *,
    text: str = "text",
    lang: str | None = None,
    split: str = "train",
    revision: str | None = None,
    parallel: bool = False,
    evaluation_share: float = 0.5,
    seed: int = 0,
    limit: int = LIMIT,
) -> Corpus:
    """Returns one split of a dataset, an id on the Hub or a local directory, as a corpus.

    `lang` is the column that names the language, where all languages are in one table. Without it, each language is a
    configuration of the dataset, called as the language is given here or as a mapping says: {"fra": "20231101.fr"}.
    """
    configurations = dict(languages) if isinstance(languages, Mapping) else {name: name for name in languages}
    requested = requested_languages(configurations)
    named = dict(zip((language.code for language in requested), configurations.values(), strict=True))
    collectors = {code: Collector(f"{name} ({code})", whole("limit", limit, least=1)) for code in named}
    tables = named if lang is None else {None: None}  # one table per language, or one for all
    for only, configuration in tables.items():
        waiting = [collectors[only]] if only else list(collectors.values())
        columns = (text,) if lang is None else (text, lang)
        for row in _rows(name, configuration, split=split, revision=revision, columns=columns):
            code = only or _code(_check_string(row[lang or ""], f"column {lang} of {name}"))
            if code in collectors:
                collectors[code].add(_check_string(row[text], f"column {text} of {name}"))
                if not parallel and all(collector.full for collector in waiting):
                    break
    without = [collector.source for collector in collectors.values() if not collector.seen]
    if without:
        raise InputError(f"no row in {', '.join(without)}, split {split}; every requested language must have text")
    return make_corpus(name, {"": collectors}, parallel=parallel, evaluation_share=evaluation_share, seed=seed)


def _rows(
    name: str, configuration: str | None, *, split: str, revision: str | None, columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise InputError(
            f"{name} is a Hugging Face dataset and the package datasets is not installed; "
            "install it (pip install datasets) or give the text as files"
        ) from None
    try:
        table = datasets.load_dataset(name, configuration, split=split, revision=revision, streaming=True)
        for row in table:
            missing = [column for column in columns if column not in row]
            if missing:
                raise InputError(
                    f"{name} has no column {missing[0]}; its columns are {', '.join(row)}: name one of these"
                )
            yield row
    except (OSError, ValueError) as error:  # not found, offline, no such configuration or split, broken file
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"dataset {name}, configuration {configuration}, split {split}, cannot be read ({reason}); check these "
            "names and the connection, or give the text as files"
        ) from error


def _check_string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} has a {type(value).__name__}; it must have strings")
    return value


@cache
def _code(name: str) -> str | None:
    with suppress(InputError):  # rows in languages that are not wanted may have any name
        return user_language(name).code
    return None
