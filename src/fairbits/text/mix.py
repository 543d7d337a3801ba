"""Calibration mixes as files for other tools (GPTQ weighs languages by its option `mix`): samples and a manifest."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from itertools import count as whole_numbers
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from fairbits.core.checks import instance, one_of, positive, whole
from fairbits.core.errors import InputError
from fairbits.core.files import check_writable, write_files
from fairbits.core.progress import Progress
from fairbits.core.records import (
    Code,
    Count,
    Digest,
    Kind,
    Matching,
    Name,
    Number,
    Positive,
    Weight,
    check_record,
    check_same_keys,
    check_sum,
    check_within,
    parse_object,
    to_json,
)
from fairbits.text.corpus import Corpus
from fairbits.text.documents import seeded_hash
from fairbits.text.language_codes import find_language
from fairbits.text.samples import TokenCounter, TokenEnds, cut_samples, token_counter, token_ends, tokenizer_fingerprint

MOST_SAMPLES = 64  # the most samples per language, on average, of a mix without a budget
MOST_TOKENS = 10**12
NAMED = 10  # how many languages an error lists by name
WEIGHTINGS = ("equal", "proportional")

Weights = str | Mapping[str, float]
LanguageShares = Mapping[str, Fraction]  # the share of each language in the tokens of a mix, by its code; they sum to 1


@dataclass(frozen=True)
class Sample:
    """A text of one language and its number of tokens, including those that the tokenizer adds."""

    text: Name
    lang: Code
    tokens: Positive


@dataclass(frozen=True)
class LanguagePart:
    """What one language has in a mix; where bytes per token are low, a budget of tokens buys little text."""

    samples: Positive
    tokens: Positive
    bytes: Positive
    bytes_per_token: Number


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the samples of a mix come from: text, tokenizer and request.

    `hashes` are of the calibration documents, `rounds` says which text was used more than once, and a `budget` of None
    means as many tokens as the text allowed.
    """

    model: str | None
    corpus: str
    hashes: Mapping[Code, Digest]
    tokenizer: Digest
    sequence: Positive
    budget: Positive | None
    weights: Annotated[str, Matching("equal|proportional|given", "equal, proportional or given")]
    shares: Mapping[Code, Weight]
    seed: Count
    rounds: Mapping[Code, Annotated[Positive, Ge(2)]]
    notes: tuple[str, ...]


ORIGIN = tuple(field.name for field in fields(Origin))


@dataclass(frozen=True, kw_only=True)
class MixManifest(Origin):
    """The content of the manifest: the origin of the samples, their SHA-256, and how many there are."""

    sha256: Digest
    languages: Mapping[Code, LanguagePart]
    short_samples: Count

    def __post_init__(self) -> None:
        check_same_keys("shares", self.shares, "languages", self.languages)
        check_same_keys("shares", self.shares, "hashes", self.hashes)
        check_within("rounds", self.rounds, "shares", self.shares)
        check_sum("shares", self.shares)


MIX = Kind("fairbits.mix/1", "the manifest of a mix", "fairbits mix", MixManifest)


@dataclass(frozen=True, kw_only=True)
class Mix(Origin):
    """Samples for calibration, and where they come from."""

    samples: tuple[Sample, ...]

    @cached_property
    def languages(self) -> Mapping[str, LanguagePart]:
        parts = {}
        for code in self.shares:
            texts = [sample for sample in self.samples if sample.lang == code]
            tokens, size = sum(sample.tokens for sample in texts), sum(len(sample.text.encode()) for sample in texts)
            parts[code] = LanguagePart(len(texts), tokens, size, round(size / tokens, 4) if tokens else 0)
        return parts

    @cached_property
    def jsonl(self) -> bytes:
        """One JSON object per line with `text`, `lang` and `tokens`; in ASCII, so that no locale can misread it."""
        return b"".join(json.dumps(asdict(sample)).encode() + b"\n" for sample in self.samples)

    @property
    def short_samples(self) -> int:
        return sum(sample.tokens < self.sequence for sample in self.samples)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        content = {
            "sha256": hashlib.sha256(self.jsonl).hexdigest(),
            "languages": {code: asdict(part) for code, part in self.languages.items()},
            "short_samples": self.short_samples,
        }
        return MIX.stamp(content | {name: getattr(self, name) for name in ORIGIN})

    def save(self, path: str | Path) -> None:
        """Writes the samples to `path` and the manifest next to it; older files are replaced by both or by none."""
        path = check_mix_path(path)
        write_files({path: self.jsonl, manifest_path(path): to_json(self.manifest)})

    @staticmethod
    def load(path: str | Path) -> "Mix":
        path = Path(path).resolve()
        try:
            data = path.read_bytes()
        except OSError as error:
            advice = "a mix is two files, as `fairbits mix` writes them"
            raise InputError(f"{path} cannot be read ({error.strerror}); {advice}") from None
        manifest = MIX.read(manifest_path(path))
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            raise InputError(
                f"{path} does not match {manifest_path(path).name}; a mix must be as it was saved: build it again"
            )
        rows = [parse_object(line, f"{path}:{i}") for i, line in enumerate(data.splitlines(), start=1)]
        samples = check_record(tuple[Sample, ...], rows, source=str(path))
        mix = Mix(samples=samples, **{name: getattr(manifest, name) for name in ORIGIN})
        try:
            check_within("a sample", (sample.lang for sample in samples), "shares", mix.shares)
            _check_counts(mix, manifest)
        except InputError as problem:
            raise InputError(f"{path} and its manifest differ: {problem}; build the mix again") from None
        return mix


