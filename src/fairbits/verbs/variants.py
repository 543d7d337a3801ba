"""Variants: a policy with options of its own, written in one word, such as gptq:mix=english."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.errors import InputError
from fairbits.language import Corpus
from fairbits.language.mix import parse_weights
from fairbits.language.text_request import DEFAULT_REQUEST
from fairbits.model.checkpoint import Checkpoint
from fairbits.quantize.evidence import Evidence
from fairbits.quantize.plan import Calibration
from fairbits.quantize.policies import decide, takes

WIDTH = ("bits", "avg_bits")
"""Options that a variant is not written with, as the width is given separately."""


@dataclass(frozen=True)
class Variant:
    """A policy and its options other than the width; `name` is how it was written."""

    name: str
    policy: str
    options: Mapping[str, Any]

    def at(self, bits: int) -> dict[str, Any]:
        """Returns its options at a width; a policy that takes a mean width is given that.

        >>> variant("protect:k=2").at(4)
        {'bits': 4, 'k': 2}
        """
        width = "bits" if "bits" in takes(self.policy) and "avg_bits" not in self.options else "avg_bits"
        return {width: bits, **self.options}


def variant(text: str) -> Variant:
    """Returns the policy and its options in name:option=value:…; what has several parts is joined by plus signs.

    >>> variant("gptq:mix=english").options, variant("gptq:mix=eng=2+fra=1").options
    ({'mix': 'english'}, {'mix': {'eng': 2.0, 'fra': 1.0}})
    """
    policy, *given = str(text).split(":")
    known = [name for name in takes(policy) if name not in WIDTH]
    known += ["avg_bits"] * (len(set(WIDTH) & set(takes(policy))) == 2)  # where a policy can do without
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in known:
            raise InputError(
                f"{text!r:.80} says {each!r:.40} of {policy}; it must read name:option=value, "
                f"the options being {', '.join(known)}"
            )
        options[name] = _value(name, value)
    return Variant(str(text), policy, options)


def check_variants(
    checkpoint: Checkpoint,
    corpus: Corpus,
    variants: Iterable[Variant],
    *,
    widths: Iterable[int],
    common: Mapping[str, Any],
) -> None:
    """Raises unless every variant, with `common` and its own options, can be planned at every width of `widths`.

    Policies check their options before they request evidence, which takes time; here they get no further.
    """
    evidence = Evidence(
        checkpoint, tuple(corpus.calibration), kappa=_enough, sensitivity=_enough, damage=_enough, minimax=_enough
    )
    calibration = Calibration.of(corpus, DEFAULT_REQUEST)
    at = [(each, bits) for each in variants for bits in widths]
    for each, bits in at:
        try:
            decide(each.policy, evidence, calibration=calibration, **{**common, **each.at(bits)})
        except _Enough:
            continue
        except InputError as problem:
            raise InputError(f"{each.name} at {bits} bits: {problem}") from None


class _Enough(Exception):  # noqa: N818  # no error: the policy has checked everything
    pass


def _enough(*_: object) -> Any:
    raise _Enough


def _value(name: str, text: str) -> Any:
    """Returns weights of languages, widths, a number where the text is one, or the text."""
    if name == "mix" and "=" in text:
        return parse_weights(text.replace("+", ","))
    if name == "widths":
        return [_number(each) for each in text.split("+")]
    return _number(text)


def _number(text: str) -> int | float | str:
    """Returns a number where the text is one: nan and inf are codes of languages.

    >>> _number("3"), _number("0.5"), _number("nan")
    (3, 0.5, 'nan')
    """
    for kind in (int, float):
        try:
            return kind(text) if any(map(str.isdecimal, text)) else text
        except ValueError:
            continue
    return text
