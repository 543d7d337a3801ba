"""Tasks of lm-eval in YAML files: what is read, and what is refused in a sentence with the file and the key."""

import pytest
import yaml

from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.task_files import read_tasks

KEYS = {
    "task": "wind_eng",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "wind.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": ["north", "south"],
    "doc_to_target": 0,
}


@pytest.fixture
def write(tmp_path):
    """Returns the function that writes a task, with some keys changed, and gives its directory."""

    def write(file: str = "wind.yaml", text: str = "", **changed):
        keys = {key: value for key, value in (KEYS | changed).items() if value != "–"}
        (tmp_path / file).write_text(text or yaml.safe_dump(keys, sort_keys=False), "utf-8")
        return tmp_path

    return write


def test_a_task_has_the_settings_of_lm_eval(write, tmp_path) -> None:
    (task,) = read_tasks(write())
    assert task.data_files == (tmp_path / "wind.jsonl",)
    assert [metric.metric for metric in task.metrics] == ["acc", "acc_norm"]
    assert task.config.items() >= {"target_delimiter": " ", "num_fewshot": 0, "description": "", "repeats": 1}.items()
    (task,) = read_tasks(write(output_type="–", doc_to_choice="–"))
    expected = {"temperature": 0.0, "do_sample": False, "max_gen_toks": 256, "until": ["\n\n"]}
    assert (task.output_type, task.config["generation_kwargs"]) == ("generate_until", expected)
    (task,) = read_tasks(
        write(output_type="–", doc_to_choice="–", generation_kwargs={"until": ".", "temperature": 0.0})
    )
    assert (task.until, task.new_tokens) == ((".",), 256)


def test_files_include_others_and_groups_name_tasks(write) -> None:
    shared = yaml.safe_dump({key: value for key, value in KEYS.items() if key != "task"})
    write("_shared", text=shared)
    for name in ("wind_eng", "wind_fra", "rain_eng"):
        write(
            f"{name}.yaml",
            text=f"include: _shared\ntask: {name}\ntag: tagged_{name[-3:]}\ntest_split: all\n"
            "dataset_kwargs: {data_files: {all: a.jsonl}}\n",
        )
    write("group.yaml", text="group: wind\ntask: [wind_eng, wind_fra]\n")
    directory = write("outer.yaml", text="group: outer\ntask: [wind, rain_eng]\naggregate_metric_list: []\n")

    def names(*wanted):
        return [task.task for task in read_tasks(directory, wanted or None)]

    assert names() == names("outer") == ["rain_eng", "wind_eng", "wind_fra"]
    assert names("wind") == ["wind_eng", "wind_fra"]
    assert names("tagged_eng", "wind_eng") == ["rain_eng", "wind_eng"]
    assert names("*_fra") == ["wind_fra"]
    assert read_tasks(directory)[0].split == "all"
    with pytest.raises(InputError, match="has no task 'snow'; it has"):
        names("snow")
    write("outer.yaml", text="group: outer\ntask: [wind, outer]\n")
    with pytest.raises(InputError, match=r"has no task 'outer' .in the group outer."):
        names("outer")
    write("outer.yaml", text="group: outer\ntask: [{task: wind_eng, num_fewshot: 2}]\n")
    with pytest.raises(InputError, match=r"the group outer in .* has more than names of tasks"):
        names("outer")


def test_a_task_that_is_not_wanted_may_be_anything(write) -> None:
    directory = write()
    write("other.yaml", text="task: other\ndoc_to_text: !function utils.text\ndataset_path: a/b\n")
    assert [task.task for task in read_tasks(directory, ["wind_*"])] == ["wind_eng"]
    with pytest.raises(InputError, match=r"other.yaml: doc_to_text is a !function, whose Python code is not executed"):
        read_tasks(directory)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_fewshot": 5}, "num_fewshot is 5; it must be 0"),
        ({"repeats": 2}, "repeats is 2; it must be 1"),
        ({"process_docs": "strip"}, "the key process_docs is unknown"),
        ({"gen_prefix": "A"}, "the key gen_prefix is unknown"),
        ({"dataset_path": "facebook/belebele"}, "dataset_path is 'facebook/belebele'; it must be json"),
        ({"dataset_kwargs": "–"}, "dataset_kwargs is missing"),
        ({"dataset_kwargs": {"data_dir": "x"}}, "dataset_kwargs"),
        ({"output_type": "embedding"}, "output_type is 'embedding'; it must be"),
        ({"doc_to_choice": "–"}, "doc_to_choice is missing"),
        ({"doc_to_target": "–"}, "doc_to_text or doc_to_target is missing"),
        ({"metric_list": [{"metric": "f1"}]}, "metric_list has 'f1'"),
        ({"metric_list": [{"metric": "acc", "aggregation": "median"}]}, "aggregation of acc must be mean"),
        (
            {"filter_list": [{"name": "x", "filter": [{"function": "majority_vote"}]}]},
            "filter_list.0.filter.0.function",
        ),
        ({"filter_list": [{"name": "x", "filter": [{"function": "regex"}]}]}, "the last step must be take_first"),
        ({"output_type": "generate_until", "generation_kwargs": {"do_sample": True}}, "do_sample is True"),
        ({"output_type": "generate_until", "generation_kwargs": {"temperature": 0.5}}, "temperature is 0.5"),
        ({"output_type": "generate_until", "generation_kwargs": {"top_k": 3}}, "generation_kwargs.top_k is unknown"),
        ({"unsafe_code": True}, "unsafe_code is True"),
    ],
)
def test_keys_that_change_results_are_refused(write, changed, message) -> None:
    with pytest.raises(InputError) as caught:
        read_tasks(write(**changed))
    assert "wind.yaml: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [", "is not YAML that can be read"),
        ("- a\n- b\n", "must have keys and values"),
        ("a: &x [1]\nb: *x\n", "it has a reference to another part"),
        ("task: x\ninclude: nothing\n", "nothing cannot be read"),
        ("task: x\ninclude: wind.yaml\n", "includes itself"),
        ("task: !!python/object/apply:os.system [ls]\n", "is not YAML that can be read"),
        ("# " + "x" * 1_000_000, "is larger than 1,000,000 bytes"),
    ],
)
def test_files_that_are_not_tasks_are_refused(write, text, message) -> None:
    with pytest.raises(InputError, match=r"wind\.yaml") as caught:
        read_tasks(write(text=text))
    assert message in str(caught.value)


def test_directories_without_tasks_or_with_one_twice_are_refused(write, tmp_path) -> None:
    with pytest.raises(InputError, match="has no task"):
        read_tasks(tmp_path)
    with pytest.raises(InputError, match="is not a directory"):
        read_tasks(tmp_path / "none")
    write("a.yaml")
    with pytest.raises(InputError, match=r"b.yaml and .*a.yaml both name their task wind_eng"):
        read_tasks(write("b.yaml"))
    (tmp_path / "b.yaml").unlink()
    (task,) = read_tasks(write("a.yaml", test_split="validation"))
    with pytest.raises(InputError, match="data_files has no split 'validation'; it has test"):
        task.data_files  # noqa: B018
    (task,) = read_tasks(write("a.yaml", test_split="–"))
    with pytest.raises(InputError, match="test_split is missing"):
        task.split  # noqa: B018
