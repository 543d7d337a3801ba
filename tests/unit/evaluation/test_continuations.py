"""Prompts from documents, and what is counted in what two writers make of them."""

from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedTokenizerBase

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.evaluation.continuations import (
    PROMPT,
    SHORTEST_PROMPT,
    LanguageJudge,
    TextPrompts,
    choose_prompts,
    is_empty,
    is_loop,
)
from fairbits.evaluation.writer import WrittenText
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import help_text

REQUEST = TextRequest("evaluation", 4096, 512)
FINNISH = "Taulukon rivit ja sarakkeet voidaan poistaa valitsemalla ne ensin hiirellä."
FRENCH = "Les lignes et les colonnes du tableau peuvent être supprimées avec la souris."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return Checkpoint("embedded:tiny").tokenizer()


class Repeater:
    """A writer that gives a text for every prompt by its number."""

    def __init__(self, answer: Callable[[int], WrittenText]) -> None:
        self._answer = answer

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        new_tokens: int,  # noqa: ARG002
        temperature: float = 0.0,
        seed: int = 0,  # noqa: ARG002
        progress: Progress | None = None,  # noqa: ARG002
    ) -> list[WrittenText]:
        assert temperature == 0  # the most probable tokens
        return [self._answer(i) for i in range(len(prompts))]


def documents_of(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **settings: int) -> TextPrompts:
    """Returns the prompts of Finnish documents."""
    return choose_prompts(
        tokenizer, Corpus("c", {}, {"fin": texts}), **{"count": 5, "new_tokens": 8} | settings, request=REQUEST
    )


def test_a_prompt_is_the_beginning_of_a_document_and_what_follows_is_its_own(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    corpus = help_text(["eng", "fin"])
    prompts = choose_prompts(tokenizer, corpus, count=20, new_tokens=16, request=REQUEST)
    assert [prompt.lang for prompt in prompts.prompts].count("fin_Latn") == 20
    for prompt in prompts.prompts:
        document = corpus.evaluation[prompt.lang][prompt.document]
        ids = tokenizer(document, add_special_tokens=False)["input_ids"]
        start = len(prompt.ids) - min(PROMPT, len(ids) // 2)
        assert start in (0, int(tokenizer.bos_token_id is not None))
        assert list(prompt.ids[start:]) == ids[: min(PROMPT, len(ids) // 2)]
        assert tokenizer.decode(prompt.ids[start:]) + prompt.true == tokenizer.decode(
            ids[: len(prompt.ids) - start + 16]
        )
    by_language = {code: {p.document for p in prompts.prompts if p.lang == code} for code in ("eng_Latn", "fin_Latn")}
    assert by_language["eng_Latn"] == by_language["fin_Latn"]  # parallel text: the same documents


def test_short_documents_and_those_that_begin_alike_are_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [f"{FINNISH} {word}" for word in ("yksi", "kaksi", "kolme")]
    different = [f"Rivi numero {i} on tässä taulukossa, ja sen voi poistaa milloin tahansa." for i in range(6)]
    prompts = documents_of(tokenizer, [*texts, "Lyhyt.", *different], count=20)
    beginnings = [prompt.ids for prompt in prompts.prompts]
    assert len(set(beginnings)) == len(beginnings) <= 1 + len(different)
    assert min(map(len, beginnings)) >= SHORTEST_PROMPT
    assert "fewer than 20 documents are long enough" in prompts.notes[-1]
    with pytest.raises(InputError, match="too few documents of 16 tokens or more that begin differently"):
        documents_of(tokenizer, [f"{FINNISH} {i}" for i in range(20)])


def test_languages_that_the_detector_does_not_know_are_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [f"{i}: {FINNISH}" for i in range(6)]
    corpus = Corpus("c", {}, {"fin": texts, "x-mine": texts})
    prompts = choose_prompts(tokenizer, corpus, count=5, new_tokens=8, request=REQUEST)
    assert {prompt.lang for prompt in prompts.prompts} == {"fin_Latn"}
    assert prompts.notes[0] == "generated text: none in x-mine, which py3langid does not know"
    with pytest.raises(InputError, match="py3langid knows none of x-mine"):
        choose_prompts(tokenizer, corpus.restrict(["x-mine"]), count=5, new_tokens=8, request=REQUEST)


def test_what_both_write_is_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    prompts = documents_of(tokenizer, [f"{i}: {FINNISH}" for i in range(8)], count=6)
    english = WrittenText("The rows of this table can be deleted with the mouse at any time.", ended=True)
    before = Repeater(lambda _: WrittenText(FINNISH, ended=True))
    answers = [english, english, WrittenText(" \n", ended=True), WrittenText("rivi ja " * 20, ended=False)]
    after = Repeater(lambda i: answers[i] if i < len(answers) else WrittenText(FINNISH, ended=True))
    counted = prompts.measure(before, after)
    assert counted.flags("wrong", "reference").tolist() == [0] * 6
    assert counted.flags("wrong", "quantized").tolist() == [1, 1, 0, 0, 0, 0]
    assert counted.flags("empty", "quantized").tolist() == [0, 0, 1, 0, 0, 0]
    assert counted.flags("loop", "quantized").tolist() == [0, 0, 0, 1, 0, 0]
    assert counted.instead("fin_Latn", "quantized") == {"eng_Latn": 2}  # always among those that can be detected
    assert counted.language_quantized[2] == ""


def test_the_language_of_a_text_among_those_at_hand() -> None:
    judge = LanguageJudge(["fin_Latn", "fra_Latn", "eng_Latn"])
    assert judge.language(FRENCH, "fin_Latn") == "fra_Latn"
    assert judge.language(FINNISH, "fin_Latn") == "fin_Latn"
    assert judge.language("这些行和列可以随时用鼠标删除。", "fin_Latn") == "zho_Hans"
    assert judge.language("12, 34: ab", "fin_Latn") == ""  # too short to tell
    alike = LanguageJudge(["zho_Hant", "fin_Latn"])  # the detector has one Chinese
    assert alike.language("这些行和列可以随时用鼠标删除。", "zho_Hant") == "zho_Hant"


@pytest.mark.parametrize(
    ("text", "ended", "loops"),
    [
        ("yes yes yes yes ", False, True),
        ("yes yes yes yes ", True, False),  # it came to an end
        ("aaaaaaaaaaaa", False, True),
        ("A long beginning that takes most of this answer, and then no no no", False, False),
        ("one two three four five six seven", False, False),
        ("", False, False),
        ("   ", False, False),
    ],
)
def test_a_loop_repeats_itself_up_to_the_limit(text: str, ended: bool, loops: bool) -> None:
    assert is_loop(WrittenText(text, ended)) is loops


def test_an_answer_is_empty_if_nothing_of_it_is_visible() -> None:
    assert [is_empty(WrittenText(text, ended=True)) for text in ("", " \n", "\u200b", "a")] == [True, True, True, False]
