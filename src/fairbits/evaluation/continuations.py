"""Continuations: prompts from the beginnings of documents, and what two writers make of them.

A prompt is the first PROMPT tokens of a document, or half of its tokens if these are fewer: what the document goes on
with shows how often the detector is wrong about text that is in the language. English and Chinese are always among the
languages that it chooses from, because that is what models often write in place of another language.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.evaluation.generated_text import GeneratedText
from fairbits.evaluation.writer import TextWriter, WrittenText
from fairbits.forward.generation import continued_text, decode_text
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.detect import Detector, alike_languages
from fairbits.text.documents import clean, seeded_hash
from fairbits.text.language_codes import find_languages

PROMPT, SHORTEST_PROMPT = 32, 8  # tokens of a prompt, at most and at least
ENCODED_AT_ONCE = 64
ALWAYS = ("eng_Latn", "zho_Hans")  # languages that the detector always chooses from
LEAST_BYTES = 16  # bytes of the letters of a text, without which its language is not detected
LOOP_TIMES, LOOP_SHARE = 3, 1 / 3  # how often a loop has its piece, and its share of the answer, at least
INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not a character


@dataclass(frozen=True)
class DocumentPrompt:
    """The beginning of a document in tokens, and the text that follows it there; translations share a number."""

    lang: str
    document: int
    ids: tuple[int, ...]
    true: str


@dataclass(frozen=True)
class TextPrompts:
    """The prompts of every language that can be detected; `notes` say what is left out."""

    prompts: tuple[DocumentPrompt, ...]
    new_tokens: int
    notes: tuple[str, ...] = ()

    def measure(
        self, reference: TextWriter, quantized: TextWriter, *, progress: Progress | None = None
    ) -> GeneratedText:
        """Returns what both write after the prompts by their most probable tokens, one writer after the other."""
        ids, lang = [prompt.ids for prompt in self.prompts], [prompt.lang for prompt in self.prompts]
        before, after = (
            writer.answers(ids, new_tokens=self.new_tokens, progress=progress) for writer in (reference, quantized)
        )
        pairs = zip(self.prompts, after, strict=True)
        true = [WrittenText(prompt.true[: len(answer.text)], ended=True) for prompt, answer in pairs]
        judge = LanguageJudge(lang)

        def detected(texts: Sequence[WrittenText]) -> NDArray[np.str_]:
            return np.array([judge.language(text.text, code) for text, code in zip(texts, lang, strict=True)])

        def flags(holds: Callable[[WrittenText], bool], texts: Sequence[WrittenText]) -> NDArray[np.int64]:
            return np.array(list(map(holds, texts)), dtype=np.int64)

        return GeneratedText(
            new_tokens=self.new_tokens,
            prompt_tokens=PROMPT,
            lang=np.array(lang),
            document=np.array([prompt.document for prompt in self.prompts], dtype=np.int64),
            language_reference=detected(before),
            language_quantized=detected(after),
            language_true=detected(true),
            loop_reference=flags(is_loop, before),
            loop_quantized=flags(is_loop, after),
            empty_reference=flags(is_empty, before),
            empty_quantized=flags(is_empty, after),
        )


def choose_prompts(
    tokenizer: PreTrainedTokenizerBase, corpus: Corpus, *, count: int, new_tokens: int, request: TextRequest
) -> TextPrompts:
    """Returns up to `count` prompts per language, from documents in the seeded order of an evaluation.

    Documents that are too short are left out, as are those that begin like another; of parallel text in all languages.
    """
    whole("generate, the number of answers per language,", count, least=LEAST_DOCUMENTS)
    whole("new_tokens", new_tokens, least=1)
    able = {language.code for alike in alike_languages(corpus.languages).values() for language in alike}
    texts = {code: documents for code, documents in corpus.split(request.split).items() if code in able}
    unknown = [language.code for language in corpus.languages if language.code not in able]
    prompts: list[DocumentPrompt] = []
    for group in [texts] if corpus.parallel else [{code: documents} for code, documents in texts.items()]:
        for index, row in islice(_beginnings(tokenizer, group, new_tokens=new_tokens, seed=request.seed), count):
            number = index if corpus.parallel else len(prompts)
            prompts += [DocumentPrompt(code, number, *parts) for code, parts in row.items()]
    counts = Counter(prompt.lang for prompt in prompts)
    few = {code: counts[code] for code in texts if counts[code] < count}
    listed = ", ".join(f"{code} {number}" for code, number in few.items())
    if not texts:
        raise InputError(
            f"py3langid knows none of {', '.join(unknown)}, so that the language of generated text cannot be detected; "
            "name others with --languages, or leave --generate out"
        )
    if min(counts[code] for code in texts) < LEAST_DOCUMENTS:
        raise InputError(
            f"{corpus.name} has too few documents of {2 * SHORTEST_PROMPT} tokens or more that begin differently "
            f"({listed}); {LEAST_DOCUMENTS} are needed in every language: add text, or leave --generate out"
        )
    notes = [f"generated text: none in {', '.join(unknown)}, which py3langid does not know"] if unknown else []
    if few:
        notes.append(f"generated text: fewer than {count} documents are long enough and begin differently: {listed}")
    return TextPrompts(tuple(prompts), new_tokens, tuple(notes))


def _beginnings(
    tokenizer: PreTrainedTokenizerBase, texts: Mapping[str, Sequence[str]], *, new_tokens: int, seed: int
) -> Iterator[tuple[int, dict[str, tuple[tuple[int, ...], str]]]]:
    """Yields the index of a document and, in every language, its beginning and what follows; not the same one twice."""
    order = sorted(range(len(next(iter(texts.values()), ()))), key=lambda i: seeded_hash(seed, i))
    before: set[tuple[str, tuple[int, ...]]] = set()
    for start in range(0, len(order), ENCODED_AT_ONCE):
        part = order[start : start + ENCODED_AT_ONCE]
        coded = {
            code: tokenizer([documents[i] for i in part], add_special_tokens=False, verbose=False)["input_ids"]
            for code, documents in texts.items()
        }
        for place, index in enumerate(part):
            row = {code: _beginning(tokenizer, ids[place], new_tokens) for code, ids in coded.items()}
            keys = {(code, ids) for code, (ids, _) in row.items()}
            if all(true for _, true in row.values()) and not keys & before:
                before |= keys
                yield index, row


def _beginning(tokenizer: PreTrainedTokenizerBase, ids: list[int], new_tokens: int) -> tuple[tuple[int, ...], str]:
    """Returns the prompt that a document begins with, and the text of the new tokens after it; "" if it is short."""
    size = min(PROMPT, len(ids) // 2)
    while size and INCOMPLETE in decode_text(tokenizer, ids[:size])[-1:]:  # not within a character
        size -= 1
    if size < SHORTEST_PROMPT:
        return (), ""
    start = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    prompt = (*start, *ids[:size])
    return prompt, continued_text(tokenizer, prompt, ids[size : size + new_tokens])


class LanguageJudge:
    """Says in which language a text is, of those of the prompts and of ALWAYS."""

    def __init__(self, languages: Iterable[str]) -> None:
        named = [*dict.fromkeys(languages)]
        self._alike = alike_languages(find_languages([*named, *(code for code in ALWAYS if code not in named)]))
        self._detector = Detector(self._alike)

    def language(self, text: str, expected: str) -> str:
        """Returns the language of a text, "" if it has too few letters; `expected` if it may be that one."""
        plain = clean(text.replace(INCOMPLETE, ""))
        if len("".join(filter(str.isalpha, plain)).encode()) < LEAST_BYTES:
            return ""
        detected = self._detector.detect(plain).language.code
        return expected if any(expected == language.code for language in self._alike[detected]) else detected


def is_empty(answer: WrittenText) -> bool:
    """Returns whether no character of an answer is visible."""
    return not clean(answer.text)


def is_loop(answer: WrittenText) -> bool:
    """Returns whether an answer that was cut off ends in repetitions of one piece.

    The piece occurs at least LOOP_TIMES in a row, the last time perhaps in part, up to the end, and this takes at least
    LOOP_SHARE of the answer.

    >>> is_loop(WrittenText("It is a cat. A dog. A dog. A dog. A d", ended=False))
    True
    >>> is_loop(WrittenText("It is a cat and it is a dog. A dog. A dog.", ended=False))
    False
    """
    codes = np.frombuffer(answer.text.encode("utf-32-le", "replace"), dtype=np.uint32)[::-1]
    if answer.ended or not clean(answer.text):
        return False
    for period in range(1, len(codes) // LOOP_TIMES + 1):
        differs = np.flatnonzero(codes[period:] != codes[:-period])
        size = (int(differs[0]) if differs.size else len(codes) - period) + period
        if size >= max(LOOP_TIMES * period, LOOP_SHARE * len(codes)):
            return True
    return False
