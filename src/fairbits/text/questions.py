"""Questions with several choices, one of them right, made from nothing but text: any text in any language.

The right choice is what the text says; the wrong ones are other sentences of the language, or the same sentence with a
number, a name or a word of negation changed. Hashes of a seed and the text decide, so that every run gives the same.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairbits.text.corruption import DENSE, sentence_spans, usable
from fairbits.text.documents import fold_text, seeded_hash
from fairbits.text.language_codes import language_from_code
from fairbits.text.negation_words import OPPOSITES

LONGEST_CONTEXT = 400  # characters of text before a sentence; half as many of Han, kana or hangul
WRONG_CHOICES = 3
NEAREST = 8  # how many others of the nearest length the wrong ones are chosen from
SIMILAR = 1.5  # a wrong choice is at most so many times as long or as short as the right one
WINDOW = 64  # how many neighbours by length are looked at on either side
SHORTEST_PROPER_NAME = 3
CASED_SCRIPTS = frozenset({"Adlm", "Armn", "Copt", "Cyrl", "Grek", "Latn", "Osge"})
NOUNS_HAVE_CAPITALS = frozenset({"bar", "deu", "gsw", "ksh", "ltz", "nds", "pdc", "pfl", "swg"})
NUMBER = re.compile(r"(?<!\d)(?<!\d[.,:/٫٬’'-])\d+(?![.,:/٫٬’'-]?\d)")
WORD = re.compile(r"[^\W\d_](?:[^\W\d_\u0300-\u036f]|[\u0300-\u036f]|['’](?=[^\W\d_]))*")
INSIDE = re.compile(r"[\w,;] $")
"""What stands before a word inside a sentence."""


@dataclass(frozen=True)
class Question:
    """A context and choices of what follows it, with the white space before it; `answer` is the number of the right."""

    context: str
    choices: tuple[str, ...]
    answer: int

    @property
    def right(self) -> str:
        return self.choices[self.answer]


@dataclass(frozen=True)
class Passage:
    """A sentence, the text before it in its document, the white space between, and the number of the document."""

    before: str
    space: str
    sentence: str
    document: int

    def question(self, wrong: Iterable[str], seed: int) -> Question:
        """Returns the question what follows the text before: the sentence or one of the wrong ones."""
        ordered = [self.space + choice for choice in wrong]
        place = _draw(len(ordered) + 1, seed, "place", self.before, self.sentence)
        ordered.insert(place, self.space + self.sentence)
        return Question(self.before, tuple(ordered), place)


class SimilarLength:
    """Texts in the order of their length, each with the number of its document."""

    def __init__(self, texts: Iterable[tuple[str, int]]) -> None:
        self._ordered = sorted((len(text), text, fold_text(text), document) for text, document in dict.fromkeys(texts))
        self._lengths = [length for length, *_ in self._ordered]

    def others(self, text: str, document: int, forbidden: str, seed: int) -> list[str] | None:
        """Returns three texts of other documents, about as long, none of them in the forbidden text; None if too few.

        The forbidden text must be folded.
        """
        middle = bisect_left(self._lengths, len(text))
        near = {
            folded: other
            for length, other, folded, owner in self._ordered[max(middle - WINDOW, 0) : middle + WINDOW]
            if owner != document and len(text) / SIMILAR <= length <= len(text) * SIMILAR
        }
        fitting = [other for folded, other in near.items() if folded not in forbidden and folded != fold_text(text)]
        fitting = sorted(fitting, key=lambda other: (abs(len(other) - len(text)), other))[:NEAREST]
        if len(fitting) < WRONG_CHOICES:
            return None
        return sorted(fitting, key=lambda other: seeded_hash(seed, text, other))[:WRONG_CHOICES]


def obstacle(kind: str, code: str) -> str | None:
    """Returns why a language has no questions of this kind whatever the text; None if it may have some."""
    language = code.partition("_")[0]
    if kind == "name" and language_from_code(code).script not in CASED_SCRIPTS:
        return "its script has no capital letters"
    if kind == "name" and language in NOUNS_HAVE_CAPITALS:
        return "every noun begins with a capital letter"
    if kind == "negation" and language not in OPPOSITES:
        return "the table of words of negation does not have it"
    return None


def following(documents: Sequence[str], seed: int) -> Iterator[Question]:
    """Returns for every sentence with text before it: it, or one of three of other documents."""
    pool = SimilarLength((passage.sentence, passage.document) for passage in _passages(documents))
    whole = [fold_text(document) for document in documents]
    for passage in _passages(documents):
        if passage.before:
            wrong = pool.others(passage.sentence, passage.document, whole[passage.document], seed)
            if wrong is not None:
                yield passage.question(wrong, seed)


def changed_numbers(documents: Sequence[str], seed: int) -> Iterator[Question]:
    """Returns for every sentence with a number of the text before it: it, or it with another digit in that number."""
    for passage in _passages(documents):
        earlier = {match.group() for match in _numbers(passage.before)}
        present = earlier | {match.group() for match in _numbers(passage.sentence)}
        able = [match for match in _numbers(passage.sentence) if match.group() in earlier]
        others = {match: _other_numbers(match.group(), present) for match in able}
        if able := [match for match in able if others[match]]:
            chosen = able[_draw(len(able), seed, "number", passage.sentence)]
            other = others[chosen][_draw(len(others[chosen]), seed, "other", passage.sentence)]
            yield passage.question([_replaced(passage.sentence, chosen, other)], seed)


def changed_names(documents: Sequence[str], seed: int) -> Iterator[Question]:
    """Returns for every sentence with a proper name of the text before it: it, or it with another name of the text.

    A name is a word that begins with a capital inside a sentence and is nowhere in lower case: a heuristic.
    """
    names = proper_names(documents)
    ordered = sorted(names)
    for passage in _passages(documents):
        earlier = {match.group() for match in WORD.finditer(passage.before)}
        present = earlier | {match.group() for match in WORD.finditer(passage.sentence)}
        able = [match for match in WORD.finditer(passage.sentence) if match.group() in names & earlier]
        if able:
            chosen = able[_draw(len(able), seed, "name", passage.sentence)]
            length = len(chosen.group())
            near = sorted((abs(len(name) - length), name) for name in ordered if name not in present)[:NEAREST]
            if near:
                other = near[_draw(len(near), seed, "other", passage.sentence)][1]
                yield passage.question([_replaced(passage.sentence, chosen, other)], seed)


def proper_names(documents: Iterable[str]) -> frozenset[str]:
    """Returns the words that begin with a capital inside a sentence and are nowhere in lower case."""
    capital: set[str] = set()
    lower: set[str] = set()
    for document in documents:
        for match in WORD.finditer(document):
            word = match.group()
            if word[0].islower():
                lower.add(word.casefold())
            elif (
                len(word) >= SHORTEST_PROPER_NAME
                and word[0].isupper()
                and word[1:].islower()
                and INSIDE.search(document, max(match.start() - 2, 0), match.start())
            ):
                capital.add(word)
    return frozenset(word for word in capital if word.casefold() not in lower)


def negations(documents: Sequence[str], seed: int, code: str) -> list[Question]:
    """Returns for every sentence with one of the words: it, or it with the opposite word.

    Half of the right choices have the word that says no, so that a model that always prefers one kind is right in half
    of the cases.
    """
    denials = OPPOSITES[code.partition("_")[0]]
    opposites = {**denials, **{word: denial for denial, word in denials.items()}}
    pattern = re.compile("|".join(sorted(opposites, key=len, reverse=True)), re.IGNORECASE)
    sides: tuple[dict[str, Question], dict[str, Question]] = ({}, {})
    for passage in _passages(documents):
        matches = (match for match in pattern.finditer(passage.sentence) if match.group().lower() in opposites)
        able = [match for match in matches if _alone(passage.sentence, match)]
        if able:
            chosen = able[_draw(len(able), seed, "negation", passage.sentence)]
            word = chosen.group()
            other = opposites[word.lower()]
            other = other[0].upper() + other[1:] if word[0].isupper() else other
            question = passage.question([_replaced(passage.sentence, chosen, other)], seed)
            sides[word.lower() in denials].setdefault(passage.sentence, question)
    return [question for pair in zip(*(side.values() for side in sides), strict=False) for question in pair]


def translations(source: Sequence[str], documents: Sequence[str], seed: int) -> Iterator[Question]:
    """Returns for every document of the source that is not long: its translation, or one of three others.

    Documents with the same number of lines in both are taken line by line.
    """
    pieces = [
        (original, text, i)
        for i, (first, second) in enumerate(zip(source, documents, strict=True))
        for original, text in _aligned(first, second)
        if usable(original) and usable(text)
    ]
    pool = SimilarLength((text, i) for _, text, i in pieces)
    for original, text, i in pieces:
        wrong = pool.others(text, i, fold_text(documents[i]), seed)
        if wrong is not None:
            yield Passage(original, "\n", text, i).question(wrong, seed)


def _aligned(first: str, second: str) -> list[tuple[str, str]]:
    lines = [[line.strip() for line in text.split("\n") if line.strip()] for text in (first, second)]
    return list(zip(*lines, strict=True)) if len(lines[0]) == len(lines[1]) else [(first, second)]


def _passages(documents: Sequence[str]) -> Iterator[Passage]:
    """Returns the sentences that are neither short nor long, with as many whole ones before as the context allows."""
    for number, document in enumerate(documents):
        spans = sentence_spans(document)
        longest = LONGEST_CONTEXT // (2 if DENSE.search(document) else 1)
        first = 0
        for i, (start, end) in enumerate(spans):
            while start - spans[first][0] > longest:
                first += 1
            if usable(sentence := document[start:end]):
                before = document[spans[first][0] : spans[i - 1][1]] if first < i else ""
                before = "" if before.isdigit() else before  # lm-eval would take it for the number of a choice
                space = document[spans[i - 1][1] : start] if before else ""
                yield Passage(before, space, sentence, number)


def _numbers(text: str) -> list[re.Match[str]]:
    """Returns the numbers that stand alone: no parts of dates, decimals or words, such as 1st."""

    def cased(character: str) -> bool:
        return character.lower() != character.upper() or character == "_"

    return [
        match
        for match in NUMBER.finditer(text)
        if not any(map(cased, text[max(match.start() - 1, 0) : match.start()] + text[match.end() : match.end() + 1]))
    ]


def _other_numbers(number: str, present: set[str]) -> list[str]:
    """Returns the numbers that differ in the last digit and are not present; none ends in zero if it would be zero."""
    zero = ord(number[-1]) - int(number[-1])
    others = [number[:-1] + chr(zero + digit) for digit in range(0 if len(number) > 1 else 1, 10)]
    return [other for other in others if other not in present]


def _alone(text: str, match: re.Match[str]) -> bool:
    """Returns whether what was matched is a word and no part of one; letters, marks and hyphens would join it."""
    neighbours = text[max(match.start() - 1, 0) : match.start()] + text[match.end() : match.end() + 1]
    return not any(
        character in "-_'’־\u2010\u200c\u200d" or unicodedata.category(character)[0] in "LMN"
        for character in neighbours
    )


def _replaced(sentence: str, match: re.Match[str], other: str) -> str:
    return sentence[: match.start()] + other + sentence[match.end() :]


def _draw(count: int, seed: int, *parts: str) -> int:
    return int.from_bytes(seeded_hash(seed, *parts)[:8]) % count


MAKERS: Mapping[str, Callable[[Sequence[str], int], Iterable[Question]]] = {
    "next": following,
    "number": changed_numbers,
    "name": changed_names,
}
"""The kinds that need nothing but the documents of a language and a seed."""
