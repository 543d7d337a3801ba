"""A report as a section for a model card, in Markdown as GitHub and the Hub render it."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from fairbits.core.errors import InputError, count_of, printable
from fairbits.core.units import readable_size
from fairbits.evaluation.scores import SIGNIFICANT
from fairbits.reports.page import group_notes
from fairbits.reports.report_languages import FIRST_SCALE, LOSS_SCALE
from fairbits.text.included_texts import udhr

SPECIAL = re.compile(r"[\\`*\[\]~$]|#|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in Markdown; an underscore within a word, as in heb_Hebr, has none."""
FIRST = re.compile(r"^(\d{1,9})?([-+=.)])(?=[-=\s]|$)")
"""Characters that make a list or a heading at the beginning of a line."""
LINK = re.compile(r"@(?=\w)|www(?=\.)|:(?=//)", re.IGNORECASE)
"""Where Markdown renderers turn an address in plain text into a link."""
APART = "&#8288;"
"""A word joiner, which is invisible: some renderers look for addresses after resolving escapes and entities."""
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
VERDICT = {"better": "significantly less", "worse": "significantly more"}
NO_VERDICT = "no significant difference"
ROUNDED = "nearest rounding was better in "
"""Common text of notes on rows that GPTQ left unchanged: there are many, and they say little."""
MEASURES = {"worst": "worst language", "gap": "gap between languages", "mean": "mean of the languages"}


def card(content: Mapping[str, Any]) -> str:
    """Returns the section; text from a model or a user is escaped and never read as Markdown or HTML."""
    sure = 100 * content["headline"]["mean"]["after"]["confidence"]
    parts = [
        "## What quantization costs every language",
        text(_made(content)),
        text(" ".join(content["headline"]["sentences"])),
        "\n".join(_headline(content)),
        f"Divergence from {text(content['model'])} in bits per byte, with {sure:g} % confidence intervals. "
        f"Added loss, in bits per byte, and recovery (bits per byte before and after, divided) are those of "
        f"{text(content['methods'][0]['name'])}:",
        "\n".join(_languages(content)),
        _measured(content["provenance"]["evaluation"], content["languages"]),
        *_notes(content["notes"]),
        *_again(content),
        f"Measured with fairbits {text(content['fairbits'])}; to repeat the measurement:",
        fence(_evaluate(content)),
        f"Signature of the measurement: {text(content['provenance']['signature'])}",
    ]
    return "\n\n".join(parts) + "\n"


def text(found: str) -> str:
    r"""Returns text escaped for Markdown and HTML, on one line; no address in it becomes a link.

    >>> print(text("a_b *c* <img> [d](e) | f"))
    a_b \*c\* &lt;img&gt; \[d\](e) &#124; f
    """
    line = SPECIAL.sub(lambda match: "\\" + match[0], printable(found.strip()))
    line = FIRST.sub(lambda match: f"{match[1] or ''}\\{match[2]}", line)
    line = re.sub("[&<>|]", lambda match: ENTITIES[match[0]], line)
    return LINK.sub(lambda match: match[0] + APART, line)


