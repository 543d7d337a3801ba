import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.paired_samples import pair_samples
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.outcomes import OutcomeFrame

BEFORE, AFTER = [1, 1, 1, 0, 1, 0], [1, 0, 0, 1, 1, 0]


def paired(lm_eval_run, before, after, **settings):
    runs = [lm_eval_run(name, tasks) for name, tasks in (("before", before), ("after", after))]
    return pair_samples(*runs, **settings)


def test_items_are_paired_by_their_document(lm_eval_run, lm_eval_sample) -> None:
    turned = [lm_eval_sample(i, {"acc": AFTER[i]}) for i in reversed(range(6))]
    samples = paired(lm_eval_run, {"xnli_de": BEFORE, "xnli_fr": BEFORE}, {"xnli_de": turned, "xnli_fr": BEFORE})
    assert samples.right_or_wrong
    assert isinstance(samples.frame, OutcomeFrame)
    assert samples.frame.changes == {"deu_Latn": (2, 1), "fra_Latn": (0, 0)}
    assert samples.scores == {"deu_Latn": (4 / 6, 3 / 6), "fra_Latn": (4 / 6, 4 / 6)}
    assert set(samples.item.tolist()) == {f"xnli_*:{i}" for i in range(6)}  # translations share their ids
    assert samples.notes == ()


def test_several_tasks_of_a_language_are_pooled(lm_eval_run) -> None:
    before = {"xnli_de": BEFORE, "mgsm_direct_de": BEFORE, "xnli_fr": BEFORE}
    after = {**before, "xnli_de": AFTER}
    samples = paired(lm_eval_run, before, after)
    assert samples.tasks == {"deu_Latn": ("mgsm_direct_de", "xnli_de"), "fra_Latn": ("xnli_fr",)}
    assert samples.frame.by_language()["deu_Latn"].n == 12
    assert "their items are pooled with equal weight (deu_Latn: mgsm_direct_de, xnli_de)" in samples.notes[0]
    alone = paired(lm_eval_run, before, after, tasks="xnli_*")
    assert alone.frame.by_language()["deu_Latn"].n == 6


def test_two_names_of_one_language_do_not_clash(lm_eval_run) -> None:
    both = {"xnli_de": BEFORE, "xnli_deu_Latn": AFTER}
    assert paired(lm_eval_run, both, both).frame.by_language()["deu_Latn"].n == 12


def test_other_scores_are_resampled(lm_eval_run) -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random((2, 30)).tolist()
    samples = paired(lm_eval_run, {"xnli_de": before}, {"xnli_de": after})
    assert type(samples.frame) is LanguageFrame
    assert samples.frame.by_language()["deu_Latn"].value == pytest.approx(np.mean(before) - np.mean(after))


def test_bits_per_byte_are_sums_and_worse_if_higher(lm_eval_run) -> None:
    runs = [
        lm_eval_run(name, {"bits_fra_Latn": [[-10.0 * times - i % 4, 20] for i in range(9)]}, metric="bits_per_byte")
        for name, times in (("before", 1), ("after", 2))
    ]
    samples = pair_samples(*runs)
    assert (samples.metric.name, samples.metric.higher_is_better, samples.frame.unit) == (
        "bits_per_byte",
        False,
        "bits_per_byte",
    )
    assert samples.frame.by_language()["fra_Latn"].value == pytest.approx(0.5 / np.log(2))


METRICS = {"acc": 1.0, "acc_norm": 0.0, "exact_match": 1.0}


@pytest.mark.parametrize(
    ("has", "wanted", "chosen"),
    [
        (METRICS, None, "acc"),
        (METRICS, "acc_norm", "acc_norm"),
        ({"f1": 0.5, "exact_match": 1.0}, None, "exact_match"),
        ({"f1": 0.5}, None, "f1"),
    ],
)
def test_the_metric_that_decides(lm_eval_run, lm_eval_sample, has, wanted, chosen) -> None:
    lines = {"xnli_de": [lm_eval_sample(i, has) for i in range(6)]}
    assert paired(lm_eval_run, lines, lines, metric=wanted).metric.name == chosen


@pytest.mark.parametrize(
    ("has", "wanted", "message"),
    [
        (
            METRICS,
            "f1",
            r"--metric is 'f1'; it must be one that all tasks have \(acc, acc_norm, exact_match\)",
        ),
        ({"f1": 1, "em": 1}, None, r"no metric is the usual one .*\(f1, em\): give --metric NAME"),
        ({"perplexity": -3.0}, None, "perplexity is a number of the whole text, not of an item; use --metric acc"),
        ({"bleu": ["a", "b"]}, None, "an item's bleu is .'a', 'b'., from which lm-eval computes one number"),
        ({"oddity": 1.0}, None, "not known whether a higher oddity is better"),
    ],
)
def test_metrics_that_cannot_decide_are_refused(lm_eval_run, lm_eval_sample, has, wanted, message) -> None:
    lines = {"xnli_de": [lm_eval_sample(i, has) for i in range(6)]}
    with pytest.raises(InputError, match=message):
        paired(lm_eval_run, lines, lines, metric=wanted)


