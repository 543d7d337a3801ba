"""What the figures of a report show, but the languages: blocks, patterns, causes, bits, widths, prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairbits.quantize.plan import Plan
from fairbits.reports.languages import describe
from fairbits.reports.sources import Json, Sources, entries, estimate, number, part, table
from fairbits.stats import spearman

PATTERN = "block norm"
"""The activation pattern of the founding documents, a_l = E‖h_l‖."""
LEAST_LANGUAGES = 4
"""A rank correlation of fewer says nothing."""


def blocks(audit: Json) -> dict[str, Any]:
    """Returns κ of every block, and which of them stand out by the founding documents' rule and by the robust one."""
    count = len(entries(audit, "blocks"))
    names = ("kappa", "sigma", "largest")
    return {
        "blocks": [{"block": i, **{name: number(audit, "blocks", i, name) for name in names}} for i in range(count)],
        "outliers": {rule: _outliers(audit, rule) for rule in ("founders", "robust")},
    }


def patterns(audit: Json, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the share of every block in the activation of every language."""
    count = len(entries(audit, "patterns", PATTERN, "blocks"))
    places = [int(number(audit, "patterns", PATTERN, "blocks", i)) for i in range(count)]
    known = [code for code in languages if code in table(audit, "patterns", PATTERN, "share")]
    return {
        "blocks": places,
        "languages": known,
        "share": [
            [number(audit, "patterns", PATTERN, "share", code, i, "value") for i in range(len(places))]
            for code in known
        ],
    }


def causes(audit: Json, languages: Sequence[str]) -> dict[str, Any]:
    """Returns how much of the predicted damage of every language comes from every block, in nats per token."""
    known = [code for code in languages if code in table(audit, "damage", "kronecker", "by_block")]
    count = len(entries(audit, "blocks"))
    return {
        "blocks": list(range(count)),
        "languages": known,
        "damage": [[number(audit, "damage", "kronecker", "by_block", code, i) for i in range(count)] for code in known],
        "scheme": str(part(audit, "scheme", "name")),
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


def curves(sweep: Json, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the damage of every language at every width, and the width at which it passes the threshold."""
    widths = sorted(int(text) for text in table(sweep, "sizes") if str(text).isdecimal())
    known = [code for code in languages if code in table(sweep, "damage")]
    return {
        "policy": str(part(sweep, "policy")),
        "unit": str(part(sweep, "unit")),
        "threshold": number(sweep, "threshold"),
        "bits": widths,
        "sizes": [number(sweep, "sizes", str(bits)) for bits in widths],
        "languages": known,
        "damage": [[estimate(sweep, "damage", code, str(bits)) for bits in widths] for code in known],
        "critical_width": [str(part(sweep, "critical_width", code, "text")) for code in known],
        "verdict": [str(each) for each in entries(sweep, "verdict")],
    }


def prediction(sources: Sources, languages: Sequence[str]) -> dict[str, Any]:
    """Returns predicted and measured damage of every language in nats per token, and their rank correlation.

    The audit predicts plain rounding; so that is what it is held to where it was measured. `like` says whether what
    was measured is what was predicted, `made_with` how it was made, None where nobody says.
    """
    audit = sources.audit or {}
    index = next((i for i, method in enumerate(sources.methods) if method.name == "rtn"), 0)
    measured = sources.methods[index].scores.frame("nats_per_token").by_language()
    known = [code for code in languages if code in table(audit, "damage", "kronecker", "nats_per_token")]
    predicted = [estimate(audit, "damage", "kronecker", "nats_per_token", code) for code in known]
    policy, settings = _made_with(sources, index)
    found: dict[str, Any] = {
        "scheme": str(part(audit, "scheme", "name")),
        "method": index,
        "like": policy == "rtn" and _is_of_scheme(settings, audit),
        "made_with": _width(settings) if settings else None,
        "languages": known,
        "predicted": predicted,
        "measured": [measured[code].to_dict() for code in known],
        "spearman": None,
    }
    values = [each["value"] for each in predicted]
    outcomes = [measured[code].value for code in known]
    if len(known) >= LEAST_LANGUAGES and len(set(values)) > 1 and len(set(outcomes)) > 1:
        found["spearman"] = spearman(values, outcomes).estimate.to_dict()
    return found


def checklist(audit: Json) -> dict[str, Any]:
    """Returns the founding documents' checklist, conditions, class and strategy, with the number behind each."""

    def said(*keys: str | int) -> str:
        return str(part(audit, "founders", *keys))

    def held(*keys: str | int) -> bool | None:
        found = part(audit, "founders", *keys)
        return None if found is None else bool(found)

    return {
        "risk": said("risk"),
        "strategy": said("strategy", "text"),
        "checks": [
            {
                "text": said("checklist", i, "text"),
                "passed": bool(held("checklist", i, "passed")),
                "detail": said("checklist", i, "detail"),
            }
            for i in range(len(entries(audit, "founders", "checklist")))
        ],
        "conditions": [
            {
                **{name: said("conditions", i, name) for name in ("name", "statement", "remark")},
                "holds": held("conditions", i, "holds"),
            }
            for i in range(len(entries(audit, "founders", "conditions")))
        ],
    }


def certificate(audit: Json) -> dict[str, Any]:
    """Returns the pair of languages whose errors of weights lie furthest apart, and the proved bound on that."""
    return {
        **{name: describe(str(part(audit, "certificate", "worst", name)))["name"] for name in ("worse", "better")},
        **{name: number(audit, "certificate", "worst", name) for name in ("actual", "bound_by_linear")},
    }


def _made_with(sources: Sources, index: int) -> tuple[str, Mapping[str, Any]]:
    """Returns policy and settings of a method, from the plan or the run; scores alone do not say, and get none."""
    if index == 0 and sources.plan is not None:
        return sources.plan.policy, sources.plan.settings
    return sources.methods[index].name, {} if sources.run is None else table(sources.run, "settings")


def _is_of_scheme(settings: Mapping[str, Any], audit: Json) -> bool:
    """Returns whether settings give all that the audit predicts for its width and group, and nothing else.

    The audit's schemes have no group "tensor", and leave embedding and head as they are.
    """
    group = part(audit, "scheme", "group")
    expected = {"bits": part(audit, "scheme", "bits"), "group": "channel" if group is None else group}
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


def _outliers(audit: Json, rule: str) -> dict[str, Any]:
    """Returns the blocks that stand out by a rule; none where it cannot say, and the remark says why."""
    limit = part(audit, "outliers", rule, "threshold")
    silent = part(audit, "outliers", rule, "blocks") is None
    count = 0 if silent else len(entries(audit, "outliers", rule, "blocks"))
    return {
        "blocks": [int(number(audit, "outliers", rule, "blocks", i)) for i in range(count)],
        "threshold": None if limit is None else number(audit, "outliers", rule, "threshold"),
        "remark": str(part(audit, "outliers", rule, "remark")),
    }
