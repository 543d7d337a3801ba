"""Shell completion: what the shell offers when the user presses Tab. Nothing heavy is imported for it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fairbits.quantization.policies import POLICIES

Offers = list[str | tuple[str, str]]
"""Words, or words with an explanation, which zsh and fish show."""
Complete = Callable[[str], Offers]

EXPERIMENTS = (
    "outliers",
    "correlations",
    "bit-threshold",
    "layer-ablation",
    "training-data",
    "own-thresholds",
    "gateway-layers",
    "redundancy",
    "mediation",
    "bounds",
    "calibration-language",
    "price-of-sharing",
    "null-controls",
    "training-choices",
)
"""As in `fairbits_research.experiments`, whose import takes seconds; a test keeps them equal."""
FORMS = ("residual", "codes", "steps")
"""As in `fairbits.serve.overlays.overlay_files`; the same test keeps them equal."""
TEXTS = ("declaration", "help")
"""As in `fairbits.text.reading`; the same test keeps them equal."""


def one_of(*words: str) -> Complete:
    """Returns a function that offers the words that start with what the user typed.

    >>> one_of("gptq", "nearest")("g")
    ['gptq']
    """

    def complete(incomplete: str) -> Offers:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def some_of(*words: str) -> Complete:
    """Returns a function that completes the last word of a list with commas.

    >>> some_of("rtn", "gptq", "mse")("rtn,g")
    ['rtn,gptq']
    """

    def complete(incomplete: str) -> Offers:
        return _list_of(((word, "") for word in words), incomplete)

    return complete


def policy(incomplete: str) -> Offers:
    """Returns the names of policies that start with what the user typed.

    >>> policy("g")
    ['gateway', 'gptq']
    """
    return one_of(*POLICIES)(incomplete)


def policies(incomplete: str) -> Offers:
    """Returns a list of policies with its last name completed.

    >>> policies("rtn,gp")
    ['rtn,gptq']
    """
    return some_of(*POLICIES)(incomplete)


def language(incomplete: str) -> Offers:
    """Returns the codes of languages that start with what the user typed, with their names.

    >>> language("heb")
    [('heb_Hebr', 'Hebrew')]
    """
    return [(code, name) for code, name in _languages() if code.startswith(incomplete)]


def languages(incomplete: str) -> Offers:
    """Returns a list of languages with its last code completed; none is offered twice.

    >>> languages("eng,fra_")
    [('eng,fra_Latn', 'French')]
    """
    return _list_of(_languages(), incomplete)


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
    fitting = [each for each in entries if each.name.startswith(start) and (start or not each.name.startswith("."))]
    paths = [f"{prefix}{each.name}{'/' if each.is_dir() else ''}" for each in fitting]
    return [path for path in paths if path.endswith(("/", suffix))]


def _list_of(offers: Iterable[tuple[str, str]], incomplete: str) -> Offers:
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    fitting = [(word, about) for word, about in offers if word.startswith(last) and word not in given]
    return [(f"{before}{comma}{word}", about) if about else f"{before}{comma}{word}" for word, about in fitting]


def _languages() -> list[tuple[str, str]]:
    from fairbits.text.catalog import catalog  # imported only when languages are completed

    return [(each.code, each.name) for each in catalog()]