def manifest_path(path: Path) -> Path:
    """Returns the path of the manifest of a mix: calib.jsonl.manifest.json next to calib.jsonl."""
    return path.with_name(path.name + ".manifest.json")


def _check_counts(mix: Mix, manifest: MixManifest) -> None:
    for code, part in mix.languages.items():
        for name, number in asdict(part).items():
            stated = getattr(manifest.languages[code], name)
            if number != stated:
                raise InputError(f"languages.{code}.{name} is {stated:,}; the samples have {number:,}")
    if mix.short_samples != manifest.short_samples:
        raise InputError(f"short_samples is {manifest.short_samples:,}; the samples have {mix.short_samples:,}")


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
    language. The budget of `tokens` is spent in whole samples: each language gets its share to within one sample.
    Without a budget the mix is as large as the scarcest language allows, up to 64 samples per language. Each document
    is used once unless `repeat` is set. `model` and `notes` are recorded in the mix.
    """
    instance("corpus", corpus, Corpus)
    corpus = corpus if languages is None else corpus.restrict(languages)
    whole("seed", seed, least=0)
    sampler = _Sampler(corpus, token_counter(tokenizer), token_ends(tokenizer), sequence, seed, progress)
    pi = _shares(weights, sampler)
    if tokens is None:
        if repeat:
            raise InputError("repeat is set without tokens; a mix that repeats text needs a budget: give tokens")
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
    """Returns the weights that a user wrote: equal, proportional or a number per language."""
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
            rule = "they must be equal, proportional or a number per language: eng=2,fra=1"
            raise InputError(f"weights are {text!r}; {rule}") from None
    return weights


def weights_by_code(weights: Mapping[str, float], codes: Sequence[str]) -> dict[str, float]:
    """Returns the weight of each code; raises unless the weights are positive and name each language once."""
    by_code = {
        find_language(name, user_codes=codes).code: positive(f"the weight of {name}", weight)
        for name, weight in weights.items()
    }
    if len(by_code) < len(weights) or set(by_code) != set(codes):
        raise InputError(f"weights name {', '.join(weights)}; they must name each of {', '.join(codes)} once")
    return {code: by_code[code] for code in codes}


def allocate(shares: LanguageShares, samples: int) -> dict[str, int]:
    """Returns the number of samples that each language gets: its share, rounded so that the sum is not exceeded.

    What rounding down leaves goes to the largest remainders; equal remainders get one each or none.
    """
    counts = {code: int(share * samples) for code, share in shares.items()}
    remainder = {code: share * samples - counts[code] for code, share in shares.items()}
    for _, group in groupby(sorted(remainder, key=lambda code: -remainder[code]), key=lambda code: remainder[code]):
        codes = list(group)
        if sum(counts.values()) + len(codes) > samples:
            break
        counts |= {code: counts[code] + 1 for code in codes}
    return counts


def interleave(samples: Mapping[str, Sequence[Sample]], seed: int) -> tuple[Sample, ...]:
    """Returns all samples in one order; sample i of n of a language is at a random place from i/n to (i + 1)/n."""
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
        codes = list(self.corpus.calibration)
        samples: list[Sample] = []
        cut = cut_samples(self._documents(code, repeat=repeat), self.sequence, count=self.count, ends=self.ends)
        for text, tokens in islice(cut, number):
            samples.append(Sample(text, code, tokens))
            if self.progress:
                self.progress("cutting samples", codes.index(code) + len(samples) / number, len(codes))
        return samples

    def tokens(self, code: str) -> int:
        return sum(self.count(document) - self.added for document in self.corpus.calibration[code])

    def _documents(self, code: str, *, repeat: bool) -> Iterator[str]:
        documents = self.corpus.calibration[code]
        # text without tokens would be repeated forever
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
    return samples, tuple(f"{code}: text used {rounds} times" for code, rounds in sampler.rounds.items() if rounds > 1)


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


def check_mix_path(path: str | Path) -> Path:
    """Returns the path that a mix saved at `path` will have, with links followed, if it can be written there."""
    target = check_writable(path, example="calib.jsonl")
    check_writable(manifest_path(target), example="calib.jsonl")
    return target
