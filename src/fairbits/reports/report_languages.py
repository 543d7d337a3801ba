"""The languages of a report: names, cost of quantization, predicted damage."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from fairbits.auditing.audit_file import AuditFile
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.language_groups import group_damage, outside
from fairbits.evaluation.scores import Scores
from fairbits.reports.sources import Sources
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code

UNKNOWN = "unknown"
CHANGED = "changed_of_100"  # the scale by which languages are ordered: of 100 tokens, those with another first choice
FIRST_SCALE = "divergence_bits_per_byte"
LOSS_SCALE = "loss_bits_per_byte"


def language_rows(sources: Sources) -> list[dict[str, Any]]:
    """Returns one entry per language, the most damaged first."""
    scales = damage_scales(sources)
    costs = [_costs(method.scores, scales) for method in sources.methods]
    contrasts = _contrasts(sources, scales)
    ordered = sorted(sources.after.languages, key=lambda code: -costs[0][code]["damage"][CHANGED]["value"])
    return [_row(code, sources, [cost[code] for cost in costs]) | _against(code, contrasts) for code in ordered]


def group_rows(sources: Sources) -> dict[str, Any] | None:
    """Returns the mean damage of every group of languages under every method, and its ratio to the first group's."""
    groups = sources.after.groups
    if not groups:
        return None
    scales = {scale_name(measure, "bits_per_byte"): measure for measure in MEASURES}
    damage = [
        {scale: group_damage(method.scores.frame(measure=measure), groups) for scale, measure in scales.items()}
        for method in sources.methods
    ]
    return {
        "groups": [
            {
                "name": name,
                "languages": list(codes),
                "methods": [
                    {
                        scale: {
                            "mean": part.means[name].to_dict(),
                            "ratio": part.ratios[name].to_dict() if name in part.ratios else None,
                        }
                        for scale, part in parts.items()
                    }
                    for parts in damage
                ],
            }
            for name, codes in groups.items()
        ],
        "no_ratio": [{scale: part.no_ratio for scale, part in parts.items()} for parts in damage],
        "outside": outside(groups, sources.after.languages),
    }


def damage_scales(sources: Sources) -> list[str]:
    """Returns the names of the scales on which damage is shown. Sections need parallel text."""
    units = UNITS if sources.after.setting.parallel else UNITS[:2]
    return [CHANGED, *(scale_name(measure, unit) for measure in MEASURES for unit in units)]


def scale_frame(scores: Scores, scale: str) -> LanguageFrame:
    """Returns the damage of every language on a scale; `on_scale` gives its numbers their factor."""
    if scale == CHANGED:
        return scores.changed_frame
    measure, _, unit = scale.partition("_")
    return scores.frame(unit, measure=measure)


def on_scale(estimate: Estimate, scale: str) -> dict[str, Any]:
    """Returns an estimate as a report has it, for JSON: changed tokens are counted of 100."""
    return (estimate.transform(lambda x: 100 * x) if scale == CHANGED else estimate).to_dict()


def scale_name(measure: str, unit: str) -> str:
    """Returns the name of a scale in the content of a report: divergence_bits_per_byte."""
    return f"{measure}_{unit}"


def describe(code: str) -> dict[str, Any]:
    """Returns names, script, family and direction of a language; a code that fairbits does not know stays a code."""
    language = language_from_code(code)
    return {
        "code": code,
        "name": language.name,
        "autonym": language.autonym or language.name,
        "bcp47": language.bcp47 or code,
        "script": language.script or UNKNOWN,
        "family": language.family or UNKNOWN,
        "right_to_left": language.right_to_left,
    }


def interval(estimate: Estimate) -> dict[str, float | None]:
    """Returns value and limits of an estimate, for JSON; the limits are None if it has no interval."""
    data = estimate.to_dict()
    return {name: data[name] for name in ("value", "low", "high")}


def _costs(scores: Scores, scales: Iterable[str]) -> dict[str, dict[str, Any]]:
    damage = {scale: scale_frame(scores, scale).by_language() for scale in scales}
    bits = scores.equivalent_bits
    return {
        code: {
            "damage": {scale: on_scale(estimates[code], scale) for scale, estimates in damage.items()},
            "kl": scores.kl[code].to_dict(),
            "flips": scores.flips[code].to_dict(),
            "sure_of_100": on_scale(scores.sure_flips[code], CHANGED) if code in scores.sure_flips else None,
            "equivalent_bits": None if bits is None else bits.languages[code].text(bits.bits),
            "added_words": scores.added_words[code].to_dict() if code in scores.added_words else None,
            **(asdict(scores.percentiles[code]) if scores.percentiles else {}),
            "relative_perplexity": scores.relative_perplexity[code].to_dict(),
        }
        for code in scores.languages
    }


def _row(code: str, sources: Sources, costs: list[dict[str, Any]]) -> dict[str, Any]:
    documents = sources.after.documents
    rows = documents.lang == code
    return {
        **describe(code),
        "documents": int(rows.sum()),
        "tokens": int(documents.tokens[rows].sum()),
        "bytes": int(documents.bytes[rows].sum()),
        "methods": costs,
        **_audited(code, sources.audit),
    }


def _contrasts(sources: Sources, scales: Iterable[str]) -> dict[str, Contrast]:
    before = sources.before
    if before is None:
        return {}
    return {scale: scale_frame(sources.after, scale).contrast(scale_frame(before, scale)) for scale in scales}


def _against(code: str, contrasts: Mapping[str, Contrast]) -> dict[str, Any]:
    if not contrasts:
        return dict.fromkeys(("difference", "p_holm", "verdict"))
    significant = {scale: contrast.significant() for scale, contrast in contrasts.items()}
    return {
        "difference": {scale: on_scale(contrast.differences[code], scale) for scale, contrast in contrasts.items()},
        "p_holm": {scale: contrast.p_holm[code] for scale, contrast in contrasts.items()},
        "verdict": {
            scale: None if code not in sure else "less" if sure[code].value < 0 else "more"
            for scale, sure in significant.items()
        },
    }


def _audited(code: str, audit: AuditFile | None) -> dict[str, Any]:
    if audit is None or code not in audit.languages:
        return dict.fromkeys(("predicted", "trusted", "reference_loss", "kappa_weighted", "bytes_per_token"))
    language = audit.languages[code]
    return {
        "predicted": interval(audit.predicted.nats_per_token[code]),
        "trusted": language.trusted,
        "reference_loss": interval(language.bits_per_byte),
        "kappa_weighted": interval(language.kappa_weighted),
        "bytes_per_token": interval(language.tokenization.bytes_per_token),
    }
