"""What every policy decides, and what it refuses before any evidence is requested."""

from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.quantization import policies
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.policies import decide

LANGUAGES = ("eng_Latn", "heb_Hebr", "hin_Deva")
BLIND = ("aciq", "kappa", "mse")


@pytest.mark.parametrize(
    ("name", "clip", "objective", "rounding"),
    [
        ("rtn", "absmax", None, "nearest"),
        ("aciq", "gaussian", None, "nearest"),
        ("kappa", "kappa", None, "nearest"),
        ("mse", "exact", None, "nearest"),
        ("weighted", "exact", "mean", "nearest"),
        ("laaciq", "exact", "worst", "nearest"),
        ("mixed", "exact", "mean", "gptq"),
        ("gateway", "exact", "mean", "gptq"),
        ("protect", "exact", "mean", "gptq"),
        ("gptq", "exact", "mean", "gptq"),
        ("fair", "exact", "mean", "gptq"),
    ],
)
def test_scheme_of_each_policy(
    llama: Evidence,
    name: str,
    clip: str,
    objective: str,
    rounding: str,
    make_plan: Any,
    rounded_layers: Any,
    schemes: Any,
) -> None:
    options = {"gateway": {"k": 2}, "protect": {"k": 1}}.get(name, {})
    plan = make_plan(name, llama, **options)
    assert plan.policy == name
    assert {(scheme.clip, scheme.objective, scheme.rounding) for scheme in schemes(plan)} == {
        (clip, objective, rounding)
    }
    assert len(rounded_layers(plan)) == 14  # seven linear layers in each of two blocks
    assert plan.reads_text == policies.find_policy(name).reads_text
    assert plan.languages
    assert plan.calibration is not None  # those that read no text are measured on it, layer by layer
    assert any("destroy" in note for note in plan.notes) == (name in BLIND)


def test_every_policy_can_be_imported_by_its_name() -> None:
    assert {name: getattr(policies, name) for name in policies.POLICIES} == policies.POLICIES


def test_the_default_policy_weights_by_inputs(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    bits_alike = ["rtn", "aciq", "kappa", "mse", "weighted", "laaciq", "gptq"]
    assert sorted(policies.POLICIES) == sorted([*bits_alike, "mixed", "allocate", "gateway", "protect", "fair", "auto"])
    plan = make_plan(policies.DEFAULT, llama)
    assert all(scheme.objective == "mean" for scheme in schemes(plan))
    assert plan.languages == pytest.approx(dict.fromkeys(LANGUAGES, 1 / 3))


@pytest.mark.parametrize(
    ("name", "options", "message"),
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
    unmeasured: Evidence, name: str, options: dict[str, Any], message: str, make_plan: Any
) -> None:
    with pytest.raises(InputError, match=message):
        make_plan(name, unmeasured, **options)


@pytest.mark.parametrize("name", ["mixed", "allocate", "protect", "gptq"])
def test_missing_text_is_noticed_before_anything_is_measured(unmeasured: Evidence, name: str, make_plan: Any) -> None:
    options = {"allocate": {"avg_bits": 4}, "protect": {"k": 1}, "gptq": {"mix": "minimax"}}.get(name, {})
    with pytest.raises(InputError, match=f"{name} needs text of every language"):
        decide(name, unmeasured, group=16, **options)
    with pytest.raises(AssertionError, match="was requested"):  # so it is asked when all is well
        make_plan(name, unmeasured, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rtn", {"avg_bits": 4}, r"rtn does not take avg_bits \(allocate, fair do\); it takes scheme, bits, .*, keep$"),
        ("gptq", {"k": 3}, r"gptq does not take k \(gateway, protect do\); it takes"),
        ("allocate", {"avg_bits": 4, "bits": 4}, r"allocate does not take bits \(all others do\); it takes"),
    ],
)
def test_a_refused_option_names_the_policies_that_take_it(
    unmeasured: Evidence, name: str, options: dict[str, Any], message: str, make_plan: Any
) -> None:
    with pytest.raises(InputError, match=message):
        make_plan(name, unmeasured, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 9}, "bits is 9"),
        ({"group": "row"}, "group is 'row'"),
        ({"grid": "midrise"}, "grid is 'midrise'"),
        ({"embeddings": 5}, "embeddings is 5"),
        ({"speed": 3}, "rtn does not take speed; it takes scheme, bits, group, grid, embeddings"),
    ],
)
def test_bad_values_of_common_options(
    unmeasured: Evidence, options: dict[str, Any], message: str, make_plan: Any
) -> None:
    with pytest.raises(InputError, match=message):
        make_plan("rtn", unmeasured, **options)


def test_policies_that_read_text_say_that_they_need_it(unmeasured: Evidence) -> None:
    with pytest.raises(InputError, match="gptq needs text of every language"):
        decide("gptq", unmeasured, group=16)
    with pytest.raises(InputError, match="policy is 'magic'"):
        decide("magic", unmeasured)
