"""The plan of an interrupted run, and whether what the user says beside it agrees with it."""

from typing import TYPE_CHECKING, Any

from fairbits.cli.options import flag_of
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.quantize.plan import Plan


def check_agrees(plan: "Plan", told: dict[str, Any]) -> "Plan":
    """Returns the plan if nothing that it says was asked for otherwise; what it does not say is not looked at."""
    said = _said(plan)
    for name, value in told.items():
        asked = _comparable(name, value)
        if name in said and said[name] != asked:
            raise InputError(
                f"{flag_of(name)} is {_shown(asked)}, and the run that was interrupted had {_shown(said[name])}; "
                "--resume goes on with the same options or with none: to begin anew give another --out"
            )
    return plan


def _said(plan: "Plan") -> dict[str, Any]:
    """Returns what a plan says of the options that it was made with."""
    said = {**plan.settings, "policy": plan.policy}
    if isinstance(said.get("bits"), list):  # one width per block, which is a result
        del said["bits"]
    if isinstance(said.get("sensitivity"), dict):
        said["sensitivity"] = said["sensitivity"]["how"]
    if said.get("mix") == "given":
        said["mix"] = {code: round(weight, 9) for code, weight in plan.languages.items() if weight}
    text = plan.calibration
    if text is not None:
        shared = len(text.hashes) if said.get("mix") == "english" else 1  # which has the tokens of all languages
        said |= {"tokens": text.tokens // shared, "sequence": text.sequence, "seed": text.seed}
        said["languages"] = sorted(text.hashes)
    return said


def _comparable(name: str, value: Any) -> Any:
    """Returns an option as a plan would say it."""
    from fairbits.language.catalog import find_language, find_languages  # heavy: only when the verb runs

    if name == "languages":
        return sorted(language.code for language in find_languages(value))
    if name == "language":
        return find_language(value).code
    if name == "mix" and isinstance(value, dict):
        total = sum(value.values())
        return {find_language(each).code: round(weight / total, 9) for each, weight in value.items() if weight}
    return value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{code}={weight:g}" for code, weight in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
