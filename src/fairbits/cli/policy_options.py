"""Flags made from what policies declare: their help, completion, values, and the refusals of what does not fit."""

from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from fairbits.cli import completion
from fairbits.cli.parsing import flag_of, names_of
from fairbits.cli.terminal import print_notes, stages
from fairbits.quantization.policies import DEFAULT, POLICIES, check
from fairbits.quantization.policies.option import COMMON, PolicyOption

if TYPE_CHECKING:
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.quantization.plan import Plan

OWN_PANEL = "Options of some policies"
TEXT_OPTIONS = ("languages", "audit", "tokens", "sequence", "seed")
"""Options of the verb `plan` that are not a policy's own, but decide what it finds."""
LONGEST_METAVAR = 20


def policy_options() -> dict[str, dict[str, PolicyOption]]:
    """Returns the options of all policies, the common ones first; each by the names of the policies that have it."""
    options: dict[str, dict[str, PolicyOption]] = {name: {} for name in COMMON}
    for policy in POLICIES.values():
        for name, option in policy.options.items():
            options.setdefault(name, {})[policy.name] = option
    return options


def with_policy_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Returns a verb that takes the options of all policies, which it receives as `**options`, after its first two."""
    first, second, *others = [each for each in signature(verb).parameters.values() if each.kind is not each.VAR_KEYWORD]
    added = [Parameter("policy", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, policy_flag()])]
    for name, users in policy_options().items():
        kind = next((kind for kind in (int, float) if next(iter(users.values())).kinds == (kind,)), str)
        annotation = Annotated[kind | None, option_flag(name, users)]  # type: ignore[valid-type]
        added.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (first, second, *added, *others)]
    verb.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # which typer reads
    return verb


def policy_flag() -> Any:
    """Returns the flag --policy."""
    others = ", ".join(name for name in POLICIES if name != DEFAULT)
    help = f"How to quantize: {DEFAULT} (default), {others}."
    return typer.Option("--policy", help=help, metavar="NAME", autocompletion=completion.policy)


def common_flag(name: str) -> Any:
    """Returns the flag of an option that all policies have."""
    return option_flag(name, {policy.name: COMMON[name] for policy in POLICIES.values()})


def option_flag(name: str, users: Mapping[str, PolicyOption]) -> Any:
    """Returns the flag of an option, made from how each of its users, the policies that have it, declares it."""
    options = list(users.values())
    words = tuple(dict.fromkeys(str(word) for option in options for word in option.words))
    offers = completion.one_of(*words) if words else None
    return typer.Option(
        flag_of(name),
        help=_help(users) if name not in COMMON else _sentence("", COMMON[name].about.help, users),
        metavar="CODE" if options[0].about.language else _metavar(options[0], words),
        autocompletion=completion.language if options[0].about.language else offers,
        rich_help_panel=None if name in COMMON else OWN_PANEL,
    )


def tokens_flag() -> Any:
    """Returns the flag --tokens of verbs that make a plan."""
    default = POLICIES[DEFAULT].tokens
    others = [f"{each.tokens} for {each.name}" for each in POLICIES.values() if each.tokens != default]
    help = f"Calibration tokens per language (default: {', '.join([str(default), *others])})."
    return typer.Option("--tokens", help=help, metavar="N")


def audit_flag() -> Any:
    """Returns the flag --audit."""
    readers = ", ".join(each.name for each in POLICIES.values() if each.reads_audit)
    help = f"{readers}: an audit of the model, to take κ from."
    return typer.Option("--audit", help=help, metavar="AUDIT.json", rich_help_panel=OWN_PANEL)


AuditFile = Annotated[Path | None, audit_flag()]
PlanTokens = Annotated[int | None, tokens_flag()]
PlanSequence = Annotated[
    int | None, typer.Option("--sequence", help="Longest window of text, in tokens (default: 512).", metavar="N")
]
PlanSeed = Annotated[
    int | None, typer.Option("--seed", help="Selects the text that is sampled (default: 0).", metavar="N")
]


def values_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the options of policies that the user gave.

    >>> values_of({"group": "64", "mix": None, "k": 3})
    {'group': 64, 'k': 3}
    """
    known = policy_options()
    values = {}
    for name, value in given.items():
        if value is not None and name in known:
            users = known[name]
            option = users.get(given.get("policy") or DEFAULT) or next(iter(users.values()))
            values[name] = option.parse(value, flag_of(name)) if isinstance(value, str) else value
    return values


def plan_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `fairbits.api.make_plan.plan` that the user gave, among all arguments of a verb."""
    names = ("policy", "text", "device", *TEXT_OPTIONS)
    options = {name: given[name] for name in names if given[name] is not None}
    if "languages" in options:
        options["languages"] = names_of(options["languages"])
    return options | values_of(given)


def decisions(given: Mapping[str, Any]) -> list[str]:
    """Returns the flags among the options that a plan has decided."""
    return [flag_of(name) for name in ("policy", *policy_options(), *TEXT_OPTIONS) if name in given]


def make_plan(checkpoint: "Checkpoint", options: Mapping[str, Any]) -> "Plan":
    """Returns the plan of a policy with the options that the user gave."""
    from fairbits.api.make_plan import plan as run_plan
    from fairbits.cli.languages_command import language_notes  # heavy: only when a verb runs

    known = policy_options()
    own = {name: value for name, value in options.items() if name in known}
    check(options.get("policy", DEFAULT), own, spell=flag_of)
    print_notes(language_notes(options.get("languages", ())))
    with stages("opening the model") as show:
        return run_plan(checkpoint, **options, progress=show)


def _metavar(option: PolicyOption, words: tuple[str, ...]) -> str:
    """Returns how a value looks in --help."""
    forms = [{int: "N", float: "X"}.get(kind, "") for kind in option.kinds]
    text = "|".join(filter(None, (*forms, *words)))
    if any(get_origin(kind) is Mapping for kind in option.kinds):
        return "NAME|WEIGHTS"
    return text if text and len(text) <= LONGEST_METAVAR else "NAME" if words else "LIST"


def _help(users: Mapping[str, PolicyOption]) -> str:
    """Returns who has an option and what it does; policies that declare it with the same help share a sentence."""
    by_help: dict[str, dict[str, PolicyOption]] = {}
    for policy, option in users.items():
        by_help.setdefault(option.about.help, {})[policy] = option
    return " ".join(_sentence(f"{', '.join(same)}: ", help, same) for help, same in by_help.items())


def _sentence(who: str, help: str, users: Mapping[str, PolicyOption]) -> str:
    """Returns a sentence with the defaults; a default that differs is followed by its policies."""
    by_default: dict[str, list[str]] = {}
    for policy, option in users.items():
        by_default.setdefault(option.default, []).append(policy)
    defaults = ", ".join(_defaults(by_default))
    text = f"{who}{help}" if who else f"{help[0].upper()}{help[1:]}"
    return f"{text} (default: {defaults})." if defaults else f"{text}."


def _defaults(by_default: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields the most common default, then the others with their policies."""
    first, *others = sorted(by_default, key=lambda default: -len(by_default[default]))
    if first:
        yield first
    yield from (f"{default} for {', '.join(by_default[default])}" for default in others if default)
