"""What must hold of every question, checked on real text by other code than that which makes them."""

import re
import unicodedata

import pytest

from fairbits.text.corruption import sentence_spans
from fairbits.text.documents import fold_text
from fairbits.text.included_texts import help_text, udhr
from fairbits.text.negation_words import OPPOSITES
from fairbits.text.questions import (
    LONGEST_CONTEXT,
    MAKERS,
    SIMILAR,
    changed_names,
    changed_numbers,
    following,
    negations,
    obstacle,
    proper_names,
    translations,
)

LANGUAGES = ["eng_Latn", "heb_Hebr", "zho_Hans", "tha_Thai", "hin_Deva", "arb_Arab", "jpn_Jpan", "rus_Cyrl"]
NUMBERS = {
    "eng": "In 1948 the assembly met in Paris. The text of 1948 has 30 articles. All 30 were read on the 1st day.",
    "arb": "اجتمعت الجمعية العامة في عام ١٩٤٨. نشر النص في نهاية عام ١٩٤٨ في باريس.",
    "hin": "महासभा की बैठक 1948 में हुई। यह पाठ सन् 1948 में प्रकाशित हुआ था। इसमें ३० लेख हैं। सभी ३० लेख पढ़े गए थे।",
    "zho": "大会于1948年在巴黎举行了会议。该文本于1948年12月公布，共有三十条。",
    "fra": "La surface est de 12,5 hectares ou 3 lots. Elle passe de 12,5 à 14 hectares en 2 ans avec 3 lots.",
}
NAMES = {
    "eng": [
        "The physicist Marie Curie was born in Warsaw. In Paris, Curie worked with her husband Pierre for years.",
        "The painter Claude Monet lived in Giverny, near the river. Many friends came to Giverny to see the garden.",
        "The writer Jane Austen lived near Chawton with family. From there the novels of Austen went to London.",
    ],
    "rus": [
        "Поэт Александр Пушкин родился в городе Москва. Позднее сам Пушкин писал о том, как жил там.",
        "Писатель Антон Чехов жил в городе Ялта. Там знаменитый Чехов написал несколько пьес и рассказов.",
    ],
}


def declaration(code):
    return udhr([code]).evaluation[code]


def all_questions(code, seed=0):
    documents, english = declaration(code), declaration("eng_Latn")
    questions = {kind: list(maker(documents, seed)) for kind, maker in MAKERS.items()}
    questions["negation"] = [] if obstacle("negation", code) else negations(documents, seed, code)
    return questions | {"translation": list(translations(english, documents, seed))}


def difference(question):
    """Returns where the right choice of two differs from the wrong one: the two parts that are not equal."""
    right, wrong = question.right, question.choices[1 - question.answer]
    start = next(i for i, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b)
    end = next(i for i, (a, b) in enumerate(zip(right[::-1], wrong[::-1], strict=False)) if a != b)
    end = min(end, len(right) - start, len(wrong) - start)
    return right[start : len(right) - end], wrong[start : len(wrong) - end]


@pytest.mark.parametrize("code", LANGUAGES)
def test_choices_differ_and_the_same_seed_gives_the_same(code) -> None:
    questions = all_questions(code)
    assert all_questions(code) == questions
    others = all_questions(code, seed=1)
    for kind, asked in questions.items():
        assert len({(question.context, fold_text(question.right)) for question in asked}) == len(asked)
        for question in asked:
            assert (
                len(set(map(fold_text, question.choices)))
                == len(question.choices)
                == (4 if kind in ("next", "translation") else 2)
            )
        if len(asked) >= 10:
            assert {question.answer for question in asked} == set(range(len(asked[0].choices)))
            assert others[kind] != asked
    assert len(questions["next"]) >= 10
    assert len(questions["translation"]) >= 20 or code == "eng_Latn"


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_right_choice_follows_and_the_others_are_of_other_documents(code) -> None:
    documents = declaration(code)
    for question in following(documents, 0):
        home = [document for document in documents if question.context + question.right in document]
        assert len(home) == 1
        assert 0 < len(question.context) <= LONGEST_CONTEXT
        start = home[0].index(question.context + question.right)
        assert start in {first for first, _ in sentence_spans(home[0])}
        for choice in question.choices:
            assert choice.strip() in "\n".join(documents)
            assert (choice.strip() in home[0]) is (choice == question.right)
            assert 1 / SIMILAR**2 <= len(choice) / len(question.right) <= SIMILAR**2