def test_tasks_without_a_common_metric_are_refused(lm_eval_run, lm_eval_sample) -> None:
    lines = {"xnli_de": BEFORE, "squad_de": [lm_eval_sample(i, {"f1": 0.5, "em": 1}) for i in range(6)]}
    with pytest.raises(InputError, match=r"no metric in common \(squad_de has f1, em; xnli_de has acc\); choose tasks"):
        paired(lm_eval_run, lines, lines)


def test_results_say_which_direction_is_better(lm_eval_run) -> None:
    lower_is_better = {"higher_is_better": {"xnli_de": {"oddity": False}}}
    runs = [lm_eval_run(name, {"xnli_de": BEFORE}, metric="oddity", **lower_is_better) for name in ("before", "after")]
    assert not pair_samples(*runs).metric.higher_is_better
    unknown = {"higher_is_better": {"xnli_de": {"oddity": None}}}
    runs = [lm_eval_run(name, {"xnli_de": [1, 0]}, metric="oddity", **unknown) for name in ("before", "after")]
    with pytest.raises(InputError, match="it is not known whether a higher oddity is better"):
        pair_samples(*runs)


def test_one_of_several_filters_must_be_named(lm_eval_run, lm_eval_sample) -> None:
    lines = {
        "mgsm_direct_de": [
            lm_eval_sample(i, {"exact_match": 1}, filter=name) for name in ("strict", "loose") for i in range(6)
        ]
    }
    with pytest.raises(
        InputError, match=r"have 2 filters of answers in common; .*\(strict, loose\): give --filter NAME"
    ):
        paired(lm_eval_run, lines, lines)
    with pytest.raises(InputError, match="--filter is 'lose'"):
        paired(lm_eval_run, lines, lines, filter_name="lose")
    assert paired(lm_eval_run, lines, lines, filter_name="loose").filter == "loose"


@pytest.mark.parametrize(("name", "what"), [("doc_hash", "text"), ("prompt_hash", "prompt"), ("target_hash", "target")])
def test_another_item_is_refused(lm_eval_run, lm_eval_sample, name, what) -> None:
    other = [lm_eval_sample(i, {"acc": 1}, **({name: "f" * 64} if i == 3 else {})) for i in range(6)]
    with pytest.raises(InputError, match=rf"xnli_de: document 3 has another {what} after than before \({name}\)"):
        paired(lm_eval_run, {"xnli_de": BEFORE}, {"xnli_de": other})


def test_other_sets_of_items_and_tasks_are_refused(lm_eval_run) -> None:
    with pytest.raises(InputError, match="xnli_de has 6 items before and 5 items after, and document 5 is in one"):
        paired(lm_eval_run, {"xnli_de": BEFORE}, {"xnli_de": AFTER[:5]})
    both = {"xnli_de": BEFORE, "xnli_fr": BEFORE}
    lm_eval_run("one", {"xnli_de": BEFORE})
    before, after = lm_eval_run("two", both), lm_eval_run("one", {"xnli_de": BEFORE})
    with pytest.raises(InputError, match=r"different tasks \(1 only before, 0 only after: xnli_fr\)"):
        pair_samples(before, after)
    with pytest.raises(InputError, match=r"--tasks is 'mgsm_\*' and matches none of xnli_de, xnli_fr"):
        pair_samples(before, before, tasks="mgsm_*")
    assert pair_samples(before, after, tasks="*_de").tasks == {"deu_Latn": ("xnli_de",)}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"versions": {"xnli_de": 2}}, "xnli_de was not the same task: versions was 1 before and is 2 after"),
        ({"n-shot": {"xnli_de": 5}}, "n-shot was 0 before and is 5 after"),
        ({"configs": {"xnli_de": {"doc_to_text": "{{a}}"}}}, "doc_to_text was None before and is '{{a}}' after"),
        ({"chat_template_sha": "abc"}, "chat_template_sha was None before and is 'abc' after"),
    ],
)
def test_another_task_is_refused(lm_eval_run, results, message) -> None:
    before = lm_eval_run("before", {"xnli_de": BEFORE})
    with pytest.raises(InputError, match=message):
        pair_samples(before, lm_eval_run("after", {"xnli_de": BEFORE}, **results))


def test_functions_in_configurations_are_left_aside_and_versions_of_software_noted(lm_eval_run) -> None:
    runs = [
        lm_eval_run(
            name,
            {"xnli_de": BEFORE},
            configs={"xnli_de": {"doc_to_text": f"<function text at 0x{name}>"}},
            lm_eval_version=version,
        )
        for name, version in (("aa", "0.4.12"), ("bb", "0.4.13"))
    ]
    assert pair_samples(*runs).notes == ("lm_eval_version: 0.4.12 before, 0.4.13 after",)


def test_without_results_versions_are_not_compared(lm_eval_run) -> None:
    runs = [lm_eval_run(name, {"xnli_de": BEFORE}) for name in ("before", "after")]
    for run in runs:
        next(run.rglob("results*")).unlink()
    assert [note.partition(": ")[2] for note in pair_samples(*runs).notes] == [
        "no results_*.json for xnli_de; versions of tasks are not compared"
    ] * 2
