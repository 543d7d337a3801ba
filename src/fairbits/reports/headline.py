"""The headline: the worst-off language, the gap and the size, before and after, and what is significant."""

from typing import Any

from fairbits.core.errors import count_of
from fairbits.quantization.plan import UNEQUAL_BUDGETS
from fairbits.reports.report_languages import describe
from fairbits.reports.sources import Sources
from fairbits.stats.intervals import Estimate

SAME_SIZE = 0.005  # sizes that differ by less than this share are called the same
NAMED = 3  # languages that got worse are named if there are at most this many


def headline(sources: Sources) -> dict[str, Any]:
    """Returns the main numbers with intervals, and one or two sentences that state them."""
    after, before = sources.after, sources.before
    disparity = after.disparity().as_data()
    baseline = None if before is None else before.disparity().as_data()
    paired: dict[str, Estimate] = {}
    if before is not None:  # by document; the gap has no such difference
        frame, base = after.frame(), before.frame()
        paired = {"worst": frame.worst_minus(base), "mean": frame.minus(base).mean()}
    numbers: dict[str, Any] = {
        name: {
            "after": disparity[name],
            "before": None if baseline is None else baseline[name],
            "difference": paired[name].to_dict() if name in paired else None,
        }
        for name in ("worst", "mean", "gap")
    }
    sizes = {
        "reference": after.reference.size_bytes,
        "after": after.quantized.size_bytes,
        "before": None if before is None else before.quantized.size_bytes,
    }
    sure = {} if sources.contrast is None else sources.contrast.significant()
    verdict = {
        "better": [code for code, difference in sure.items() if difference.value < 0],
        "worse": [code for code, difference in sure.items() if difference.value > 0],
    }
    return {**numbers, "size": sizes, **verdict, "sentences": _sentences(sources, verdict, paired)}


def format_interval(estimate: Estimate) -> str:
    """Returns an estimate with its interval."""
    if not estimate.bounded:
        return f"{estimate.value:.4f} (no confidence interval)"
    return f"{estimate.value:.4f} ({100 * estimate.confidence:g} % CI {estimate.low:.4f} to {estimate.high:.4f})"


def _sentences(sources: Sources, verdict: dict[str, list[str]], paired: dict[str, Estimate]) -> list[str]:
    after, before = sources.after, sources.before
    code, worst = after.frame().worst()
    sentences = [
        f"{describe(code)['name']} is hit hardest: its predictions diverge by {format_interval(worst)} bits per byte "
        "from those of the reference model."
    ]
    if before is None:
        return [*sentences, "There is no baseline to compare with."]
    baseline = sources.methods[1].name
    before_code, before_worst = before.frame().worst()
    ratio = after.quantized.size_bytes / before.quantized.size_bytes
    size = "of the same size" if abs(ratio - 1) < SAME_SIZE else f"at {1 / ratio:.2f}x the size"
    name = describe(before_code)["name"]
    sentences.append(f"Under {baseline}, {size}, the worst language is {name} with {format_interval(before_worst)}.")
    sentences.append(_certainty(paired["worst"]))
    if any(note.endswith(UNEQUAL_BUDGETS) for note in before.notes):
        sentences.append(
            f"{baseline} had less calibration text than the model itself, which is part of the difference."
        )
    better, worse = (len(verdict[name]) or "none" for name in ("better", "worse"))
    count = count_of(len(after.languages), "language")
    names = ", ".join(describe(code)["name"] for code in verdict["worse"]) if len(verdict["worse"]) <= NAMED else ""
    sentences.append(
        f"Significant changes: of {count}, {better} improved and {worse} got worse{f' ({names})' if names else ''}."
    )
    return sentences


def _certainty(difference: Estimate) -> str:
    if difference.high < 0:
        return f"The worst language improves by {format_interval(difference.transform(lambda x: -x))}."
    if difference.low > 0:
        return f"The worst language gets worse by {format_interval(difference)}: the policy does not help here."
    way = "improved" if difference.value < 0 else "got worse"
    return f"Too little text to tell whether the worst language {way}: the difference is {format_interval(difference)}."
