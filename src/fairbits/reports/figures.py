"""The data of a report's figures other than the languages: blocks, patterns, causes, bits, widths, prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairbits.auditing.audit_file import AuditedScheme, AuditFile
from fairbits.kurtosis.checklist import OutlierBlocks
from fairbits.quantization.plan import Plan
from fairbits.reports.report_languages import describe, interval, scale_name
from fairbits.reports.sources import Sources, SweepFile
from fairbits.stats.correlation import spearman

LEAST_LANGUAGES = 4  # a rank correlation of fewer languages is meaningless


def blocks(audit: AuditFile) -> dict[str, Any]:
    """Returns κ of every block, and which of them stand out by the research notes' rule and by the robust one."""
    return {
        "blocks": [
            {"block": i, "kappa": float(block.kappa), "sigma": float(block.sigma), "largest": float(block.largest)}
            for i, block in enumerate(audit.blocks)
        ],
        "outliers": {name: _outliers(getattr(audit.outliers, name)) for name in ("research_notes", "robust")},
    }


def patterns(audit: AuditFile, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the share of every block in the activation of every language."""
    pattern = audit.pattern
    codes = [code for code in languages if code in pattern.share]
    return {
        "blocks": list(pattern.blocks),
        "languages": codes,
        "share": [[block.value for block in pattern.share[code]] for code in codes],
    }


def causes(audit: AuditFile, languages: Sequence[str]) -> dict[str, Any]:
    """Returns how much of the predicted damage of every language comes from every block, in nats per token."""
    codes = [code for code in languages if code in audit.predicted.by_block]
    return {
        "blocks": list(range(len(audit.blocks))),
        "languages": codes,
        "damage": [list(map(float, audit.predicted.by_block[code])) for code in codes],
        "scheme": audit.scheme.name,
    }


def expert_use(audit: AuditFile, languages: Sequence[str]) -> dict[str, Any] | None:
    """Returns how many experts of every block get little or no text of every language, and how much on average."""
    experts = audit.experts
    if experts is None:
        return None
    codes = [code for code in languages if code in audit.languages]
    blocks = experts.blocks
    return {
        "least": experts.least,
        "blocks": [block.block for block in blocks],
        **{name: [getattr(block, name) for block in blocks] for name in ("experts", "per_position", "unreached")},
        "languages": codes,
        "few": [[block.few[code] for block in blocks] for code in codes],
        "empty": [[block.empty[code] for block in blocks] for code in codes],
        "mean": [[block.routed[code] / block.experts for block in blocks] for code in codes],
    }


def allocation(plan: Plan) -> dict[str, Any]:
    """Returns the bits of every layer by block and role, and the bytes of what was quantized by block."""
    inside = [layer for layer in plan.layers if layer.block is not None]
    roles = list(dict.fromkeys(layer.role for layer in inside))
    places = sorted({layer.block for layer in inside if layer.block is not None})
    bits = {(layer.block, layer.role): layer.bits for layer in inside}
    sizes = {layer.name: layer.size_bytes for layer in plan.results}
    block_bytes = [sum(sizes.get(layer.name, 0) for layer in inside if layer.block == block) for block in places]
    return {
        "blocks": places,
        "roles": roles,
        "bits": [[bits.get((block, role)) for block in places] for role in roles],
        "bytes": block_bytes if sizes else None,
        "outside": [
            {"role": layer.role, "name": layer.name, "bits": layer.bits, "bytes": sizes.get(layer.name)}
            for layer in plan.layers
            if layer.block is None
        ],
    }


def curves(sweep: SweepFile, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the damage of every language at every width, and the width at which it passes the threshold."""
    widths = sorted(map(int, sweep.sizes))
    codes = [code for code in languages if code in sweep.damage]
    return {
        "policy": sweep.policy,
        "unit": scale_name(sweep.measure, sweep.unit),
        "threshold": float(sweep.threshold),
        "bits": widths,
        "sizes": [float(sweep.sizes[str(bits)]) for bits in widths],
        "languages": codes,
        "damage": [[interval(sweep.damage[code][str(bits)]) for bits in widths] for code in codes],
        "critical_width": [sweep.critical_width[code].text for code in codes],
        "verdict": list(sweep.verdict),
    }


def prediction(sources: Sources, audit: AuditFile, *, languages: Sequence[str]) -> dict[str, Any]:
    """Returns predicted and measured damage of every language in nats per token, and their rank correlation.

    The audit predicts plain rounding, so it is compared with plain rounding if that was measured. Languages whose text
    the model does not know (`trusted` is false) come last, and do not enter the correlation.
    """
    index = next((i for i, method in enumerate(sources.methods) if method.name == "rtn"), 0)
    measured = sources.methods[index].scores.frame("nats_per_token").by_language()
    trusted = audit.trusted
    codes = sorted((code for code in languages if code in audit.languages), key=lambda code: code not in trusted)
    predicted = audit.predicted.nats_per_token
    policy, settings = sources.methods[index].name, {} if sources.run is None else sources.run.settings
    if index == 0 and sources.plan is not None:
        policy, settings = sources.plan.policy, sources.plan.settings
    values = [predicted[code].value for code in codes if code in trusted]
    outcomes = [measured[code].value for code in codes if code in trusted]
    comparable = len(values) >= LEAST_LANGUAGES and len(set(values)) > 1 and len(set(outcomes)) > 1
    return {
        "scheme": audit.scheme.name,
        "method": index,
        "like": policy == "rtn" and _is_of_scheme(settings, audit.scheme),
        "made_with": _scheme_name(settings) if settings else None,
        "languages": codes,
        "trusted": [code in trusted for code in codes],
        "predicted": [interval(predicted[code]) for code in codes],
        "measured": [measured[code].to_dict() for code in codes],
        "spearman": spearman(values, outcomes).estimate.to_dict() if comparable else None,
    }


def checklist(audit: AuditFile) -> dict[str, Any]:
    """Returns the research notes' checklist, conditions, class and strategy, with the number behind each."""
    notes = audit.research_notes
    return {
        "risk": notes.risk,
        "strategy": notes.strategy.text,
        "checks": [{"text": check.text, "passed": check.passed, "detail": check.detail} for check in notes.checklist],
        "conditions": [
            {name: getattr(condition, name) for name in ("name", "statement", "remark", "holds")}
            for condition in notes.conditions
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


def _is_of_scheme(settings: Mapping[str, Any], scheme: AuditedScheme) -> bool:
    """Returns whether the settings are those whose damage the audit predicts; it never quantizes embedding and head."""
    expected = {"bits": scheme.bits, "group": "channel" if scheme.group is None else scheme.group}
    same = {name: settings.get(name) for name in expected} == expected and settings.get("scheme") is None
    return same and settings.get("embeddings", "keep") == "keep"


def _scheme_name(settings: Mapping[str, Any]) -> str:
    if settings.get("scheme") is not None:
        return str(settings["scheme"])
    group = settings.get("group")
    where = f"group {group}" if isinstance(group, int) else f"per {group}"
    return f"W{settings.get('avg_bits', settings.get('bits'))} {where}"


def _outliers(outliers: OutlierBlocks) -> dict[str, Any]:
    return {"blocks": list(outliers.blocks or ()), "threshold": outliers.threshold, "remark": outliers.remark}
