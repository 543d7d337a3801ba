"""The languages of a report: names, cost of quantization, predicted damage."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fairbits.auditing.audit_file import AuditFile
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.scores import Scores
from fairbits.reports.sources import Sources
from fairbits.stats.frame import Contrast
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_of

UNKNOWN = "unknown"
FIRST_SCALE = "divergence_bits_per_byte"
"""The scale by which languages are ordered."""
LOSS_SCALE = "loss_bits_per_byte"


def language_rows(sources: Sources) -> list[dict[str, Any]]:
    """Returns one entry per language, the most damaged first."""
    scales = scales_of(sources)
    costs = [_costs(method.scores, scales) for method in sources.methods]
    contrasts = _contrasts(sources, scales)
    ordered = sorted(sources.after.languages, key=lambda code: -costs[0][code]["damage"][FIRST_SCALE]["value"])
    return [_row(code, sources, [cost[code] for cost in costs]) | _against(code, contrasts) for code in ordered]


def scales_of(sources: Sources) -> dict[str, tuple[str, str]]:
    """Returns the scales on which damage is shown: measure and unit by name. Sections need parallel text."""
    units = UNITS if sources.after.setting.parallel else UNITS[:2]
    return {scale_name(measure, unit): (measure, unit) for measure in MEASURES for unit in units}


def scale_name(measure: str, unit: str) -> str:
    """Returns the name of a scale in the content of a report.

    >>> scale_name("divergence", "bits_per_byte")
    'divergence_bits_per_byte'
    """
    return f"{measure}_{unit}"


def describe(code: str) -> dict[str, Any]:
    """Returns names, script, family and direction of a language; a code that fairbits does not know stays a code.

    >>> describe("heb_Hebr")["autonym"], describe("heb_Hebr")["right_to_left"], describe("x_X")["name"]
    ('עברית', True, 'x_X')
    """
    found = language_of(code)
    return {
        "code": code,
        "name": found.name,
        "autonym": found.autonym or found.name,
        "bcp47": found.bcp47 or code,
        "script": found.script or UNKNOWN,
        "family": found.family or UNKNOWN,
        "right_to_left": found.right_to_left,
    }


def interval(estimate: Estimate) -> dict[str, float | None]:
    """Returns value and limits of an estimate, for JSON; the limits are None if it has no interval."""
    found = estimate.to_dict()
    return {name: found[name] for name in ("value", "low", "high")}


def _costs(scores: Scores, scales: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Returns the cost of one method for every language."""
    damage = {name: scores.frame(unit, measure=measure).by_language() for name, (measure, unit) in scales.items()}
    return {
        code: {
            "damage": {name: found[code].to_dict() for name, found in damage.items()},
            "kl": scores.kl[code].to_dict(),
            "flips": scores.flips[code].to_dict(),
            "recovery": scores.recovery[code],
            **asdict(scores.percentiles[code]),
            "relative_perplexity": scores.relative_perplexity[code].to_dict(),
        }
        for code in scores.languages
    }


def _row(code: str, sources: Sources, costs: list[dict[str, Any]]) -> dict[str, Any]:
    own = sources.after.documents
    rows = own.lang == code
    return {
        **describe(code),
        "documents": int(rows.sum()),
        "tokens": int(own.tokens[rows].sum()),
        "bytes": int(own.bytes[rows].sum()),
        "methods": costs,
        **_audited(code, sources.audit),
    }


def _contrasts(sources: Sources, scales: Mapping[str, tuple[str, str]]) -> dict[str, Contrast]:
    """Returns how much more every language is damaged than under the baseline, on every scale."""
    before = sources.before
    if before is None:
        return {}
    return {
        name: sources.after.contrast(before, unit=unit, measure=measure) for name, (measure, unit) in scales.items()
    }


def _against(code: str, contrasts: Mapping[str, Contrast]) -> dict[str, Any]:
    """Returns difference, Holm p value and verdict of a language in every unit; empty without a baseline."""
    if not contrasts:
        return {"difference": None, "p_holm": None, "verdict": None}
    return {
        "difference": {unit: each.differences[code].to_dict() for unit, each in contrasts.items()},
        "p_holm": {unit: each.p_holm[code] for unit, each in contrasts.items()},
        "verdict": {unit: _verdict(code, each) for unit, each in contrasts.items()},
    }


def _verdict(code: str, found: Contrast) -> str | None:
    """Returns whether a language is damaged less or more; None if the difference is not significant."""
    sure = found.significant()
    return ("less" if sure[code].value < 0 else "more") if code in sure else None


def _audited(code: str, audit: AuditFile | None) -> dict[str, Any]:
    """Returns the audit's results for a language; empty if it was not audited."""
    if audit is None or code not in audit.languages:
        return {
            "predicted": None,
            "trusted": None,
            "reference_loss": None,
            "kappa_weighted": None,
            "bytes_per_token": None,
        }
    own = audit.languages[code]
    return {
        "predicted": interval(audit.predicted.nats_per_token[code]),
        "trusted": not own.redundancy.foreign,
        "reference_loss": interval(own.bits_per_byte),
        "kappa_weighted": interval(own.kappa_weighted),
        "bytes_per_token": interval(own.tokenization.bytes_per_token),
    }