def _headline(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of worst, gap, mean and size: first the baseline, then the model."""
    found, after = content["headline"], content["methods"][0]["name"]
    names = {each["code"]: each["name"] for each in content["languages"]}
    held = len(content["methods"]) > 1
    sides = ("before", "after") if held else ("after",)
    titles = [content["methods"][1]["name"], after] if held else [after]
    yield from _head(["divergence, bits per byte", *titles], left=1)
    for name, title in MEASURES.items():
        values = [found[name][side] for side in sides]
        if None not in values:  # a single language has no gap
            yield _row([title, *(_measure(each, names) for each in values)])
    reference = found["size"]["reference"]
    sizes = [
        f"{readable_size(found['size'][side])}, {found['size'][side] / reference:.0%} of {readable_size(reference)}"
        for side in sides
    ]
    yield _row(["size", *sizes])


def _languages(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of languages, the most damaged first: the baseline, the model, and the rest."""
    count = len(content["methods"])
    order = [1, 0, *range(2, count)] if count > 1 else [0]
    against = [f"against {content['methods'][1]['name']}"] if count > 1 else []
    titles = [content["methods"][i]["name"] for i in order]
    yield from _head(["language", "code", *titles, *against, "added loss", "recovery"], left=2)
    for each in content["languages"]:
        values = [_interval(each["methods"][i]["damage"][FIRST_SCALE]) for i in order]
        said = [VERDICT[kind] for kind in VERDICT if each["code"] in content["headline"][kind]] or [NO_VERDICT]
        own = each["methods"][0]
        loss = [_interval(own["damage"][LOSS_SCALE]), f"{own['recovery']:.1%}"]
        yield _row([each["name"], each["code"], *values, *(said if against else []), *loss])


def _measured(asked: Mapping[str, Any], languages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text on which the numbers were measured, and how certain they are."""
    least = min(each["documents"] for each in languages)
    parallel = "parallel text" if asked["parallel"] else "text"
    return (
        f"Measured on {parallel} of {text(asked['text'])}: {count_of(len(languages), 'language')}, "
        f"{count_of(asked['documents'], 'document')} (at least {least} per language), "
        f"{count_of(asked['tokens'], 'predicted token')}; up to {asked['budget']:,} tokens per language in "
        f"pieces of at most {asked['sequence']:,}, seed {asked['seed']}. The models predict "
        f"{text(asked['asked'])}. Intervals: bootstrap over documents. Significant: the paired difference has p below "
        f"{SIGNIFICANT} after Holm's correction."
    )


def _made(content: Mapping[str, Any]) -> str:
    """Returns a sentence on how the model was made; without a plan this is unknown."""
    found, model = content["provenance"], content["model"]
    if found["policy"] is None or content["allocation"] is None:
        return f"{content['methods'][0]['name']}, compared with {model}; it is not known how it was made."
    name, settings = found["policy"]["name"], found["policy"]["settings"]
    mix, group = settings.get("mix"), settings.get("group")
    parts = [
        f"policy {name}" + (f" with the mix {mix}" if mix else ""),
        _widths(content["allocation"]),
        f"groups of {group}" if isinstance(group, int) else f"one scale per {group}",
        *_outside(content["allocation"]),
    ]
    return f"{model}, quantized by fairbits: {', '.join(parts)}; {_calibrated(found)}."


def _widths(allocation: Mapping[str, Any]) -> str:
    """Returns the bits of the blocks.

    >>> _widths({"bits": [[4, 4], [8, None]]}), _widths({"bits": [[4]]})
    ('4 to 8 bits per weight', '4 bits per weight')
    """
    given = sorted({bits for line in allocation["bits"] for bits in line if bits is not None})
    if not given:
        return "blocks not quantized"
    return " to ".join(dict.fromkeys(str(bits) for bits in (given[0], given[-1]))) + " bits per weight"


def _outside(allocation: Mapping[str, Any]) -> list[str]:
    """Returns the widths of the embedding and other tensors outside blocks."""
    return [
        f"{each['role'].replace('_', ' ')} " + ("not quantized" if each["bits"] is None else f"in {each['bits']} bits")
        for each in allocation["outside"]
    ]


def _calibrated(found: Mapping[str, Any]) -> str:
    own, weights = found["calibration"], found["weights"]
    if own is None:
        return "no calibration text"
    read = [code for code in own["hashes"] if not weights or weights.get(code)]
    languages = count_of(len(read), "language")
    return f"calibration text {own['text']}, up to {own['budget']:,} tokens per language, {languages}"


def _notes(notes: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns every warning and fall-back; of similar ones, the first and their number."""
    if not notes:
        return []
    rounded = [note for note in notes if ROUNDED in note["text"]]
    groups = group_notes(note for note in notes if ROUNDED not in note["text"])
    if len(rounded) == 1:
        groups.append(rounded)
    lines = [
        f"- {text(first['text'])}" + (f" (and {len(rest)} more like it)" if rest else "") for first, *rest in groups
    ]
    if len(rounded) > 1:
        lines.append(f"- {ROUNDED}some rows, and is kept there ({len(rounded)} such notes)")
    return ["Warnings and fallbacks:", "\n".join(lines)]


def _again(content: Mapping[str, Any]) -> list[str]:
    """Returns the command that makes the model again: from its run, otherwise from its plan; empty without either."""
    found = content["provenance"]
    if found["run"] is not None:
        return ["To reproduce it, with its baselines:", fence(_run(content))]
    if found["policy"] is None:
        return []
    return ["To reproduce it, with the plan.json next to the model:", fence(quantize_command(content))]


def quantize_command(content: Mapping[str, Any]) -> list[Any]:
    """Returns the words of the command that makes the model again from its plan."""
    own = content["provenance"]["calibration"]
    options = {"--plan": "plan.json", **_text_of(own, "calibration"), "--out": "quantized"}
    return ["fairbits", "quantize", content["model"], *chain.from_iterable(options.items())]


def _run(content: Mapping[str, Any]) -> list[Any]:
    """Returns the words of the command of the run."""
    asked = content["provenance"]["run"]
    policy, *others = (each["name"] for each in content["methods"])
    given = {
        **{name: asked.get(name) for name in ("bits", "group", "embeddings")},
        "languages": ",".join(sorted(each["code"] for each in content["languages"])),
        "baselines": ",".join(others) or "none",
        "widths": _listed(asked.get("widths", ())) or "none",
        **{name: asked.get(name) for name in ("tokens", "evaluation_tokens", "sequence", "seed")},
    }
    options = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value is not None}
    options |= _text_of(content["provenance"]["evaluation"], "evaluation")
    return ["fairbits", "run", content["model"], "--policy", policy, *chain.from_iterable(options.items())]


def _evaluate(content: Mapping[str, Any]) -> list[Any]:
    """Returns the words of the command that evaluates the model again."""
    asked = content["provenance"]["evaluation"]
    options = {
        "--reference": content["model"],
        **_text_of(asked, asked["split"]),
        "--languages": ",".join(sorted(each["code"] for each in content["languages"])),
        "--tokens": asked["budget"],
        "--sequence": asked["sequence"],
        "--seed": asked["seed"],
    }
    return ["fairbits", "evaluate", content["methods"][0]["target"], *chain.from_iterable(options.items())]


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def fence(words: Iterable[Any]) -> str:
    """Returns a command as a block of code, safe to paste into a shell."""
    return f"```bash\n{shlex.join(printable(str(word)) for word in words)}\n```"


def _text_of(asked: Mapping[str, Any] | None, split: str) -> dict[str, str]:
    """Returns the option for a user's own text, with its path as given; the embedded declaration needs none."""
    if asked is None or _is_embedded(asked["hashes"], split):
        return {}
    return {"--text": asked.get("source") or asked["text"]}  # a path is not known of text that Python made


def _is_embedded(hashes: Mapping[str, str], split: str) -> bool:
    """Returns whether the text is the embedded declaration; a user's own text may have the same name."""
    try:
        return dict(hashes) == udhr(hashes).hashes.get(split)
    except InputError:  # a language without a declaration
        return False


def _head(titles: Sequence[str], *, left: int) -> Iterator[str]:
    """Yields the first two lines of a table; columns after the first `left` hold numbers."""
    yield _row(titles)
    yield _row(["---"] * left + ["---:"] * (len(titles) - left), escape=False)


def _row(cells: Iterable[str], *, escape: bool = True) -> str:
    return f"| {' | '.join(text(cell) if escape else cell for cell in cells)} |"


def _measure(found: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Returns an estimate and its language."""
    language = found.get("language")
    return _interval(found) + ("" if language is None else f", {names[language]}")


def _interval(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return f"{found['value']:.4f} (no interval)"
    return f"{found['value']:.4f} ({found['low']:.4f} to {found['high']:.4f})"
