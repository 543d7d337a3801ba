"""What a score means: how many of 100 next tokens change, and whether that is much.

The limits come from a table of real models (docs/scores.md, `benchmarks/score_table.py`). In the worst of 16 languages,
GPTQ on an equal mix changed 1 to 3 % of the first choices at 8 bits, 6 to 12 % at 6, 12 to 23 % at 5 and 24 to 44 % at
4. They are a convention about likelihood: no task and no reader was asked.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairbits.evaluation.profiles import PROFILES
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import short_name

LEVELS = (
    (5.0, "hardly any change"),
    (10.0, "a small change"),
    (25.0, "a clear change"),
    (100.0, "too much for most uses"),
)
"""Up to how many of 100 first choices may change in the worst language, and how that is called."""
SUGGESTED = PROFILES["standard"].changed
"""The limit that fairbits suggests, in percent of the tokens: all 8-bit versions of these models keep it."""
SIGNIFICANT = 0.05
NAMED = 3  # languages that change as much are named if there are at most this many
BITS, LARGEST_GROUP, SMALLER_GROUP = 8, 64, 32


@dataclass(frozen=True)
class Meaning:
    """The language whose first choices change most, in percent of its tokens, and how much its perplexity rises.

    In more than one of 20 resamples of the documents, a language of `close` changes more; `kl_language` has the
    largest divergence.
    """

    language: str
    changed: Estimate
    perplexity: Estimate
    what: str = "next tokens"
    close: tuple[str, ...] = ()
    kl_language: str = ""
    sure: Estimate | None = None  # changed of 100 tokens where the reference's first choice has more than half
    added_words: Estimate | None = None  # how many more words 100 words seem to have, by their bits

    @classmethod
    def of(
        cls,
        frame: LanguageFrame,
        perplexity: Mapping[str, Estimate],
        sure_flips: Mapping[str, Estimate],
        added_words: Mapping[str, Estimate],
        what: str,
        kl_language: str,
    ) -> "Meaning":
        """Returns what the shares of changed tokens mean; `perplexity` is by how much it rises, less 1."""
        shares, drawn = frame.by_language(), frame.bounded
        code = frame.worst()[0]
        close: list[str] = []
        if shares[code].bounded:
            most = np.argmax(drawn.value + drawn.deviation, axis=1)  # in every resample
            often = np.bincount(most, minlength=len(drawn.languages)) / len(most)
            if often[drawn.languages.index(code)] < 1 - SIGNIFICANT:
                close = [drawn.languages[i] for i in np.flatnonzero(often >= SIGNIFICANT / 2)]
        others = tuple(sorted({*close} - {code}, key=lambda other: -shares[other].value))
        changed, sure = (share and share.transform(lambda x: 100 * x) for share in (shares[code], sure_flips.get(code)))
        assert changed is not None
        added = perplexity[code].transform(lambda x: 1 + x)
        return cls(code, changed, added, what, others, kl_language, sure, added_words.get(code))

    @property
    def level(self) -> str:
        return next(words for limit, words in LEVELS if self.changed.value <= limit or limit == LEVELS[-1][0])

    @property
    def acceptable(self) -> bool:
        """Whether the change is at most what is called clear."""
        return self.level != LEVELS[-1][1]

    @property
    def sentence(self) -> str:
        """For example: Finnish changes most: of 100 next tokens, 44 are no longer the reference's first choice …"""
        name, limits = short_name(self.language), self.changed
        interval = f"{100 * limits.confidence:g} % interval {percent(limits.low)} to {percent(limits.high)}"
        interval = interval if limits.bounded else "no interval"
        others = [short_name(code) for code in self.close]
        if len(others) > NAMED:
            others = [f"{len(others)} other languages"]
        other = short_name(self.kl_language or self.language)
        first = f"{', '.join([name, *others[:-1]])} and {others[-1]} change" if others else f"{name} changes"
        which = f", and this text cannot tell which of them most. In {name}, of" if others else ": of"
        return (
            f"{first} most{which} 100 {self.what}, {percent(limits.value)} are no longer the reference's first "
            f"choice ({interval}), and perplexity is multiplied by "
            f"{times(self.perplexity.value)}. That is {self.level}."
            + ("" if self.sure is None else f" Where the reference is sure, {_range(self.sure, 'of 100 change')}.")
            + ("" if self.added_words is None else f" {self._words}")
            + ("" if self.kl_language in ("", self.language) else f" By KL divergence, {other} is worst.")
        )

    @property
    def _words(self) -> str:
        assert self.added_words is not None
        now = _range(self.added_words.transform(lambda x: 100 + x), "words took before", decimals=1)
        return f"Predicting 100 words takes as many bits as {now}."

    def as_data(self) -> dict[str, Any]:
        return asdict(self) | {
            "changed": self.changed.to_dict(),
            "close": list(self.close),
            "perplexity": self.perplexity.to_dict(),
            "sure": self.sure and self.sure.to_dict(),
            "added_words": self.added_words and self.added_words.to_dict(),
            "level": self.level,
            "sentence": self.sentence,
        }


def _range(estimate: Estimate, what: str, *, decimals: int | None = None) -> str:
    """Returns a number, what it counts, and its interval if there is one."""
    numbers = estimate.value, estimate.low, estimate.high
    value, low, high = (percent(x) if decimals is None else f"{x:.{decimals}f}" for x in numbers)
    return f"{value} {what}" + (f" ({low} to {high})" if estimate.bounded else "")


def percent(share: float) -> str:
    """Returns a number of 100 with one decimal if it is below 10.

    >>> percent(43.8), percent(3.26)
    ('44', '3.3')
    """
    return f"{share:.1f}" if share < 9.95 else f"{share:.0f}"


def times(ratio: float) -> str:
    """Returns a ratio with two decimals, or three digits from 10 on.

    >>> times(1.0), times(46.13)
    ('1.00', '46.1')
    """
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.3g}"


def advice_for(target: str) -> str:
    """Returns what to try where a model that fairbits has not quantized changes too much."""
    if target.endswith(".gguf"):
        return "a type with more bits, such as Q6_K, or an importance matrix of all languages (fairbits imatrix)"
    return "more bits, smaller groups, or fairbits run --policy fair"


def advice(settings: Mapping[str, Any], *, policy: str) -> str:
    """Returns what to try where the change is too much: options that the model was not quantized with.

    >>> advice({"bits": 4, "group": 128}, policy="gptq")
    '--policy fair, --group 32, --bits 8'
    """
    group = settings.get("group")
    smaller = not isinstance(group, int) or group > LARGEST_GROUP
    options = [
        *([] if policy.startswith("fair") else ["--policy fair"]),
        *([f"--group {SMALLER_GROUP}"] if smaller else []),
        *([f"--bits {BITS}"] if settings.get("bits", BITS) < BITS else []),
    ]
    return ", ".join(options) or "a larger model"
