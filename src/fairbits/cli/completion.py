"""Shell completion: what the shell offers when the user presses Tab."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fairbits.text.catalog import catalog

Offers = list[str | tuple[str, str]]  # words, or words with an explanation, which zsh and fish show
Complete = Callable[[str], Offers]

TEXTS = ("declaration", "help")  # as in `fairbits.text.reading`; a test keeps them equal


def one_of(*words: str) -> Complete:
    """Returns a function that offers the words that start with what the user typed."""

    def complete(incomplete: str) -> Offers:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def some_of(*words: str) -> Complete:
    """Returns a function that completes the last word of a list with commas."""

    def complete(incomplete: str) -> Offers:
        return _complete_list(((word, "") for word in words), incomplete)

    return complete


def language(incomplete: str) -> Offers:
    """Returns the codes of languages that start with what the user typed, with their names."""
    return [(code, name) for code, name in _languages() if code.startswith(incomplete)]


def languages(incomplete: str) -> Offers:
    """Returns a list of languages with its last code completed; none is offered twice."""
    return _complete_list(_languages(), incomplete)


def model(incomplete: str) -> Offers:
    """Returns the embedded model, directories and GGUF files that start with what the user typed."""
    return [*one_of("embedded:tiny")(incomplete), *_paths(incomplete, ".gguf")]


def text(incomplete: str) -> Offers:
    """Returns the texts that come with fairbits, directories and JSONL files that start with what the user typed."""
    return [*one_of(*TEXTS)(incomplete), *_paths(incomplete, ".jsonl")]


def _paths(incomplete: str, suffix: str) -> list[str]:
    typed = Path(incomplete).expanduser()
    folder, start = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    prefix = incomplete.removesuffix(start)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    fitting = [path for path in entries if path.name.startswith(start) and (start or not path.name.startswith("."))]
    paths = [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in fitting]
    return [path for path in paths if path.endswith(("/", suffix))]


def _complete_list(offers: Iterable[tuple[str, str]], incomplete: str) -> Offers:
    before, comma, last = incomplete.rpartition(",")
    typed = before.split(",")
    fitting = [(word, about) for word, about in offers if word.startswith(last) and word not in typed]
    return [(f"{before}{comma}{word}", about) if about else f"{before}{comma}{word}" for word, about in fitting]


def _languages() -> list[tuple[str, str]]:
    return [(language.code, language.name) for language in catalog()]