@pytest.mark.parametrize("language", NUMBERS)
def test_exactly_one_number_differs_and_the_context_has_the_right_one(language) -> None:
    digits = re.compile(r"\d+")
    questions = list(changed_numbers([NUMBERS[language]], 0))
    assert len(questions) == {"eng": 2, "hin": 2}.get(language, 1)
    for question in questions:
        right, wrong = (digits.findall(choice) for choice in (question.right, question.choices[1 - question.answer]))
        differing = [(a, b) for a, b in zip(right, wrong, strict=True) if a != b]
        assert len(differing) == 1
        ((old, new),) = differing
        assert old in digits.findall(question.context)
        assert new not in digits.findall(question.context) + right
        assert len(old) == len(new)
        zeros = {ord(digit) - unicodedata.digit(digit) for digit in old + new}
        assert len(zeros) == 1  # one system of digits
        assert question.context + question.right in NUMBERS[language]
        assert digits.split(question.right) == digits.split(question.choices[1 - question.answer])


def test_numbers_in_the_help_are_of_the_context() -> None:
    documents = help_text(["jpn"]).evaluation["jpn_Jpan"]
    questions = list(changed_numbers(documents, 0))
    assert len(questions) >= 5
    for question in questions:
        old, new = difference(question)
        assert (len(old), len(new), old.isdigit(), new.isdigit()) == (1, 1, True, True)
        assert any(question.context + question.right in document for document in documents)


@pytest.mark.parametrize(
    "text",
    [
        "The 1st day was long and the 21st too. The 1st day was long and the 21st too.",
        "It cost 3.50 or 1,000 in all, at 12:30. It cost 3.50 or 1,000 in all, at 12:30.",
        "Nobody came to the hall in 1948. There were two of them in 1949, as is known.",
    ],
)
def test_numbers_that_are_parts_or_not_in_the_context_stay(text) -> None:
    assert list(changed_numbers([text], 0)) == []


@pytest.mark.parametrize("language", NAMES)
def test_one_name_of_the_context_is_exchanged_for_another(language) -> None:
    documents = NAMES[language]
    names = proper_names(documents)
    questions = list(changed_names(documents, 0))
    assert len(questions) == len(documents)
    for question in questions:
        right, wrong = (
            re.findall(r"\w+", choice) for choice in (question.right, question.choices[1 - question.answer])
        )
        differing = [(a, b) for a, b in zip(right, wrong, strict=True) if a != b]
        assert len(differing) == 1
        ((old, new),) = differing
        assert old in re.findall(r"\w+", question.context)
        assert new not in re.findall(r"\w+", question.context) + right
        assert {old, new} <= names
        assert any(question.context + question.right in document for document in documents)


def test_names_have_capitals_inside_sentences_and_no_lower_case() -> None:
    assert proper_names(
        ["Every State of the United Nations, every Declaration. A state has rights. Human Rights."]
    ) == {
        "Declaration",
        "Nations",
        "United",
    }
    assert proper_names(["Là vive l’Italie et l’État, dit Zoé. Où vit Zoé ?"]) == {"Zoé"}


def test_languages_without_names_or_words_of_negation_are_explained() -> None:
    assert "noun" in obstacle("name", "deu_Latn")
    assert "no capital letters" in obstacle("name", "heb_Hebr")
    assert "table" in obstacle("negation", "zho_Hans")
    assert obstacle("negation", "heb_Hebr") is obstacle("name", "eng_Latn") is obstacle("next", "deu_Latn") is None


