"""The headline: how the model was made, what its scores mean, the numbers over all languages, and the comparison."""

from collections.abc import Mapping
from typing import Any

from fairbits.core.errors import count_of
from fairbits.evaluation.meaning import advice, advice_for
from fairbits.quantization.plan import UNEQUAL_BUDGETS
from fairbits.reports.report_languages import CHANGED, FIRST_SCALE, describe, on_scale, scale_frame
from fairbits.reports.sources import Sources
from fairbits.stats.frame import LanguageFrame

QUANTIZED_NOTE = "quantized: "  # how a note on the format of the quantized model begins
FULL_INPUTS = 16  # bits of activations that are not rounded
SAME_SIZE = 0.005  # sizes that differ by less than this share are called the same
NAMED = 3  # languages that are further away are named if there are at most this many
SIDES = ("quantized", "baseline", "difference")
MIXES = {"equal": "an equal mix", "english": "English"}


def headline(sources: Sources) -> dict[str, Any]:
    """Returns the main numbers with intervals, what they mean, and the sentences that say so."""
    quantized, baseline = sources.after, sources.before
    meaning = quantized.meaning
    sizes: dict[str, Any] = {
        "reference": quantized.reference.size_bytes,
        "quantized": quantized.quantized.size_bytes,
        "baseline": (baseline and baseline.quantized.size_bytes) or None,
    }
    plan = sources.plan
    larger = (note for note in (() if plan is None else plan.notes) if "is larger than the model" in note)
    sizes["why"] = next(larger, "").partition(": ")[2] or None
    sure = {} if sources.contrast is None else sources.contrast.significant()
    verdict = {
        "better": [code for code, difference in sure.items() if difference.value < 0],
        "worse": [code for code, difference in sure.items() if difference.value > 0],
    }
    return {
        **_over_languages(sources, FIRST_SCALE),
        "changed": _over_languages(sources, CHANGED),
        "size": sizes,
        **verdict,
        "meaning": meaning.as_data() | {"acceptable": meaning.acceptable},
        "advice": None
        if meaning.acceptable
        else advice_for(quantized.quantized.target)
        if plan is None
        else advice(plan.settings, policy=plan.policy),
        "sentences": [meaning.sentence, *_comparison(sources, verdict)],
    }


def origin(content: Mapping[str, Any]) -> str:
    """Returns how the model of a report was made, as far as that is known: 4 bits per weight, groups of 128, …"""
    policy, allocation, stored = content["provenance"]["policy"], content["allocation"], content["stored"]
    if policy is None or allocation is None:
        notes = (note["text"] for note in content["notes"] if note["text"].startswith(QUANTIZED_NOTE))
        form = [f"format {stored['method']}"] if stored["method"] else [text[len(QUANTIZED_NOTE) :] for text in notes]
        kind = " (floating point)" if stored["floats"] else ""
        width = [_width(stored["bits"]) + kind] if stored["bits"] else []
        if stored["inputs"] < FULL_INPUTS:
            form.append(f"activations in {stored['inputs']} bits")
        return ", ".join([*width, *_groups(stored["group"]), *form]) or "not quantized by fairbits"
    settings = policy["settings"]
    used = sorted({bits for line in allocation["bits"] for bits in line if bits is not None})
    width = [_width(used) if used else "blocks not quantized", *_groups(settings.get("group"))]
    parts = width if settings.get("scheme") is None else [settings["scheme"].replace(",", ", ")]
    parts.append(in_words(policy["name"], settings))
    for layer in allocation["outside"]:
        bits = "not quantized" if layer["bits"] is None else f"in {layer['bits']} bits"
        parts.append(f"{layer['role'].replace('_', ' ')} {bits}")
    return ", ".join(parts)


def in_words(method: str, settings: Mapping[str, Any] | None = None) -> str:
    """Returns the name of a policy with the mix of languages that it was calibrated on.

    >>> in_words("gptq:mix=english"), in_words("gptq", {"mix": "equal"}), in_words("rtn")
    ('gptq on English', 'gptq on an equal mix', 'rtn')
    """
    name, _, named = method.partition(":mix=")
    mix = (settings or {}).get("mix") or named
    return f"{name} on {MIXES.get(mix, f'the mix {mix}')}" if mix else method


def _width(bits: list[int]) -> str:
    return " to ".join(dict.fromkeys(str(number) for number in (bits[0], bits[-1]))) + " bits per weight"


def _groups(group: object) -> list[str]:
    if group is None:
        return []
    return [f"groups of {group}" if isinstance(group, int) else f"one scale per {group}"]


def _over_languages(sources: Sources, scale: str) -> dict[str, Any]:
    """Returns worst, mean and gap of the model and of the baseline, and their paired difference if there is one."""
    frames = [scale_frame(method.scores, scale) for method in sources.methods[:2]]
    sides = {side: _measured(frame, scale) for side, frame in zip(("quantized", "baseline"), frames, strict=False)}
    if len(frames) > 1:
        paired = {"worst": frames[0].worst_minus(frames[1]), "mean": frames[0].minus(frames[1]).mean()}
        sides["difference"] = {name: on_scale(estimate, scale) for name, estimate in paired.items()}
    return {name: {side: sides.get(side, {}).get(name) for side in SIDES} for name in ("worst", "mean", "gap")}


def _measured(frame: LanguageFrame, scale: str) -> dict[str, Any]:
    code, worst = frame.worst()
    gap = on_scale(frame.gap(), scale) if len(frame.languages) > 1 else None
    return {"worst": {"language": code} | on_scale(worst, scale), "mean": on_scale(frame.mean(), scale), "gap": gap}


def _comparison(sources: Sources, verdict: Mapping[str, list[str]]) -> list[str]:
    """Returns how the model compares with another way to quantize it; nothing without one."""
    quantized, baseline = sources.after.quantized, sources.before
    if baseline is None:
        return []
    first, second = (method.name for method in sources.methods[:2])
    named, other = in_words(first, sources.plan.settings if sources.plan else None), in_words(second)
    start, name = ("This model", "it") if first == quantized.name else (named, named)  # no path
    sizes = quantized.size_bytes, baseline.quantized.size_bytes
    ratio = sizes[0] / sizes[1] if all(sizes) else 0.0  # behind a server it is not known
    size = "same size" if abs(ratio - 1) < SAME_SIZE else f"{ratio:.2f} times its size" if ratio else "size not known"
    better, worse = (len(verdict[key]) for key in ("better", "worse"))
    further = ", ".join(describe(code)["name"] for code in verdict["worse"]) if 0 < worse <= NAMED else ""
    count = count_of(len(baseline.languages), "language")
    sentence = (
        f"{start} against {other}, {size}: {better or 'none'} of {count} {'is' if better == 1 else 'are'} closer to "
        f"the reference model with {name}, {worse or 'none'} further away{f' ({further})' if further else ''}."
    )
    unequal = any(note.endswith(UNEQUAL_BUDGETS) for note in baseline.notes)
    return [sentence, *([f"{other} had less calibration text, which is part of the difference."] if unequal else [])]
