"""The plan of an interrupted run, and whether the options that the user gives now agree with it."""

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from fairbits.cli.parsing import flag_of
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.quantization.plan import Plan


def check_agrees(plan: "Plan", given: dict[str, Any]) -> "Plan":
    """Returns the plan if no option contradicts it; options that a plan does not record are not compared."""
    recorded = _recorded_options(plan)
    for name, value in given.items():
        wanted = _comparable(name, value, own={*plan.languages, *recorded.get("languages", ())})
        if name in recorded and recorded[name] != wanted:
            raise InputError(
                f"{flag_of(name)} is {_text(wanted)}, but the interrupted run had {_text(recorded[name])}; "
                "--resume takes the same options or none: to start anew, give another --out"
            )
    return plan


def _recorded_options(plan: "Plan") -> dict[str, Any]:
    """Returns the options that a plan was made with, as far as it records them."""
    recorded = {**plan.settings, "policy": plan.policy}
    if isinstance(recorded.get("bits"), list):  # one width per block: a result, not an option
        del recorded["bits"]
    if isinstance(recorded.get("sensitivity"), dict):
        recorded["sensitivity"] = recorded["sensitivity"]["how"]
    if recorded.get("mix") == "given":
        recorded["mix"] = {code: round(weight, 9) for code, weight in plan.languages.items() if weight}
    text = plan.calibration
    if text is not None:
        shared = (
            len(text.hashes) if recorded.get("mix") == "english" else 1
        )  # English then has the tokens of all languages
        recorded |= {"tokens": text.tokens // shared, "sequence": text.sequence, "seed": text.seed}
        recorded["languages"] = sorted(text.hashes)
    return recorded


def _comparable(name: str, value: Any, *, own: Container[str]) -> Any:
    """Returns an option as a plan would record it."""
    from fairbits.language.lookup import find_language, find_languages  # heavy: only when the verb runs

    if name == "languages":
        return sorted(language.code for language in find_languages(value, own=own))
    if name == "language":
        return find_language(value, own=own).code
    if name == "mix" and isinstance(value, dict):
        total = sum(value.values())
        return {find_language(each, own=own).code: round(weight / total, 9) for each, weight in value.items() if weight}
    return value


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{code}={weight:g}" for code, weight in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