def test_letters_that_do_not_fold_back_are_no_words_of_the_table() -> None:
    assert negations(["Este es un texto antiguo, ſin embargo, que habla de reyes y de nobles."], 0, "spa_Latn") == []
    assert negations(["İma mnogo ljudi u gradu i na trgu ove zime."], 0, "hrv_Latn") == []


@pytest.mark.parametrize("code", ["eng_Latn", "deu_Latn", "heb_Hebr", "hin_Deva", "spa_Latn", "kor_Hang", "por_Latn"])
def test_one_word_says_the_opposite_in_each_direction_as_often(code) -> None:
    documents = declaration(code)
    pairs = OPPOSITES[code[:3]].items()
    both = {frozenset(pair) for pair in pairs}
    questions = negations(documents, 0, code)
    says_no = 0
    for question in questions:
        right = question.right.strip()
        wrong = question.choices[1 - question.answer].strip()
        assert any(right in document for document in documents)
        swaps = [
            (no, yes, right == exchanged, right)
            for no, yes in [*pairs, *((yes, no) for no, yes in pairs)]
            for match in re.finditer(re.escape(no), right, re.IGNORECASE)
            if (exchanged := fold_text(right[: match.start()] + yes + right[match.end() :])) == fold_text(wrong)
        ]
        assert swaps
        assert frozenset(swaps[0][:2]) in both
        says_no += swaps[0][0] in OPPOSITES[code[:3]]
    assert questions
    assert says_no * 2 == len(questions)


def test_words_of_negation_are_whole_words() -> None:
    text = ["साथी लोग यहाँ बहुत खुश रहते हैं आज।", "वह दोस्त के बिना नहीं रहता है आज।", "वह दोस्त के साथ यहाँ रहता है आज।"]
    questions = negations(text, 0, "hin_Deva")
    assert {question.right for question in questions} == set(text[1:])
    assert (
        len(negations(["Without a word, they all went home.", "With a word, nobody-else went home."], 0, "eng_Latn"))
        == 2
    )


def test_the_table_of_words_has_no_word_on_both_sides() -> None:
    assert len(OPPOSITES) <= 40
    for pairs in OPPOSITES.values():
        words = [*pairs, *pairs.values()]
        assert len(set(words)) == len(words)
        assert all(unicodedata.is_normalized("NFC", word) and word == word.lower() for word in words)


@pytest.mark.parametrize("code", LANGUAGES[1:])
def test_the_right_choice_is_the_translation(code) -> None:
    corpus = udhr(["eng_Latn", code])
    english, documents = corpus.evaluation["eng_Latn"], corpus.evaluation[code]
    for question in translations(english, documents, 0):
        (i,) = [i for i, document in enumerate(english) if question.context in document]
        right = question.right.strip()
        assert right in documents[i]
        lines, others = english[i].split("\n"), documents[i].split("\n")
        if question.context in lines and len(lines) == len(others):
            assert others[lines.index(question.context)].strip() == right
        else:
            assert (question.context, right) == (english[i], documents[i])
        for choice in question.choices:
            assert choice.startswith("\n")
            assert (choice.strip() in documents[i]) is (choice == question.right)
            assert 1 / SIMILAR**2 <= len(choice) / len(question.right) <= SIMILAR**2


def test_documents_of_different_numbers_of_lines_are_taken_whole() -> None:
    first = [
        f"The {word} document has one line.\nAnd a second one here." for word in ("first", "next", "third", "last")
    ]
    second = [f"Le {word} document n'a qu'une seule ligne ici." for word in ("premier", "deuxième", "autre", "dernier")]
    questions = list(translations(first, second, 0))
    assert [(question.context, question.right) for question in questions] == [
        (a, f"\n{b}") for a, b in zip(first, second, strict=True)
    ]
