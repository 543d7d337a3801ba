"""A report as a section for a model card, in Markdown as GitHub and the Hub render it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from fairbits.core.errors import InputError, count_of, printable
from fairbits.core.table import escape_markdown
from fairbits.core.units import readable_size
from fairbits.evaluation.generated_text import SIDES
from fairbits.evaluation.meaning import SIGNIFICANT
from fairbits.evaluation.measurement import WRITTEN
from fairbits.reports.headline import origin
from fairbits.reports.page import group_notes, templates, times
from fairbits.reports.report_languages import CHANGED, FIRST_SCALE, LOSS_SCALE
from fairbits.text.included_texts import udhr

ROUNDED = "nearest rounding was better in "
"""Common text of notes on rows that GPTQ left unchanged: there are many, and they say little."""


def card(content: Mapping[str, Any]) -> str:
    """Returns the section; text from a model or a user is escaped and never read as Markdown or HTML."""
    names = [method["name"] for method in content["methods"]]
    return render_markdown(
        "card.md",
        report=content,
        titles=[f"changed, of 100 tokens{f', {name}' if len(names) > 1 else ''}" for name in names],
        language_names={row["code"]: row["name"] for row in content["languages"]},
        origin=_origin(content),
        notes=_notes(content["notes"]),
        remake=_remake_command(content),
        remeasure=_evaluate_command(content),
        changed=CHANGED,
        first_scale=FIRST_SCALE,
        loss_scale=LOSS_SCALE,
        significant=SIGNIFICANT,
    )


def render_markdown(template: str, **values: Any) -> str:
    """Returns a template of Markdown with these values."""
    environment = templates(autoescape=False)
    environment.filters.update(
        md=escape_markdown,
        interval=_interval,
        of_100=lambda estimate: _interval(estimate, 1),
        percent=lambda share: _interval({name: value and 100 * value for name, value in share.items()}, 1),
        both=lambda sides: " → ".join(f"{100 * sides[side]['value']:.0f}" for side in SIDES),
        times=times,
        size=readable_size,
        count_of=count_of,
        fence=fence,
        order_by=lambda values, order: [values[i] for i in order],
    )
    return environment.get_template(template).render(values)


def fence(words: Iterable[Any]) -> str:
    """Returns a command as a block of code, safe to paste into a shell."""
    return f"```bash\n{shlex.join(printable(str(word)) for word in words)}\n```"


def _origin(content: Mapping[str, Any]) -> str:
    how = origin(content)
    if content["provenance"]["policy"] is None or content["allocation"] is None:
        return f"{content['methods'][0]['name']}, compared with {content['model']}: {how}."
    return f"{content['model']}, quantized by fairbits: {how}; {_calibration(content['provenance'])}."


def _calibration(provenance: Mapping[str, Any]) -> str:
    text, weights = provenance["calibration"], provenance["weights"]
    if text is None:
        return "no calibration text"
    languages = count_of(len([code for code in text["hashes"] if not weights or weights.get(code)]), "language")
    return f"calibration text {text['text']}, up to {text['budget']:,} tokens per language, {languages}"


def _notes(notes: Sequence[Mapping[str, str]]) -> list[str]:
    rounded = [note for note in notes if ROUNDED in note["text"]]
    groups = group_notes(note for note in notes if ROUNDED not in note["text"])
    if len(rounded) == 1:
        groups.append(rounded)
    lines = [
        f"- {escape_markdown(first['text'])}" + (f" (and {len(rest)} more like it)" if rest else "")
        for first, *rest in groups
    ]
    if len(rounded) > 1:
        lines.append(f"- {ROUNDED}some rows, and is kept there ({len(rounded)} such notes)")
    return lines


def _remake_command(content: Mapping[str, Any]) -> list[Any] | None:
    provenance = content["provenance"]
    settings = provenance["run"]
    if settings is None:
        return None if provenance["policy"] is None else quantize_command(content)
    policy, *baselines = (method["name"] for method in content["methods"])
    more_bits = settings.get("more_bits", ())
    values = {
        **{name: settings.get(name) for name in ("bits", "group", "embeddings")},
        "languages": _codes(content),
        "baselines": ",".join(baselines) or "none",
        "more_bits": (",".join(map(str, more_bits)) if isinstance(more_bits, list | tuple) else str(more_bits)) or None,
        **{name: settings.get(name) for name in ("tokens", "evaluation_tokens", "sequence", "seed")},
    }
    options = {f"--{name.replace('_', '-')}": value for name, value in values.items() if value is not None}
    options |= _text_option(provenance["evaluation"], "evaluation")
    audit = [] if content.get("blocks") is None else ["--audit"]
    return ["fairbits", "run", content["model"], "--policy", policy, *chain.from_iterable(options.items()), *audit]


def quantize_command(content: Mapping[str, Any]) -> list[Any]:
    """Returns the words of the command that makes the model again from its plan."""
    text = _text_option(content["provenance"]["calibration"], "calibration")
    options = {"--plan": "plan.json", **text, "--out": "quantized"}
    return ["fairbits", "quantize", content["model"], *chain.from_iterable(options.items())]


def _evaluate_command(content: Mapping[str, Any]) -> list[Any]:
    evaluation = content["provenance"]["evaluation"]
    options = {
        "--reference": content["model"],
        **_text_option(evaluation, evaluation["split"]),
        "--languages": _codes(content),
        "--tokens": evaluation["budget"],
        "--sequence": evaluation["sequence"],
        "--seed": evaluation["seed"],
    }
    measurement, model = content["measurement"] or {}, content["methods"][0]
    own_text = ["--own-text"] if measurement.get("kl") == WRITTEN else []
    server = {
        "--served-model": measurement.get("model"),
        "--top-k": measurement.get("top"),
        "--hidden-states": measurement.get("hidden_states"),
        "--checkpoint": measurement.get("checkpoint"),
    }
    options |= {flag: value for flag, value in server.items() if value is not None}
    options |= {"--kv-cache": model["kv_cache"]} if model["kv_cache"] else {}
    switches = ["--join"] * (evaluation["unit"] == "window") + ["--all-text"] * evaluation["all_text"]
    return ["fairbits", "evaluate", model["target"], *chain.from_iterable(options.items()), *own_text, *switches]


def _codes(content: Mapping[str, Any]) -> str:
    return ",".join(sorted(language["code"] for language in content["languages"]))


def _text_option(text: Mapping[str, Any] | None, split: str) -> dict[str, str]:
    if text is None:
        return {}
    with suppress(InputError):  # a language without a declaration
        if dict(text["hashes"]) == udhr(text["hashes"]).hashes.get(split):
            return {}
    return {"--text": text.get("source") or text["text"]}  # text that was made in Python has no path


def _interval(estimate: Mapping[str, Any], digits: int = 4) -> str:
    value, low, high = (None if x is None else f"{x:.{digits}f}" for x in map(estimate.get, ("value", "low", "high")))
    return f"{value} (no interval)" if low is None else f"{value} ({low} to {high})"
