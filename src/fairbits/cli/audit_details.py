"""The details of an audit for a terminal of 80 columns: every measurement of every language and block."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.auditing.record import HEADLINE, Audit
from fairbits.cli.audit_table import experts_table, order_of, shares_of
from fairbits.cli.table_parts import BLANK, columns, formatter, section, unit_of
from fairbits.core.checks import instance
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code

PATTERNS = (
    "κ_eff: Σ ā κ over blocks, as the research notes define it. κ mix: excess kurtosis of the mixture of the "
    "blocks' weights. R̂: share of the activation in outlier blocks, by their threshold."
)
TOKENS = (
    "T: tokens of English divided by tokens, for the same content. cut: tokens that are part of a character. unknown: "
    "tokens for text that is not in the vocabulary."
)
PROXIES = (
    "In bits per token, which cannot be compared between languages. R: H(Y) − 2·loss, the research notes' "
    "redundancy. H(Y): entropy of single tokens. entropy: of the predictions. gap: loss − entropy. dim.: effective "
    "number of channels of the residual stream. None of them is known to predict damage."
)
BLOCKS = (
    "ā: share of the activation, least and largest over languages. error: Σ h·m, the error of the weights weighted by "
    "the inputs, mean over languages."
)


def audit_details(audit: Audit) -> Group:
    """Returns what `audit_table` leaves out; the tables by tensor and the patterns are only in the JSON."""
    instance("audit", audit, Audit)
    order = order_of(audit)
    remarks = (Text.assemble((f"{each.name} ", "bold"), each.remark) for each in audit.founders.conditions)
    shown = f"In nats per token; the table above shows the form {audit.predicted.form}."
    return Group(
        *section("Activation patterns", [_patterns(audit, order), Text(PATTERNS, style="dim"), *_distances(audit)]),
        *section("Tokenization", [_tokenization(audit, order), Text(TOKENS, style="dim")]),
        *section("Redundancy proxies", [_redundancy(audit, order), Text(PROXIES, style="dim")]),
        *section("Predicted damage by form", [_forms(audit, order), Text(shown, style="dim")]),
        *section("Blocks", [_blocks(audit), Text(BLOCKS, style="dim")]),
        *([] if audit.experts is None else section("Experts by language", [experts_table(audit.experts, order)])),
        *section("Remarks on the research notes' conditions", remarks),
    )


def _with_limits(found: Mapping[str, Estimate]) -> dict[str, Text]:
    """Returns value and interval of every language, all with the same decimals."""
    ends = (end for each in found.values() for end in (each.low, each.value, each.high))
    number = formatter(max(abs(end) for end in ends if math.isfinite(end)), 3)

    def limits(each: Estimate) -> str:
        return f" ({number(each.low)} to {number(each.high)})" if each.bounded else " (–)"

    return {code: Text.assemble(number(each.value), (limits(each), "dim")) for code, each in found.items()}


def _patterns(audit: Audit, order: list[str]) -> Table:
    table = columns("language", "κ_eff", "κ mix", "R̂", left=(1, 3))
    kappa, share = _with_limits(audit.kappa_weighted), _with_limits(audit.outlier_share)
    for code in order:
        table.add_row(language_from_code(code).name, kappa[code], f"{audit.kappa_mixture[code].value:.3g}", share[code])
    return table


def _distances(audit: Audit) -> Iterator[RenderableType]:
    """Yields the two languages with the largest distance of patterns, per kind of point; nothing for one language."""
    if len(audit.languages) == 1:
        return
    yield BLANK
    for (kind, measure), pattern in audit.patterns.items():
        if measure != HEADLINE[1]:
            continue
        distances = pattern.distances()
        one, other = np.unravel_index(int(np.argmax(distances)), distances.shape)
        names = " and ".join(language_from_code(pattern.languages[i]).name for i in (one, other))
        yield Text(f"largest TV distance between patterns of {kind} outputs: {distances[one, other]:.3g}, {names}")


def _tokenization(audit: Audit, order: list[str]) -> Table:
    table = columns("language", "documents", "tokens", "bytes/token", "T", "cut", "unknown", left=(3,))
    size = _with_limits({code: own.bytes_per_token for code, own in audit.tokenization.items()})
    for code in order:
        own = audit.tokenization[code]
        table.add_row(
            language_from_code(code).name,
            f"{own.documents:,}",
            f"{own.tokens:,}",
            size[code],
            "–" if own.quality is None else f"{own.quality.value:.2f}",
            f"{own.fallback_share.value:.1%}",
            f"{own.unknown_share.value:.1%}",
        )
    return table


def _redundancy(audit: Audit, order: list[str]) -> Table:
    table = columns("language", "R", "H(Y)", "loss", "entropy", "gap", "dim.", left=(1,))
    as_written = _with_limits({code: own.as_written for code, own in audit.redundancy.items()})
    for code in order:
        own = audit.redundancy[code]
        table.add_row(
            language_from_code(code).name,
            as_written[code],
            f"{own.unigram_entropy:.2f}",
            f"{own.loss.value:.2f}",
            f"{own.predictive_entropy.value:.2f}",
            f"{own.calibration_gap.value:.2f}",
            f"{own.effective_dimension:.1f}",
        )
    return table


def _forms(audit: Audit, order: list[str]) -> Table:
    values = {f: {code: each.value for code, each in found.estimates().items()} for f, found in audit.damage.items()}
    factor, prefix = unit_of(max(max(found.values()) for found in values.values()))
    table = columns("language", *(f"{form}{f', {prefix.strip()}' if prefix else ''}" for form in values))
    for code in order:
        number = formatter(max(found[code] for found in values.values()) * factor)
        table.add_row(language_from_code(code).name, *(number(found[code] * factor) for found in values.values()))
    return table


def _blocks(audit: Audit) -> Table:
    """Returns the weights, the activation and the predicted damage of every block."""
    share, damage = audit.patterns[HEADLINE].share, shares_of(audit.predicted.by_block).mean(0)
    error = dict(zip(audit.weighted_error.blocks, audit.weighted_error.by_block.mean(0), strict=True))
    table = columns("block", "κ", "σ", "max|w|/σ", "beyond 6σ", "ā", "error", "share of D̂")
    for index, block in enumerate(audit.moments.blocks):
        own = share[:, index]
        table.add_row(
            str(index),
            f"{block.kappa:.2f}",
            f"{block.sigma:.4f}",
            f"{block.largest / block.sigma:.1f}" if block.sigma else "–",
            f"{block.beyond_6:.2g}",
            f"{own.min():.3f} to {own.max():.3f}",
            f"{error[index]:.3g}" if index in error else "–",
            f"{damage[index]:.1%}" if index < len(damage) else "–",
        )
    return table
