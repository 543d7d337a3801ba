import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.task_language import language_in, task_family, task_languages


@pytest.mark.parametrize(
    ("task", "code"),
    [
        ("belebele_fra_Latn", "fra_Latn"),
        ("belebele_arb_Latn", "arb_Latn"),  # not in the catalog, and another language than arb_Arab here
        ("belebele_zho_Hant", "zho_Hant"),
        ("global_mmlu_sw", "swh_Latn"),
        ("global_mmlu_full_sw_us_foreign_policy", "swh_Latn"),
        ("global_piqa_parallel_cloze_acm_arab", "acm_Arab"),
        ("xnli_de", "deu_Latn"),
        ("mgsm_direct_fr", "fra_Latn"),
        ("mgsm_en_cot_fr", "fra_Latn"),
        ("mgsm_native_cot_zh", "zho_Hans"),
        ("lambada_openai_mt_it", "ita_Latn"),
        ("arc_challenge_mt_fi", "fin_Latn"),
        ("afrixnli_amh_prompt_2", "amh_Ethi"),
        ("truthfulqa_hi_mc1", "hin_Deva"),
        ("include_base_44_french_few_shot_en", "fra_Latn"),
        ("fairbits_cloze_heb_Hebr", "heb_Hebr"),
        ("arc_easy", None),
        ("xwinograd_jp", None),
        ("hellaswag", None),
        ("fr", None),
    ],
)
def test_the_language_in_a_name(task, code) -> None:
    assert language_in(task) == code


def test_families_of_translated_tasks() -> None:
    assert task_family("mgsm_en_cot_fr") == task_family("mgsm_en_cot_de") == "mgsm_en_cot_*"
    assert task_family("global_mmlu_full_sw_anatomy") == "global_mmlu_full_*_anatomy"
    assert task_family("arc_easy") == "arc_easy"


def test_languages_may_be_given_by_name_or_pattern() -> None:
    tasks = ["xwinograd_jp", "include_chinese_a", "include_chinese_b", "xnli_de"]
    languages = task_languages(tasks, {"xwinograd_jp": "Japanese", "include_chinese_*": "zho_Hans"})
    assert list(languages.values()) == ["jpn_Jpan", "zho_Hans", "zho_Hans", "deu_Latn"]
    assert task_languages(["mine"], {"mine": "my-dialect"}) == {"mine": "my-dialect"}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "language of hellaswag, arc_easy is not clear .* --language-of hellaswag=eng"),
        ({"boolq": "eng"}, "names boolq, and no task matches it; the tasks are hellaswag, arc_easy"),
        ({"*": "eng lish"}, "language 'eng lish' is unknown"),
    ],
)
def test_unclear_languages_are_refused(named, message) -> None:
    with pytest.raises(InputError, match=message):
        task_languages(["hellaswag", "arc_easy"], named)
