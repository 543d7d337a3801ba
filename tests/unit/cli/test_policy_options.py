"""Flags are made from what policies declare: a policy that is added in one place has them all."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import signature

import pytest

from fairbits.cli.plan_command import plan
from fairbits.cli.policy_options import option_flag, policy_options, policy_values
from fairbits.core.errors import InputError
from fairbits.quantization.policies import DEFAULT, POLICIES

TOY = """
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Annotated, Literal
from fairbits.quantization import policies
from fairbits.quantization.policies.plan_from_scheme import plan_from_scheme
from fairbits.quantization.policies.option import Option
from fairbits.quantization.policies.option import policy

@policy(reads_text=False, tokens=99, fixes=("grid",))
def toy(
    evidence,
    options,
    *,
    colour: Annotated[Literal["red", "blue"], Option("colour of the toy")] = "red",
    wheels: Annotated[int | None, Option("wheels of the toy", default="four", needs="colour")] = None,
):
    settings = {"colour": colour, "wheels": wheels}
    return plan_from_scheme("toy", evidence, options, scheme=options.scheme, settings=settings)

policies.POLICIES["toy"] = toy
sys.argv[0] = "fairbits"
from fairbits.cli import main

for line in sys.stdin:
    sys.argv[1:], environment = json.loads(line)
    os.environ.update(environment)
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as errors:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    for name in environment:
        del os.environ[name]
    print(json.dumps([code, printed.getvalue(), errors.getvalue()]), flush=True)
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Returns a function that runs a command line that knows one policy more: exit code, stdout and stderr.

    All its calls share one process, because most of the time of a call is imports.
    """
    environment = {"COLUMNS": "200", "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", TOY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:

        def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
            process.stdin.write(json.dumps([arguments, environment]) + "\n")
            process.stdin.flush()
            return tuple(json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


@pytest.mark.long
def test_a_new_policy_is_in_the_help(run: Run) -> None:
    code, printed, _ = run("plan", "--help")
    assert code == 0
    text = " ".join(printed.replace("│", " ").split())
    assert "protect, fair, auto, toy;" in text
    assert "--colour red|blue toy: colour of the toy (default: red)." in text
    assert "--wheels N toy: wheels of the toy (default: four)." in text
    assert "(default: 4096, 16384 for fair, 99 for toy)" in text


@pytest.mark.long
def test_a_new_policy_takes_its_options(run: Run) -> None:
    options = ("--policy", "toy", "--colour", "blue", "--wheels", "3", "--group", "64", "--json")
    code, printed, errors = run("plan", "embedded:tiny", *options)
    assert code == 0, errors
    data = json.loads(printed)
    assert data["policy"] == "toy"
    assert (data["settings"]["colour"], data["settings"]["wheels"], data["settings"]["group"]) == ("blue", 3, 64)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "rtn", "--colour", "blue"), "rtn does not take --colour (toy does); it takes --bits"),
        (("--policy", "toy", "--colour", "green"), "--colour is 'green'; it must be red or blue"),
        (("--policy", "toy", "--wheels", "3"), "toy takes --wheels only with --colour, colour of the toy"),
        (("--policy", "toy", "--grid", "twos"), "toy does not take --grid"),
    ],
)
def test_options_of_a_new_policy_are_refused_where_they_do_not_fit(run: Run, options, message) -> None:
    code, printed, errors = run("plan", "embedded:tiny", *options)
    assert (code, printed) == (2, "")
    assert message in errors


@pytest.mark.long
def test_a_new_policy_can_be_compared_and_completed(run: Run) -> None:
    asked = {"_FAIRBITS_COMPLETE": "complete_bash", "COMP_CWORD": "4"}
    assert run(COMP_WORDS="fairbits compare m --policies rtn,to", **asked)[1].split() == ["rtn,toy"]
    assert run(COMP_WORDS="fairbits quantize m --colour b", **asked)[1].split() == ["blue"]
    code, _, errors = run("compare", "embedded:tiny", "--policies", "rtn,toy:colour=green")
    assert (code, "colour in 'toy:colour=green' is 'green'; it must be red or blue" in errors) == (2, True)


def test_every_option_of_every_policy_has_a_flag_and_help() -> None:
    flags = signature(plan).parameters
    for policy in POLICIES.values():
        for name, option in policy.options.items():
            assert name in flags
            assert option.about.help
            assert option.about.needs in ("", *policy.options)


def test_policies_that_differ_have_a_sentence_each() -> None:
    users = policy_options()["sensitivity"]
    same = "how the damage of a block is estimated (default: predicted, measured for gateway, protect)."
    assert option_flag("sensitivity", users).help == f"allocate, gateway, protect, fair: {same}"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"group": "channel", "embeddings": "8"}, {"group": "channel", "embeddings": 8}),
        ({"policy": "gptq", "mix": "eng=2,fra=1"}, {"mix": {"eng": 2.0, "fra": 1.0}}),
        ({"mix": "minimax", "widths": "2..4,8", "bits": 3}, {"mix": "minimax", "widths": [2, 3, 4, 8], "bits": 3}),
        ({"policy": "laaciq", "language": "nan", "objective": None}, {"language": "nan"}),
    ],
)
def test_values_are_read_by_their_type(arguments, values) -> None:
    assert policy_values({"policy": DEFAULT, **arguments}) == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": "row"}, "--group is 'row'; it must be a whole number or channel or tensor"),
        ({"mix": "loud"}, "--mix is 'loud'; it must be equal or english or minimax or weights such as eng=2,fra=1"),
        ({"widths": "4-8"}, "--widths is '4-8'; it must be bit widths such as 4,3 or a range such as 2..8"),
    ],
)
def test_values_that_cannot_be_read_are_refused(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        policy_values(arguments)
