"""The calibration mix: samples of one language each, in given shares of a token budget, for any quantization tool."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count as whole_numbers
from itertools import groupby, islice
from typing import Any

from fairbits.core.checks import instance, one_of, positive, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.text.corpus import Corpus
from fairbits.text.documents import seeded_hash
from fairbits.text.language_codes import find_language
from fairbits.text.mix_file import Mix, Sample
from fairbits.text.samples import TokenCounter, TokenEnds, cut_samples, token_counter, token_ends, tokenizer_fingerprint

MOST_SAMPLES = 64
"""The most samples per language, on average, of a mix without a budget."""
MOST_TOKENS = 10**12
NAMED = 10
"""Languages that an error lists; of more it gives the number."""
WEIGHTINGS = ("equal", "proportional")

Weights = str | Mapping[str, float]
LanguageShares = Mapping[str, Fraction]
"""The share of each language in the tokens of a mix, by its code; they sum to 1."""


def build_mix(
    corpus: Corpus,
    tokenizer: Any,
    *,
    languages: Iterable[str] | None = None,
    weights: Weights = "equal",
    tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    repeat: bool = False,
    model: str | None = None,
    notes: Iterable[str] = (),
    progress: Progress | None = None,
) -> Mix:
    """Returns samples of `sequence` tokens from the calibration text, each of one language, mixed by seed.

    `weights` are "equal" tokens per language, "proportional" to the tokens of its calibration text, or numbers per
    language. The budget of `tokens` is spent in whole samples: each language gets its share to within one sample,
    and languages of equal weight get equally many samples. Without a budget the mix is as large as the scarcest
    language allows, up to 64 samples per language. The seed decides the order of documents, which is the same in every
    language of a parallel corpus. Each document is used once, unless `repeat` allows to start over. `model`, the owner
    of the tokenizer, and `notes` on it are recorded in the mix.
    """
    instance("corpus", corpus, Corpus)
    corpus = corpus if languages is None else corpus.restrict(languages)
    sampler = _Sampler(
        corpus,
        token_counter(tokenizer),
        token_ends(tokenizer),
        sequence=sequence,
        seed=whole("seed", seed, least=0),
        progress=progress,
    )
    pi = _shares(weights, sampler)
    if tokens is None:
        if repeat:
            raise InputError("repeat is given without tokens; a mix that repeats text must have a budget: give tokens")
        samples, note = _as_large_as_possible(pi, sampler)
    else:
        samples, note = _spend_budget(pi, sampler, tokens=tokens, repeat=repeat)
    return Mix(
        samples=interleave(samples, seed),
        model=model,
        corpus=corpus.name,
        hashes=dict(corpus.hashes["calibration"]),
        tokenizer=tokenizer_fingerprint(tokenizer),
        sequence=sequence,
        budget=tokens,
        weights=weights if isinstance(weights, str) else "given",
        shares={code: float(share) for code, share in pi.items()},
        seed=seed,
        rounds={code: rounds for code, rounds in sampler.rounds.items() if rounds > 1},
        notes=(*notes, *corpus.notes, *note),
    )


def parse_weights(text: str) -> Weights:
    """Returns the weights that a user wrote: equal, proportional or a number per language.

    >>> parse_weights("eng=2,fra=1")
    {'eng': 2.0, 'fra': 1.0}
    """
    if text in WEIGHTINGS:
        return text
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        name = name.strip()
        if name in weights:
            raise InputError(f"weights name {name} twice; they must name each language once")
        try:
            weights[name] = float(number)
        except ValueError:
            raise InputError(
                f"weights are {text!r}; they must be equal, proportional or a number per language: eng=2,fra=1"
            ) from None
    return weights


def weights_by_code(weights: Mapping[str, float], codes: Sequence[str]) -> dict[str, float]:
    """Returns the weight of each code; raises unless the weights are positive and name each language once.

    >>> weights_by_code({"fr": 1.0, "English": 2.0}, ["eng_Latn", "fra_Latn"])
    {'eng_Latn': 2.0, 'fra_Latn': 1.0}
    """
    given = {find_language(name, own=codes).code: positive(f"the weight of {name}", weights[name]) for name in weights}
    if len(given) < len(weights) or set(given) != set(codes):
        raise InputError(f"weights name {', '.join(weights)}; they must name each of {', '.join(codes)} once")
    return {code: given[code] for code in codes}


def allocate(shares: LanguageShares, samples: int) -> dict[str, int]:
    """Returns the number of samples that each language gets: its share, rounded so that the sum is not exceeded.

    The samples left after rounding down go to the largest remainders; languages with the same remainder get one
    each or none, so that equal shares stay equal.

    >>> allocate({"eng": Fraction(2, 3), "fra": Fraction(1, 3)}, 10)
    {'eng': 7, 'fra': 3}
    >>> allocate({"eng": Fraction(1, 2), "fra": Fraction(1, 2)}, 5)
    {'eng': 2, 'fra': 2}
    """
    exact = {code: share * samples for code, share in shares.items()}
    counts = {code: int(number) for code, number in exact.items()}
    remainder = {code: exact[code] - counts[code] for code in counts}
    for _, group in groupby(sorted(remainder, key=lambda code: -remainder[code]), key=lambda code: remainder[code]):
        codes = list(group)
        if sum(counts.values()) + len(codes) > samples:
            break
        counts |= {code: counts[code] + 1 for code in codes}
    return counts


def interleave(samples: Mapping[str, Sequence[Sample]], seed: int) -> tuple[Sample, ...]:
    """Returns the samples of all languages in one order, in which every beginning has about the same shares.

    Sample i of the n samples of a language gets a random position between i/n and (i + 1)/n.
    """
    placed = [
        ((i + int.from_bytes(seeded_hash(seed, "place", code, i)[:6]) / 2**48) / len(texts), code, i)
        for code, texts in samples.items()
        for i in range(len(texts))
    ]
    return tuple(samples[code][i] for _, code, i in sorted(placed))


@dataclass
class _Sampler:
    """Makes samples of the calibration text; `rounds` counts how often the text of each language was read."""

    corpus: Corpus
    count: TokenCounter
    ends: TokenEnds | None
    sequence: int
    seed: int
    progress: Progress | None = None
    rounds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A sample needs more than a handful of tokens, in addition to those that the tokenizer adds.
        self.added = self.count("")
        whole("sequence", self.sequence, least=self.added + 8, most=MOST_TOKENS)

    def samples(self, code: str, number: int, *, repeat: bool = False) -> list[Sample]:
        """Returns up to `number` samples; fewer if there is not enough text."""
        codes = list(self.corpus.calibration)
        made: list[Sample] = []
        cut = cut_samples(self._documents(code, repeat=repeat), self.sequence, count=self.count, ends=self.ends)
        for text, tokens in islice(cut, number):
            made.append(Sample(text, code, tokens))
            if self.progress:
                self.progress("cutting samples", codes.index(code) + len(made) / number, len(codes))
        return made

    def tokens(self, code: str) -> int:
        """Returns the tokens of the calibration text of a language."""
        return sum(self.count(document) - self.added for document in self.corpus.calibration[code])

    def _documents(self, code: str, *, repeat: bool) -> Iterator[str]:
        documents = self.corpus.calibration[code]
        # text without tokens would be repeated for ever
        repeat = repeat and any(self.count(document) > self.added for document in documents)
        for number in whole_numbers(1) if repeat else (1,):
            self.rounds[code] = number
            for i in sorted(range(len(documents)), key=lambda i: seeded_hash(self.seed, number, i)):
                yield documents[i]


def _shares(weights: Weights, sampler: _Sampler) -> dict[str, Fraction]:
    codes = list(sampler.corpus.calibration)
    if isinstance(weights, Mapping):
        exact = {code: Fraction(weight) for code, weight in weights_by_code(weights, codes).items()}
    elif one_of("weights", weights, WEIGHTINGS) == "equal":
        exact = dict.fromkeys(codes, Fraction(1))
    else:
        exact = {code: Fraction(sampler.tokens(code)) for code in codes}
    total = sum(exact.values())
    if not total:
        raise InputError(f"{sampler.corpus.name} has no calibration text; a mix needs some")
    return {code: weight / total for code, weight in exact.items()}


def _spend_budget(
    pi: LanguageShares, sampler: _Sampler, *, tokens: int, repeat: bool
) -> tuple[dict[str, list[Sample]], tuple[str, ...]]:
    wanted = allocate(pi, whole("tokens", tokens, least=1, most=MOST_TOKENS) // sampler.sequence)
    _check_none_empty(wanted, f"a budget of {tokens:,} tokens", sampler.sequence)
    samples = {code: sampler.samples(code, number, repeat=repeat) for code, number in wanted.items()}
    lacking = [
        f"{code} {(wanted[code] - len(texts)) * sampler.sequence:,} tokens (it has {sampler.tokens(code):,})"
        for code, texts in samples.items()
        if len(texts) < wanted[code]
    ]
    if lacking:
        raise InputError(
            f"the calibration text of {sampler.corpus.name} lacks {_listed(lacking, '; ')}: each language must have "
            f"text for its share of {tokens:,} tokens; lower the budget, shorten the sequence ({sampler.sequence}), "
            "add text or allow it to repeat"
        )
    repeated = [f"{code}: text used {rounds} times" for code, rounds in sampler.rounds.items() if rounds > 1]
    return samples, tuple(repeated)


def _as_large_as_possible(pi: LanguageShares, sampler: _Sampler) -> tuple[dict[str, list[Sample]], tuple[str, ...]]:
    total = most = MOST_SAMPLES * len(pi)
    wanted = allocate(pi, most)
    _check_none_empty(wanted, f"a mix of {most:,} samples, the largest without a budget,", sampler.sequence)
    scarcest = None
    samples: dict[str, list[Sample]] = {}
    for code in pi:
        samples[code] = sampler.samples(code, wanted[code])
        if len(samples[code]) < wanted[code]:  # the other languages need no more than fits these
            scarcest, total = code, int(len(samples[code]) / pi[code])
            wanted = allocate(pi, total)
    while any(number > len(samples[code]) for code, number in wanted.items()):  # a share was rounded up
        total -= 1
        wanted = allocate(pi, total)
    if scarcest is None:
        return samples, (f"no budget given: {MOST_SAMPLES} samples per language",)
    has = sampler.tokens(scarcest)
    lacks = f" ({sampler.sequence - has:,} too few)" if has < sampler.sequence else ""
    _check_none_empty(wanted, f"the calibration text of {scarcest}, {has:,} tokens{lacks},", sampler.sequence)
    note = f"no budget given: as many samples as the text of {scarcest} allows"
    return {code: samples[code][: wanted[code]] for code in pi}, (note,)


def _check_none_empty(wanted: Mapping[str, int], what: str, sequence: int) -> None:
    without = [code for code, number in wanted.items() if number == 0]
    if without:
        raise InputError(
            f"{what} gives no whole sample of {sequence:,} tokens to {_listed(without, ', ')}; every language must "
            "get one: shorten the sequence, or give more tokens and text"
        )


def _listed(items: Sequence[str], separator: str) -> str:
    rest = len(items) - NAMED
    return separator.join((*items[:NAMED], *([f"{rest} more"] if rest > 0 else [])))
