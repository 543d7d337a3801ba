"""The data of a report's figures other than the languages: blocks, patterns, causes, bits, widths, prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairbits.auditing.audit_file import AuditedScheme, AuditFile
from fairbits.kurtosis.checklist import OutlierBlocks
from fairbits.quantization.plan import Plan
from fairbits.reports.report_languages import describe, interval, scale_name
from fairbits.reports.sources import Sources, SweepFile
from fairbits.stats.correlation import spearman

LEAST_LANGUAGES = 4
"""A rank correlation of fewer languages is meaningless."""


def blocks(audit: AuditFile) -> dict[str, Any]:
    """Returns κ of every block, and which of them stand out by the research notes' rule and by the robust one."""
    names = ("kappa", "sigma", "largest")
    return {
        "blocks": [
            {"block": i, **{name: float(getattr(block, name)) for name in names}}
            for i, block in enumerate(audit.blocks)
        ],
        "outliers": {"founders": _outliers(audit.outliers.founders), "robust": _outliers(audit.outliers.robust)},
    }


def patterns(audit: AuditFile, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the share of every block in the activation of every language."""
    found = audit.pattern
    known = [code for code in languages if code in found.share]
    return {
        "blocks": list(found.blocks),
        "languages": known,
        "share": [[each.value for each in found.share[code]] for code in known],
    }


def causes(audit: AuditFile, languages: Sequence[str]) -> dict[str, Any]:
    """Returns how much of the predicted damage of every language comes from every block, in nats per token."""
    known = [code for code in languages if code in audit.predicted.by_block]
    return {
        "blocks": list(range(len(audit.blocks))),
        "languages": known,
        "damage": [[float(each) for each in audit.predicted.by_block[code]] for code in known],
        "scheme": audit.scheme.name,
    }


def experts(audit: AuditFile, languages: Sequence[str]) -> dict[str, Any] | None:
    """Returns how many experts of every block get little or no text of every language; None without experts.

    `mean` is how many positions of a language an expert of the block gets on average.
    """
    found = audit.experts
    if found is None:
        return None
    known = [code for code in languages if code in audit.languages]
    return {
        "least": found.least,
        "blocks": [each.block for each in found.blocks],
        "experts": [each.experts for each in found.blocks],
        "per_position": [each.per_position for each in found.blocks],
        "unreached": [each.unreached for each in found.blocks],
        "languages": known,
        "starved": [[each.starved[code] for each in found.blocks] for code in known],
        "empty": [[each.empty[code] for each in found.blocks] for code in known],
        "mean": [[each.routed[code] / each.experts for each in found.blocks] for code in known],
    }


def allocation(plan: Plan) -> dict[str, Any]:
    """Returns the bits of every map by block and role, and the bytes of what was quantized by block."""
    roles = list(dict.fromkeys(each.role for each in plan.layers if each.block is not None))
    places = sorted({each.block for each in plan.layers if each.block is not None})
    bits = {(each.block, each.role): each.bits for each in plan.layers if each.block is not None}
    sizes = {each.name: each.size_bytes for each in plan.outcomes}
    size_of = dict.fromkeys(places, 0)
    for each in plan.layers:
        if each.block is not None:
            size_of[each.block] += sizes.get(each.name, 0)
    return {
        "blocks": places,
        "roles": roles,
        "bits": [[bits.get((block, role)) for block in places] for role in roles],
        "bytes": [size_of[block] for block in places] if sizes else None,
        "outside": [
            {"role": each.role, "name": each.name, "bits": each.bits, "bytes": sizes.get(each.name)}
            for each in plan.layers
            if each.block is None
        ],
    }


def curves(sweep: SweepFile, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the damage of every language at every width, and the width at which it passes the threshold."""
    widths = sorted(map(int, sweep.sizes))
    known = [code for code in languages if code in sweep.damage]
    return {
        "policy": sweep.policy,
        "unit": scale_name(sweep.measure, sweep.unit),
        "threshold": float(sweep.threshold),
        "bits": widths,
        "sizes": [float(sweep.sizes[str(bits)]) for bits in widths],
        "languages": known,
        "damage": [[interval(sweep.damage[code][str(bits)]) for bits in widths] for code in known],
        "critical_width": [sweep.critical_width[code].text for code in known],
        "verdict": list(sweep.verdict),
    }


def prediction(sources: Sources, audit: AuditFile, *, languages: Sequence[str]) -> dict[str, Any]:
    """Returns predicted and measured damage of every language in nats per token, and their rank correlation.

    The audit predicts plain rounding, so it is compared with plain rounding if that was measured. `like` says whether
    the measured method is the predicted one, `made_with` how the model was made (None if unknown). Languages whose
    text the model does not know (`trusted` is false) come last, and do not enter the correlation.
    """
    index = next((i for i, method in enumerate(sources.methods) if method.name == "rtn"), 0)
    measured = sources.methods[index].scores.frame("nats_per_token").by_language()
    trusted = audit.trusted
    known = sorted((code for code in languages if code in audit.languages), key=lambda code: code not in trusted)
    predicted = [interval(audit.predicted.nats_per_token[code]) for code in known]
    policy, settings = _made_with(sources, index)
    found: dict[str, Any] = {
        "scheme": audit.scheme.name,
        "method": index,
        "like": policy == "rtn" and _is_of_scheme(settings, audit.scheme),
        "made_with": _width(settings) if settings else None,
        "languages": known,
        "trusted": [code in trusted for code in known],
        "predicted": predicted,
        "measured": [measured[code].to_dict() for code in known],
        "spearman": None,
    }
    values = [audit.predicted.nats_per_token[code].value for code in known if code in trusted]
    outcomes = [measured[code].value for code in known if code in trusted]
    if len(values) >= LEAST_LANGUAGES and len(set(values)) > 1 and len(set(outcomes)) > 1:
        found["spearman"] = spearman(values, outcomes).estimate.to_dict()
    return found


def checklist(audit: AuditFile) -> dict[str, Any]:
    """Returns the research notes' checklist, conditions, class and strategy, with the number behind each."""
    found = audit.founders
    return {
        "risk": found.risk,
        "strategy": found.strategy.text,
        "checks": [{"text": each.text, "passed": each.passed, "detail": each.detail} for each in found.checklist],
        "conditions": [
            {"name": each.name, "statement": each.statement, "remark": each.remark, "holds": each.holds}
            for each in found.conditions
        ],
    }


def certificate(audit: AuditFile) -> dict[str, Any]:
    """Returns the pair of languages whose weight errors differ most, and the proved bound on that difference."""
    worst = audit.certificate.worst
    return {
        **{name: describe(getattr(worst, name))["name"] for name in ("worse", "better")},
        "actual": worst.actual,
        "bound_by_linear": worst.bound_by_linear,
    }


def _made_with(sources: Sources, index: int) -> tuple[str, Mapping[str, Any]]:
    """Returns policy and settings of a method, from the plan or the run; empty if only scores are given."""
    if index == 0 and sources.plan is not None:
        return sources.plan.policy, sources.plan.settings
    return sources.methods[index].name, {} if sources.run is None else sources.run.settings


def _is_of_scheme(settings: Mapping[str, Any], scheme: AuditedScheme) -> bool:
    """Returns whether the settings are exactly those whose damage the audit predicts.

    The audit's schemes have no group "tensor", and do not quantize embedding and head.
    """
    expected = {"bits": scheme.bits, "group": "channel" if scheme.group is None else scheme.group}
    asked = {name: settings.get(name) for name in expected}
    return asked == expected and settings.get("embeddings", "keep") == "keep"


def _width(settings: Mapping[str, Any]) -> str:
    """Returns width and group as the audit writes those of its scheme.

    >>> _width({"bits": 4, "group": 128}), _width({"bits": 3, "group": "tensor"})
    ('W4 group 128', 'W3 per tensor')
    """
    group = settings.get("group")
    where = f"group {group}" if isinstance(group, int) else f"per {group}"
    return f"W{settings.get('avg_bits', settings.get('bits'))} {where}"


def _outliers(found: OutlierBlocks) -> dict[str, Any]:
    """Returns the blocks that stand out by a rule; none if it cannot decide, and the remark says why."""
    return {"blocks": list(found.blocks or ()), "threshold": found.threshold, "remark": found.remark}
