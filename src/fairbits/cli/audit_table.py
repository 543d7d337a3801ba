"""An audit for a terminal of 80 columns: the predicted damage of every language, and where it comes from.

The experts of an audited model for a terminal: which of them get little calibration text of a language.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.auditing.expert_use import LEAST_POSITIONS, ExpertShortage, ExpertUse
from fairbits.auditing.record import Audit
from fairbits.cli.table_parts import (
    BLANK,
    bar,
    columns,
    formatter,
    language_name,
    notes_section,
    section,
    unit_of,
    worst_first,
)
from fairbits.core.array_checks import Floats
from fairbits.core.checks import instance
from fairbits.core.errors import count_of, printable
from fairbits.kurtosis.checklist import ChecklistItem, Condition, OutlierBlocks, RiskAssessment
from fairbits.kurtosis.redundancy import FOREIGN
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code

SHOWN = 3
"""Blocks and languages that are listed."""
EXPLANATION = (
    f"Starved: fewer than {LEAST_POSITIONS} positions of calibration text, from which the mean square of an input has "
    "a standard error of 25 % or more. Calibration then hardly knows what the expert does for the language. An expert "
    "that the language never reaches cannot harm it; to see which it is, raise --tokens."
)


def experts_section(found: ExpertUse) -> Iterator[Text]:
    """Yields how many experts get too little text of a language, and the worst blocks and languages."""
    sizes = {each.counts.shape[1] for each in found.blocks}
    per_position = {each.per_position for each in found.blocks}
    shares = found.even_share()
    yield Text(
        f"{_count_range(sizes)} experts in each of {count_of(len(found.blocks), 'block')}, "
        f"{_count_range(per_position)} per position; on average "
        f"an expert gets {_span(shares.min(), shares.max())} positions of a language."
    )
    starved, empty = int(found.too_little_text().sum()), int(found.too_little_text(1).sum())
    pairs = f"{starved:,} of {found.pairs:,} pairs of expert and language ({starved / found.pairs:.1%})"
    yield Text(f"{pairs} get too little text; {empty:,} of them get none.", style="yellow" if starved else "")
    shortages = found.shortages()
    for each in shortages[:SHOWN]:
        yield Text(_sentence(each))
    if len(shortages) > SHOWN:
        yield Text(f"… and {count_of(len(shortages) - SHOWN, 'other pair')} of block and language.", style="dim")
    unreached = sum(found.unreached.values())
    if unreached:
        verb = "gets" if unreached == 1 else "get"
        yield Text(f"{count_of(unreached, 'expert')} {verb} no text of any language, and would be rounded to nearest.")
    if starved:
        yield Text(EXPLANATION, style="dim")


def experts_table(found: ExpertUse, order: Iterable[str]) -> Table:
    """Returns for every language how many of all experts get little of its text."""
    starved, empty, shares = found.too_little_text().sum(1), found.too_little_text(1).sum(1), found.even_share()
    table = columns("language", f"under {LEAST_POSITIONS} positions", "no text", "mean positions of an expert")
    for code in order:
        row = found.languages.index(code)
        share = _span(shares[row].min(), shares[row].max())
        table.add_row(language_from_code(code).name, f"{starved[row]:,}", f"{empty[row]:,}", share)
    return table


def _sentence(found: ExpertShortage) -> str:
    name = language_from_code(found.language).name
    if not found.empty:
        return f"Block {found.block}: {found.too_little} of {found.experts} experts get too little text of {name}."
    rest = f"; {found.too_little} get too little" if found.too_little > found.empty else ""
    verb = "gets" if found.empty == 1 else "get"
    return f"Block {found.block}: {found.empty} of {found.experts} experts {verb} no token of {name}{rest}."


def _count_range(values: set[int]) -> str:
    return _span(min(values), max(values))


def _span(least: float, most: float) -> str:
    low, high = f"{least:,.0f}", f"{most:,.0f}"
    return low if low == high else f"{low} to {high}"


TOP = 5
"""Blocks and tensors that are listed with their share of the damage."""
REMARKS = {
    "C1": "not necessary (001-09)",
    "C2": "BLOOM-560M fails it (001-22)",
    "C3": "κ alone does not decide (001-17)",
}
"""What is known of the conditions today, in a few words."""
LEGEND = (
    "D̂: predicted increase of the loss, with 95 % intervals over documents. bits/B: bits per byte, the unit to "
    "compare languages in. loss: before quantization. tokens/eng: tokens for the same content, English = 1."
)
MARK = "? "
"""Precedes the name of a language whose prediction should not be trusted."""
UNTRUSTED = f"text not known to the model: do not trust (loss over {FOREIGN:g} times the entropy of its predictions)"
SCOPE = "The bound holds for this text and for any model output; it bounds errors of weights, not the loss."


def audit_table(audit: Audit) -> Group:
    """Returns the main results; `audit_details` has the rest."""
    instance("audit", audit, Audit)
    return Group(
        *_heading(audit),
        "",
        _languages(audit),
        *([] if len(audit.trusted) == len(audit.languages) else [Text(f"{MARK}{UNTRUSTED}", style="yellow")]),
        Text(LEGEND, style="dim"),
        *_gaps(audit),
        *section("Where the damage comes from", [_carriers(audit), BLANK, _outliers(audit)]),
        *([] if audit.experts is None else section("Experts", experts_section(audit.experts))),
        *section("What the research notes predict", _founders(audit)),
        *section("What is proven", _certificate(audit)),
        *notes_section(audit.subject.notes),
    )


def order_of(audit: Audit) -> list[str]:
    """Returns the languages by predicted damage, the largest first; those that cannot be trusted come last."""
    found = audit.predicted.estimates()
    trusted = audit.trusted
    return sorted(worst_first(found), key=lambda code: code not in trusted)


def shares_of(damage: Floats) -> Floats:
    """Returns each row divided by its sum; 0 where that is 0."""
    total = damage.sum(axis=1, keepdims=True)
    share: Floats = np.divide(damage, total, out=np.zeros_like(damage), where=total > 0)
    return share


def _heading(audit: Audit) -> list[Text]:
    about, measured = audit.subject, audit.measured
    amounts = (
        count_of(len(audit.languages), "language"),
        count_of(len(measured.document), "document"),
        count_of(int(measured.predicted.sum()), "predicted token"),
    )
    return [
        Text.assemble((printable(about.target), "bold cyan"), "  ", (audit.scheme.name, "bold")),
        Text(printable(f"{about.class_name}, {count_of(len(audit.moments.blocks), 'block')}"), style="dim"),
        Text(printable(f"{about.split} text of {about.corpus}: {', '.join(amounts)}"), style="dim"),
    ]


def _languages(audit: Audit) -> Table:
    """Returns one row per language, worst first; languages that cannot be trusted come last, marked."""
    damage, by_byte = audit.predicted.estimates(), audit.predicted.bits_per_byte.by_language()
    trusted = audit.trusted
    longest = max(each.value for each in audit.ranked.estimates().values())
    (top, factor, prefix), (top_byte, factor_byte, prefix_byte) = (
        (top, *unit_of(top)) for top in (max(each.value for each in found.values()) for found in (damage, by_byte))
    )
    number, limit, per_byte = formatter(top * factor), formatter(top * factor, 3), formatter(top_byte * factor_byte)
    table = columns(
        *("\nlanguage", "\ncode", f"D̂, {prefix}nats per token\n(95 % interval)", ""),
        *(f"D̂, {prefix_byte}\nbits/B", "loss,\nbits/B", "bytes\n/token", "tokens\n/eng"),
        left=(1, 2, 3),
    )
    for code in order_of(audit):
        own, cut, known = damage[code], audit.tokenization[code], code in trusted
        ratio = cut.tokens_per_sentence_ratio
        limits = f"{limit(own.low * factor)}–{limit(own.high * factor)}" if own.bounded else "–"
        interval = f" ({limits})"
        table.add_row(
            language_name(code) if known else Text.assemble((MARK, "yellow"), language_name(code)),
            Text(code, style="dim"),
            Text.assemble(number(own.value * factor), (interval, "dim")),
            bar(own.value, longest) if known else "",
            per_byte(by_byte[code].value * factor_byte),
            f"{audit.bits_per_byte[code].value:.2f}",
            f"{cut.bytes_per_token.value:.2f}",
            "–" if ratio is None else f"{ratio.value:.2f}",
        )
    return table


def _gaps(audit: Audit) -> list[RenderableType]:
    """Returns the gap between the worst and the best trusted language, per token and per byte, if there are two."""
    trusted = audit.trusted
    if not trusted:
        return ["", Text("The model knows the text of none of these languages: the prediction does not rank them.")]
    if len(trusted) == 1:
        return []
    damage = audit.ranked.estimates()
    worst, *_, best = worst_first(damage)
    gap, gap_per_byte = audit.ranked.nats_per_token.gap(), audit.ranked.bits_per_byte.gap()
    one, other = language_from_code(worst).name, language_from_code(best).name
    if gap.low > 0 and damage[best].value > 0:
        times = f"{damage[worst].value / damage[best].value:.2g} times"
        lead = f"The predicted damage of {one} is {times} that of {other} per token."
    else:
        lead = f"Per token {one} is worst and {other} best, but the difference may be noise."
    found = ((gap, "nats/token"), (gap_per_byte, "bits/byte"))
    gaps = ", ".join(f"{each.value:.3g} {unit} ({_limits(each)})" for each, unit in found)
    return ["", Text(lead), Text(f"Gap between worst and best, corrected for noise: {gaps}.")]


def _limits(found: Estimate) -> str:
    return f"{found.low:.2g} to {found.high:.2g}" if found.bounded else "no interval"


def _carriers(audit: Audit) -> Table:
    """Returns the blocks and the tensors with the largest shares of the damage."""
    found = audit.ranked
    worst = worst_first(found.estimates())[0]
    row = found.languages.index(worst)
    blocks, tensors = shares_of(found.by_block), shares_of(found.by_linear)
    top = float(max(blocks.mean(0).max(), tensors.mean(0).max()))
    several = len(found.languages) > 1
    table = columns("share of D̂", "mean", "", *([language_from_code(worst).name] if several else []), left=(2,))
    for names, shares in (([f"block {i}" for i in range(blocks.shape[1])], blocks), (found.linears, tensors)):
        mean = shares.mean(0)
        for i in np.argsort(-mean, kind="stable")[:TOP]:
            own = [f"{shares[row, i]:.1%}"] if several else []
            table.add_row(Text(printable(names[i])), f"{mean[i]:.1%}", bar(mean[i], top), *own)
        if names is not found.linears:
            table.add_row()
    return table


def _outliers(audit: Audit) -> Text:
    """Returns the outlier blocks by both rules."""
    return Text(
        f"Outlier blocks: {_blocks(audit.founders.outliers)} by the research notes' threshold, "
        f"{_blocks(audit.robust)} compared with the model's other blocks."
    )


def _blocks(found: OutlierBlocks) -> str:
    if found.blocks is None or found.threshold is None:
        return "unknown (too few blocks)"
    return f"{', '.join(map(str, found.blocks)) or 'none'} (κ > {found.threshold:.3g})"


def _founders(audit: Audit) -> Iterator[RenderableType]:
    """Yields risk class, strategy, conditions and checklist of the research notes, with short remarks."""
    view = audit.founders
    strategy = view.strategy.text.rstrip(".")
    if len(view.strategy.options) > 1:
        strategy = f"{strategy}: {'; '.join(view.strategy.options)}"
    yield Text.assemble("Risk class ", (view.risk, "bold"), f". {strategy}.")
    yield Text(f"κ_eff {_range(audit.kappa_weighted)}; R̂ {_range(audit.outlier_share)}.")
    yield BLANK
    table = columns("", "", "", "", left=(1, 2, 3), header=False)
    for each in view.conditions:
        word, style = {True: ("holds", "yellow"), False: ("fails", ""), None: ("unknown", "")}[each.holds]
        table.add_row(each.name, _condition(each), Text(word, style=style), Text(REMARKS[each.name], style="dim"))
    yield table
    here = {True: "is the case", False: "is not the case", None: "is unknown"}[view.expects_disparity]
    yield Text(f"They expect disparity if all three hold, which {here} here.")
    yield BLANK
    checklist = columns("", "", left=(1,), header=False)
    checklist.columns[1].no_wrap = False
    for check in view.checklist:
        mark = Text("✓", style="green") if check.passed else Text("✗", style="red")
        checklist.add_row(mark, Text.assemble(check.text, (f": {_behind(check, view)}", "dim")))
    yield checklist


def _condition(condition: Condition) -> str:
    """Returns a condition with its numbers: C3 holds below its threshold, the others above."""
    what, sign = {"C1": ("max κ", ">"), "C2": ("variance of R̂", ">"), "C3": ("bits", "<")}[condition.name]
    value = "?" if condition.value is None else f"{condition.value:.3g}"
    return f"{what} {value} {sign} {condition.threshold:.3g}"


def _behind(check: ChecklistItem, view: RiskAssessment) -> str:
    """Returns the number behind an item of the checklist; the strategy is already shown above."""
    return f"max κ {check.number:.3g}" if check.detail == view.strategy.text else check.detail


def _range(found: Mapping[str, Estimate]) -> str:
    """Returns the least and the largest value, with their languages."""
    least, most = (choose(found, key=lambda code: found[code].value) for choose in (min, max))
    low, high = (f"{found[code].value:.3g}" for code in (least, most))
    if low == high:
        return low
    return f"{low} ({language_from_code(least).name}) to {high} ({language_from_code(most).name})"


def _certificate(audit: Audit) -> Iterator[Text]:
    """Yields the actual gap of the weighted errors, and its bound; nothing for one language."""
    found = audit.certificate
    if len(found.languages) > 1:
        worst = found.worst
        used = worst.actual / found.certified if found.certified > 0 else 1.0
        yield Text.assemble(
            "The errors of the weights, weighted by the inputs of each language, differ by ",
            (f"{worst.actual:.3g}", "bold"),
            f" ({language_from_code(worst.worse).name}, {language_from_code(worst.better).name}); "
            "no two languages can differ by more than ",
            (f"{found.certified:.3g}", "bold"),
            f" (tightness {used:.0%}). ",
            (SCOPE, "dim"),
        )
