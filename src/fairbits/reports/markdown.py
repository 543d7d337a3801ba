"""A report as a section for the card of a model: Markdown as GitHub and the Hub read it."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from fairbits.errors import InputError, printable
from fairbits.evaluation.scores import SIGNIFICANT
from fairbits.language import udhr
from fairbits.reports.page import grouped, size

SPECIAL = re.compile(r"[\\`*\[\]~$]|#|(?<![^\W_])_|_(?![^\W_])")
"""What may begin something other than text; an underscore within a word, as in heb_Hebr, does not."""
FIRST = re.compile(r"^(\d{1,9})?([-+=.)])(?=[-=\s]|$)")
"""What would make a list or a heading of the text that it begins."""
LINK = re.compile(r"@(?=\w)|www(?=\.)|:(?=//)", re.IGNORECASE)
"""Where readers of Markdown see an address in plain text and make a link of it."""
APART = "&#8288;"
"""A word joiner, which nobody sees: some readers look for addresses in what escapes and entities have become."""
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
VERDICT = {"better": "less, beyond doubt", "worse": "more, beyond doubt"}
MEASURES = {"worst": "worst language", "gap": "gap, less noise", "mean": "mean of the languages"}


def card(content: Mapping[str, Any]) -> str:
    """Returns the section, in which nothing that a model or a user brought is read as Markdown or HTML."""
    sure = 100 * content["headline"]["mean"]["after"]["confidence"]
    parts = [
        "## What quantization cost every language",
        text(" ".join(content["headline"]["sentences"])),
        "\n".join(_headline(content)),
        f"Added bits per byte of every language, with {sure:g} % intervals:",
        "\n".join(_languages(content)),
        _measured(content["provenance"]["evaluation"], content["languages"]),
        *_notes(content["notes"]),
        f"Measured with fairbits {text(content['fairbits'])}; to measure it again:",
        f"```bash\n{_command(content)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def text(found: str) -> str:
    r"""Returns text that Markdown and HTML show as it is, in one line; no address in it becomes a link.

    >>> print(text("a_b *c* <img> [d](e) | f"))
    a_b \*c\* &lt;img&gt; \[d\](e) &#124; f
    """
    line = SPECIAL.sub(lambda match: "\\" + match[0], printable(found.strip()))
    line = FIRST.sub(lambda match: f"{match[1] or ''}\\{match[2]}", line)
    line = re.sub("[&<>|]", lambda match: ENTITIES[match[0]], line)
    return LINK.sub(lambda match: match[0] + APART, line)


def _headline(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of worst, gap, mean and size: what the model is held to, then the model."""
    found, after = content["headline"], content["methods"][0]["name"]
    names = {each["code"]: each["name"] for each in content["languages"]}
    held = len(content["methods"]) > 1
    sides = ("before", "after") if held else ("after",)
    titles = [content["methods"][1]["name"], after] if held else [after]
    yield from _head(["added bits per byte", *titles], left=1)
    for name, title in MEASURES.items():
        values = [found[name][side] for side in sides]
        if None not in values:  # there is no gap of one language
            yield _row([title, *(_measure(each, names) for each in values)])
    reference = found["size"]["reference"]
    sizes = [
        f"{size(found['size'][side])}, {found['size'][side] / reference:.0%} of {size(reference)}" for side in sides
    ]
    yield _row(["size", *sizes])


def _languages(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of languages, the most damaged first: what the model is held to, the model, and the rest."""
    count = len(content["methods"])
    order = [1, 0, *range(2, count)] if count > 1 else [0]
    against = [f"against {content['methods'][1]['name']}"] if count > 1 else []
    titles = [content["methods"][i]["name"] for i in order]
    yield from _head(["language", "code", *titles, *against], left=2)
    for each in content["languages"]:
        values = [_interval(each["methods"][i]["damage"]["bits_per_byte"]) for i in order]
        said = [VERDICT[kind] for kind in VERDICT if each["code"] in content["headline"][kind]] or ["not told apart"]
        yield _row([each["name"], each["code"], *values, *(said if against else [])])


def _measured(asked: Mapping[str, Any], languages: Sequence[Mapping[str, Any]]) -> str:
    """Returns what the numbers were measured on and how sure they are."""
    least = min(each["documents"] for each in languages)
    parallel = "parallel text" if asked["parallel"] else "text"
    return (
        f"Measured on {parallel} of {text(asked['text'])}: {_counted(len(languages), 'language')}, "
        f"{_counted(asked['documents'], 'document')} (at least {least} per language), "
        f"{_counted(asked['tokens'], 'predicted token')}; up to {asked['budget']:,} tokens per language in "
        f"pieces of at most {asked['sequence']:,}, seed {asked['seed']}. Asked for "
        f"{text(asked['asked'])}. Intervals: bootstrap over documents. Beyond doubt: the paired difference has p below "
        f"{SIGNIFICANT} after Holm's correction."
    )


def _notes(notes: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns every warning and fall-back; of those that are alike, the first and their number."""
    if not notes:
        return []
    lines = [
        f"- {text(first['text'])}" + (f" (and {len(rest)} more like it)" if rest else "")
        for first, *rest in grouped(notes)
    ]
    return ["Warnings and fall-backs:", "\n".join(lines)]


def _command(content: Mapping[str, Any]) -> str:
    """Returns the command that evaluates the model again, safe to paste into a shell."""
    asked = content["provenance"]["evaluation"]
    codes = ",".join(sorted(each["code"] for each in content["languages"]))
    options = {
        "--reference": content["model"],
        **({} if _is_embedded(asked) else {"--text": asked["text"]}),
        "--languages": codes,
        "--tokens": asked["budget"],
        "--sequence": asked["sequence"],
        "--seed": asked["seed"],
    }
    words = ["fairbits", "evaluate", content["methods"][0]["target"], *chain.from_iterable(options.items())]
    return shlex.join(printable(str(word)) for word in words)


def _is_embedded(asked: Mapping[str, Any]) -> bool:
    """Returns whether the text is the embedded declaration; text of a user may have the same name."""
    try:
        return dict(asked["hashes"]) == udhr(asked["hashes"]).hashes.get(asked["split"])
    except InputError:  # a language that has no declaration
        return False


def _counted(count: int, thing: str) -> str:
    """Returns a number of things.

    >>> _counted(1, "document"), _counted(1900, "document")
    ('1 document', '1,900 documents')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def _head(titles: Sequence[str], *, left: int) -> Iterator[str]:
    """Yields the first two lines of a table; the columns behind the first `left` are of numbers."""
    yield _row(titles)
    yield _row(["---"] * left + ["---:"] * (len(titles) - left), escape=False)


def _row(cells: Iterable[str], *, escape: bool = True) -> str:
    return f"| {' | '.join(text(cell) if escape else cell for cell in cells)} |"


def _measure(found: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Returns an estimate, and the language that it is of."""
    language = found.get("language")
    return _interval(found) + ("" if language is None else f", {names[language]}")


def _interval(found: Mapping[str, Any]) -> str:
    return f"{found['value']:.4f} ({found['low']:.4f} to {found['high']:.4f})"
