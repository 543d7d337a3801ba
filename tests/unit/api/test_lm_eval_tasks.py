import ast
import json

import jinja2
import pytest
import yaml

from fairbits.api.lm_eval_tasks import KINDS, write_tasks
from fairbits.core.errors import InputError
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr

DOCUMENTS = {
    "fra": [f"La phrase numéro {i} a plusieurs mots différents. Puis vient une autre phrase {i}." for i in range(8)],
    "zho": [f"人人生而自由，在尊严和权利上一律平等{i}。" for i in range(8)],
}
CORPUS = Corpus("small", {}, DOCUMENTS)


def rows(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_task_per_language_and_a_group_per_kind(tmp_path) -> None:
    tasks = write_tasks(tmp_path / "tasks", text=CORPUS)
    assert tasks.groups == {"bpb": "fairbits_bpb", "cloze": "fairbits_cloze"}
    assert tasks.items == {"bpb": {"fra_Latn": 8, "zho_Hans": 8}, "cloze": {"fra_Latn": 16, "zho_Hans": 8}}
    read = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in tasks.directory.glob("*.yaml")}
    for kind, group in tasks.groups.items():
        assert read[f"{group}.yaml"]["group"] == group
        names = read[f"{group}.yaml"]["task"]
        assert names == [f"{group}_{code}" for code in tasks.items[kind]]
        for name in names:
            task = read[f"{name}.yaml"]
            assert task["task"] == name
            assert read[task["include"]]["dataset_path"] == "json"
            assert task["dataset_kwargs"]["data_files"]["test"] == str(tasks.directory / f"{name}.jsonl")
    assert read["_fairbits_bpb.yaml"]["output_type"] == "loglikelihood_rolling"
    assert read["_fairbits_cloze.yaml"]["output_type"] == "multiple_choice"
    texts = rows(tasks.directory / "fairbits_bpb_fra_Latn.jsonl")
    assert sorted(row["text"] for row in texts) == sorted(DOCUMENTS["fra"])
    pairs = rows(tasks.directory / "fairbits_cloze_zho_Hans.jsonl")
    assert all(sorted(row["original"]) == sorted(row["corrupted"]) for row in pairs)
    assert all(row["original"] != row["corrupted"] for row in pairs)


def test_fewer_items_of_one_kind_under_another_name(tmp_path) -> None:
    tasks = write_tasks(tmp_path, text=CORPUS, languages=["fr"], kinds=["cloze"], items=5, name="mine", seed=1)
    assert tasks.items == {"cloze": {"fra_Latn": 5}}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "_mine_cloze.yaml",
        "mine_cloze.yaml",
        "mine_cloze_fra_Latn.jsonl",
        "mine_cloze_fra_Latn.yaml",
    ]


def test_a_language_with_few_items_is_left_out(tmp_path) -> None:
    few = Corpus("small", {}, DOCUMENTS | {"deu": ["Ein Satz mit einigen Wörtern, mehr nicht."] * 3})
    tasks = write_tasks(tmp_path, text=few, kinds=["bpb"])
    assert list(tasks.items["bpb"]) == ["fra_Latn", "zho_Hans"]
    assert tasks.notes == ("deu_Latn: 3 of at least 5 items of bpb; left out",)


