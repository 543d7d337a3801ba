"""What policies refuse: at once, before any evidence is asked for."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Calibration, Plan
from fairbits.quantization.policies import decide

LANGUAGES = ("eng_Latn", "heb_Hebr")
TEXT = Calibration("text", dict.fromkeys(LANGUAGES, "0"), 512, 64, 3)


@pytest.fixture
def untouchable(reading_model: Callable[[str], Checkpoint]) -> Evidence:
    """Evidence that must not be asked for."""

    def asked(*_: object) -> Any:
        raise AssertionError("evidence was asked for")

    return Evidence(reading_model("llama"), LANGUAGES, kappa=asked, sensitivity=asked, damage=asked, minimax=asked)


def made(name: str, evidence: Evidence, **told: Any) -> Plan:
    return decide(name, evidence, calibration=TEXT, **{"group": 16, **told})


@pytest.mark.parametrize(
    ("name", "told", "message"),
    [
        ("allocate", {"avg_bits": 2.5}, "avg_bits is 2.5; it must be finite, at least 3, at most 8"),
        ("allocate", {"avg_bits": 9}, "avg_bits is 9"),
        ("allocate", {"avg_bits": 5, "widths": (3, 4)}, "avg_bits is 5; it must be finite, at least 3, at most 4"),
        ("allocate", {"avg_bits": "4"}, "avg_bits is str '4'"),
        ("allocate", {"avg_bits": 4, "widths": ()}, "widths is empty"),
        ("allocate", {"avg_bits": 4, "widths": 4}, "widths is int 4"),
        ("allocate", {"avg_bits": 4, "widths": (4, 9)}, "a width is 9"),
        ("allocate", {"avg_bits": 4, "rounding": "up"}, "rounding is 'up'"),
        ("allocate", {"avg_bits": 4, "objective": "best"}, "objective is 'best'"),
        ("allocate", {"avg_bits": 4, "sensitivity": "guessed"}, "sensitivity is 'guessed'"),
        ("protect", {"k": -1}, "k is -1; it must be 1 to 1"),
        ("protect", {"k": 0}, "k is 0"),
        ("protect", {"k": 2}, "k is 2; it must be 1 to 1"),
        ("protect", {"k": 1.5}, "k is 1.5"),
        ("protect", {"k": 1, "bits": 8}, "bits is 8; protected blocks have 8"),
        ("protect", {"k": 1, "rounding": "up"}, "rounding is 'up'"),
        ("protect", {"k": 1, "objective": "regret"}, "must be one of mean, worst"),
        ("protect", {"k": 1, "sensitivity": "guessed"}, "sensitivity is 'guessed'"),
        ("protect", {"k": 1, "sets": -1}, "sets is -1"),
        ("mixed", {"bits": 8}, "bits is 8; protected blocks have 8"),
        ("mixed", {"rounding": "up"}, "rounding is 'up'"),
        ("mixed", {"tau": float("nan")}, "tau is nan"),
        ("gateway", {"k": -1}, "k is -1; it must be 2 to 2"),
        ("gateway", {"k": 2, "bits": 8}, "bits is 8; protected blocks have 8"),
        ("gateway", {"k": 2, "rounding": "up"}, "rounding is 'up'"),
        ("gptq", {"mix": "loud"}, "mix is 'loud'"),
        ("gptq", {"mix": "minimax", "embeddings": 5}, "embeddings is 5"),
        ("protect", {"k": 1, "group": 32}, "groups of 32 do not divide"),
    ],
)
def test_values_are_checked_before_anything_is_measured(
    untouchable: Evidence, name: str, told: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        made(name, untouchable, **told)


@pytest.mark.parametrize("name", ["mixed", "allocate", "protect", "gptq"])
def test_missing_text_is_noticed_before_anything_is_measured(untouchable: Evidence, name: str) -> None:
    told = {"allocate": {"avg_bits": 4}, "protect": {"k": 1}, "gptq": {"mix": "minimax"}}.get(name, {})
    with pytest.raises(InputError, match=f"{name} reads text of every language"):
        decide(name, untouchable, group=16, **told)
    with pytest.raises(AssertionError, match="was asked"):  # so it is asked when all is well
        made(name, untouchable, **told)


def test_one_block_cannot_be_protected_from_the_others(untouchable: Evidence, saved: Callable[..., Checkpoint]) -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}
    single = saved(t.LlamaForCausalLM(t.LlamaConfig(**size, vocab_size=64)))
    with pytest.raises(InputError, match="the number of blocks is 1; it must be 2 or more"):
        made("protect", dataclasses.replace(untouchable, checkpoint=single), k=1)


def test_allocate_refuses_what_it_cannot_do(untouchable: Evidence) -> None:
    with pytest.raises(InputError, match="allocate needs avg_bits"):
        made("allocate", untouchable)
    with pytest.raises(InputError, match="allocate takes no bits"):
        made("allocate", untouchable, avg_bits=4, bits=4)


@pytest.mark.parametrize(
    ("name", "told", "message"),
    [
        ("rtn", {"avg_bits": 4}, r"rtn takes no avg_bits \(allocate, fair do\); it takes bits, .*, embeddings$"),
        ("gptq", {"k": 3}, r"gptq takes no k \(gateway, protect do\); it takes"),
        ("allocate", {"avg_bits": 4, "bits": 4}, r"allocate takes no bits \(all others do\); it takes"),
    ],
)
def test_a_refused_option_names_who_takes_it(
    untouchable: Evidence, name: str, told: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        made(name, untouchable, **told)


def test_a_group_that_does_not_divide_is_refused_with_those_that_do(untouchable: Evidence) -> None:
    with pytest.raises(InputError, match=r"inputs, which groups of 32 do not divide.*2, 4, 8, 16 would"):
        made("protect", untouchable, group=32)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"bits": 9}, "bits is 9"),
        ({"group": "row"}, "group is 'row'"),
        ({"grid": "midrise"}, "grid is 'midrise'"),
        ({"embeddings": 5}, "embeddings is 5"),
        ({"speed": 3}, "rtn takes no speed; it takes bits, group, grid, embeddings"),
    ],
)
def test_options_that_no_policy_has(untouchable: Evidence, told: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made("rtn", untouchable, **told)


def test_policies_that_read_text_say_that_they_need_it(untouchable: Evidence) -> None:
    with pytest.raises(InputError, match="gptq reads text of every language"):
        decide("gptq", untouchable, group=16)
    with pytest.raises(InputError, match="policy is 'magic'"):
        decide("magic", untouchable)
