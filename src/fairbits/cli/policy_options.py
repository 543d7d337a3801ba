"""Flags made from what policies declare: their help, completion, values, and the refusals of what does not fit."""

from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from fairbits.cli import completion
from fairbits.cli.options import language_notes, spell_flag, split_names
from fairbits.cli.terminal import print_notes, stages
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies import DEFAULT, POLICIES, check_reads_audit, check_values, find_policy
from fairbits.quantization.policies.option import COMMON, PolicyOption
from fairbits.quantization.policies.variants import with_options

if TYPE_CHECKING:
    from fairbits.models.checkpoint import Checkpoint

OWN_PANEL = "Options of some policies"
TEXT_OPTIONS = ("languages", "audit", "tokens", "sequence", "seed")
"""Options of the command `plan` that no policy declares, but that decide what it plans."""
LONGEST_METAVAR = 20


def policy_options() -> dict[str, dict[str, PolicyOption]]:
    """Returns the options of all policies by the names of those that have them: the common ones, then the default's."""
    usual = (*COMMON, *POLICIES[DEFAULT].options)
    options: dict[str, dict[str, PolicyOption]] = {name: {} for name in usual}
    for policy in POLICIES.values():
        for name, option in policy.options.items():
            options.setdefault(name, {})[policy.name] = option
    return options


def with_policy_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command with the options of all policies, which it receives as `**options`, after its first four."""
    declared = [p for p in signature(command).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    first, rest = declared[:4], declared[4:]
    added = [Parameter("policy", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, policy_flag()])]
    for name, users in policy_options().items():
        kind = next((kind for kind in (int, float) if next(iter(users.values())).kinds == (kind,)), str)
        annotation = Annotated[kind | None, option_flag(name, users)]  # type: ignore[valid-type]
        added.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*first, *added, *rest)]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # which typer reads
    return command


def policy_flag() -> Any:
    """Returns the flag --policy."""
    rest = ", ".join(name for name in POLICIES if name != DEFAULT)
    help = f"How to quantize: {DEFAULT} (default), {rest}; options may follow colons: gptq:mix=english."
    return typer.Option("--policy", help=help, metavar="NAME", autocompletion=complete_policy)


def common_flag(name: str) -> Any:
    """Returns the flag of an option that all policies have."""
    return option_flag(name, {policy.name: COMMON[name] for policy in POLICIES.values()})


def option_flag(name: str, users: Mapping[str, PolicyOption]) -> Any:
    """Returns the flag of an option, made from how each of its users, the policies that have it, declares it."""
    options = list(users.values())
    words = tuple(dict.fromkeys(str(word) for option in options for word in option.words))
    offers = completion.one_of(*words) if words else None
    return typer.Option(
        spell_flag(name),
        help=_help(users) if name not in COMMON else _sentence("", COMMON[name].about.help, users),
        metavar="CODE" if options[0].about.language else _metavar(options[0], words),
        autocompletion=completion.language if options[0].about.language else offers,
        rich_help_panel=None if name in COMMON else OWN_PANEL,
    )


def tokens_flag() -> Any:
    """Returns the flag --tokens of commands that make a plan."""
    default = POLICIES[DEFAULT].tokens
    special = [f"{policy.tokens} for {policy.name}" for policy in POLICIES.values() if policy.tokens != default]
    help = f"Calibration tokens per language (default: {', '.join([str(default), *special])})."
    return typer.Option("--tokens", help=help, metavar="N")


def audit_flag() -> Any:
    """Returns the flag --audit."""
    readers = ", ".join(policy.name for policy in POLICIES.values() if policy.reads_audit)
    help = f"{readers}: an audit of the model, to take κ from."
    return typer.Option("--audit", help=help, metavar="AUDIT.json", rich_help_panel=OWN_PANEL)


complete_policy, complete_policies = completion.one_of(*POLICIES), completion.some_of(*POLICIES)
AuditOption = Annotated[Path | None, audit_flag()]
PlanTokens = Annotated[int | None, tokens_flag()]
PlanSequence = Annotated[
    int | None, typer.Option("--sequence", help="Maximum window length in tokens (default: 512).", metavar="N")
]
PlanSeed = Annotated[
    int | None, typer.Option("--seed", help="Random seed for sampling text (default: 0).", metavar="N")
]


def policy_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the options of policies that the user gave."""
    options, policy = policy_options(), (arguments.get("policy") or DEFAULT).partition(":")[0]
    values = {}
    for name, value in arguments.items():
        if value is not None and name in options:
            users = options[name]
            option = users.get(policy) or next(iter(users.values()))
            values[name] = option.parse(value, spell_flag(name)) if isinstance(value, str) else value
    return values


def plan_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `fairbits.api.make_plan.plan` that the user gave, among all arguments of a command."""
    names = ("policy", "text", "device", *TEXT_OPTIONS)
    options = {name: arguments[name] for name in names if arguments[name] is not None}
    if "languages" in options:
        options["languages"] = split_names(options["languages"])
    values = policy_values(arguments)
    if "policy" in options:
        options["policy"], values = with_options(options["policy"], values, spell=spell_flag)
    return options | values


def check_options(options: Mapping[str, Any]) -> bool:
    """Returns whether the policy reads text; raises if it refuses its options, or cannot read the audit."""
    names, policy = policy_options(), find_policy(options.get("policy", DEFAULT))
    check_values(policy.name, {name: options[name] for name in options if name in names}, spell=spell_flag)
    if "audit" in options:
        from fairbits.auditing.audit_file import AUDIT

        check_reads_audit(policy.name)
        AUDIT.read(options["audit"])
    return policy.reads_text


def make_plan(checkpoint: "Checkpoint", options: Mapping[str, Any]) -> Plan:
    """Returns the plan of a policy with the options that the user gave."""
    from fairbits.api.make_plan import plan as run_plan

    check_options(options)
    print_notes(language_notes(options.get("languages", ())))
    with stages("opening the model") as show:
        return run_plan(checkpoint, **options, progress=show)


def _metavar(option: PolicyOption, words: tuple[str, ...]) -> str:
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
    """Yields the most common default, then other defaults with their policies."""
    first, *rest = sorted(by_default, key=lambda default: -len(by_default[default]))
    if first:
        yield first
    yield from (f"{default} for {', '.join(by_default[default])}" for default in rest if default)


PlanGroup = Annotated[str | None, common_flag("group")]
Embeddings = Annotated[str | None, common_flag("embeddings")]