def test_questions_are_rendered_as_lm_eval_does(tmp_path) -> None:
    tasks = write_tasks(tmp_path, languages=["eng", "deu", "heb"], kinds=["next", "negation", "translation"], items=6)
    assert tasks.items == {
        "next": {"eng_Latn": 6, "deu_Latn": 6, "heb_Hebr": 6},
        "negation": {"eng_Latn": 6},
        "translation": {"deu_Latn": 6, "heb_Hebr": 6},
    }
    assert "deu_Latn: 4 of at least 5 items of negation; left out" in tasks.notes
    assert "eng_Latn: no items of translation, as the others are translated from it; left out" in tasks.notes
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    for kind, group in tasks.groups.items():
        shared = yaml.safe_load((tmp_path / f"_{group}.yaml").read_text("utf-8"))
        assert (shared["output_type"], shared["dataset_path"], shared["target_delimiter"]) == (
            "multiple_choice",
            "json",
            "",
        )
        for code, count in tasks.items[kind].items():
            items = rows(tmp_path / f"{group}_{code}.jsonl")
            assert len(items) == count
            for item in items:
                context, target, choices = (
                    environment.from_string(shared[f"doc_to_{part}"]).render(item)
                    for part in ("text", "target", "choice")
                )
                assert context == item["context"]
                assert not context.isdigit()  # lm-eval would take it for the number of a choice
                assert ast.literal_eval(choices) == item["choices"]
                assert 0 <= ast.literal_eval(target) < len(item["choices"])


def test_translations_are_read_from_parallel_files(tmp_path) -> None:
    for code in ("fra", "spa"):
        documents = udhr([code]).evaluation[f"{code}_Latn"]  # the first lines of all articles, one per line
        (tmp_path / f"{code}.txt").write_text("\n".join(text.split("\n")[0] for text in documents), "utf-8")
    tasks = write_tasks(tmp_path / "tasks", text=tmp_path, kinds=["translation"])
    assert list(tasks.items["translation"]) == ["spa_Latn"]  # French is the first, and there is no English
    lines = {code: (tmp_path / f"{code}.txt").read_text("utf-8").split("\n") for code in ("fra", "spa")}
    for item in rows(tmp_path / "tasks" / "fairbits_translation_spa_Latn.jsonl"):
        assert lines["fra"].index(item["context"]) == lines["spa"].index(item["choices"][item["answer"]].strip())


def test_kinds_that_a_language_cannot_have_are_explained(tmp_path) -> None:
    documents = {
        "deu": ["Der Maler Claude Monet lebte in Giverny. Später kam auch Claude nach Giverny an den Fluss."] * 5,
        "eng": [
            f"The painter {name} lived in a village. Later the friends of {name} came there by train."
            for name in ("Monet", "Renoir", "Sisley", "Degas", "Cézanne", "Pissarro")
        ],
    }
    tasks = write_tasks(tmp_path, text=Corpus("names", {}, documents), kinds=["name"], seed=3)
    assert tasks.items == {"name": {"eng_Latn": 6}}
    assert tasks.notes == ("deu_Latn: no items of name, as every noun begins with a capital letter; left out",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ["bit"]}, f"kind is 'bit'; it must be one of {', '.join(KINDS)}"),
        ({"kinds": []}, "no kind of task is named"),
        ({"items": 4}, "items is 4; it must be 5 or more"),
        ({"name": "my tasks"}, "name is 'my tasks'; it must be letters and digits"),
        ({"split": "test"}, "split is 'test'"),
        ({"kinds": ["translation"]}, "small is not parallel text; items of translation need it"),
        ({"kinds": ["name"], "languages": ["fra"]}, "no language has 5 items of name; give more text, or leave it out"),
        ({"kinds": ["negation"], "languages": ["zho"]}, r"no language .* of negation \(zho_Hans: the table of words"),
        ({"split": "calibration"}, "no language has 5 items of bpb"),
        ({"languages": ["deu"]}, "small has no text in deu_Latn"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, settings, message) -> None:
    with pytest.raises(InputError, match=message):
        write_tasks(tmp_path / "tasks", **{"text": CORPUS, **settings})
    assert not (tmp_path / "tasks").exists()


def test_a_directory_with_files_is_not_written_to(tmp_path) -> None:
    (tmp_path / "other.yaml").write_text("group: other\n")
    with pytest.raises(InputError, match="is not empty; give a new directory"):
        write_tasks(tmp_path, text=CORPUS)
    with pytest.raises(InputError, match=r"other\.yaml is not a directory"):
        write_tasks(tmp_path / "other.yaml", text=CORPUS)
