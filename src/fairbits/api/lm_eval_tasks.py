"""Tasks: text as tasks of lm-eval, which run from local files: bits per byte, and questions with several choices."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairbits.core.checks import one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory, whole_directory, write_files
from fairbits.core.records import as_lines
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.corruption import corrupt, sentences
from fairbits.text.documents import seeded_hash
from fairbits.text.questions import MAKERS, Question, negations, obstacle, translations
from fairbits.text.reading import EMBEDDED, open_corpus, read_corpus

BPB, CLOZE, NEGATION, TRANSLATION = "bpb", "cloze", "negation", "translation"
DEFAULT_KINDS = (BPB, CLOZE)
KINDS = (*DEFAULT_KINDS, *MAKERS, NEGATION, TRANSLATION)
ENGLISH = "eng_Latn"
NAME = re.compile("[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
QUESTIONS = {
    "next": "Which of four sentences follows the text; the others come from other documents.",
    "number": "A sentence against the same sentence with one number changed, which the text before it has.",
    "name": "A sentence against the same sentence with one proper name changed, which the text before it has.",
    NEGATION: "A sentence against the same sentence with one word that says no exchanged for its opposite, or back.",
    TRANSLATION: "Which of four texts is the translation; the others are other documents.",
}
VERSION = 1  # of the tasks: raise it if the same text would give other scores
COMMON = {
    BPB: """\
# Bits per byte of whole documents. lm-eval reads them in windows as long as the model allows.
dataset_path: json
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: bits_per_byte
""",
    CLOZE: """\
# A sentence against the same sentence with two neighbouring words exchanged; right if the first is likelier.
dataset_path: json
test_split: test
output_type: multiple_choice
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[original, corrupted]}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
""",
}
COMMON |= {
    kind: f"""\
# {purpose}
dataset_path: json
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
    for kind, purpose in QUESTIONS.items()
}
"""What the tasks of one kind share."""
METRICS = dict.fromkeys(KINDS, "acc") | {BPB: "bits_per_byte"}
Row = dict[str, object]


@dataclass(frozen=True)
class TaskFiles:
    """What was written: the directory, the group of each kind, and the number of items by kind and language."""

    directory: Path
    groups: dict[str, str]
    items: dict[str, dict[str, int]]
    notes: tuple[str, ...] = ()

    def as_data(self) -> dict[str, object]:
        return {"directory": str(self.directory), "groups": self.groups, "items": self.items, "notes": list(self.notes)}


def write_tasks(
    out: str | Path,
    *,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    kinds: Iterable[str] = DEFAULT_KINDS,
    split: str = "evaluation",
    items: int | None = None,
    seed: int = 0,
    name: str = "fairbits",
) -> TaskFiles:
    """Returns the tasks of lm-eval that were written to a directory: one per kind and language, and a group per kind.

    Documents and sentences are taken in the seeded order in which `evaluate` takes them, up to `items` per language.
    A language with fewer than 5 items of a kind is left out of it, with a note. For translations, text of files is read
    as parallel: document i has the same content in every language; they are from English, or from the first language
    without it. The tasks name their data by absolute
    paths, because lm-eval looks for relative ones where it is started.
    """
    chosen = [one_of("kind", kind, KINDS) for kind in sequence("kinds", kinds)]
    if not chosen:
        raise InputError(f"no kind of task is named; name one of {', '.join(KINDS)}")
    one_of("split", split, SPLITS)
    whole("seed", seed, least=0)
    if items is not None:
        whole("items", items, least=LEAST_DOCUMENTS)
    if not NAME.fullmatch(name):
        raise InputError(f"name is {name!r:.40}; it must be letters and digits, with single _ between them")
    directory = check_directory(out, holding=())  # so that no task of another text stays in it
    corpus = _corpus(text, languages, parallel=TRANSLATION in chosen)
    reasons = {kind: _obstacles(kind, corpus) for kind in dict.fromkeys(chosen)}
    data = {
        kind: {
            code: _items(kind, code, corpus, split, items, seed) for code in corpus.split(split) if code not in unable
        }
        for kind, unable in reasons.items()
    }
    few: list[str] = []
    for kind, by_language in data.items():
        few += [f"{code}: no items of {kind}, as {reason}; left out" for code, reason in reasons[kind].items()]
        short = {code: len(rows) for code, rows in by_language.items() if len(rows) < LEAST_DOCUMENTS}
        if len(short) == len(by_language):
            without = "".join(f" ({code}: {reason})" for code, reason in islice(reasons[kind].items(), 1))
            raise InputError(
                f"no language has {LEAST_DOCUMENTS} items of {kind}{without}; give more text, or leave it out"
            )
        few += [f"{code}: {n} of at least {LEAST_DOCUMENTS} items of {kind}; left out" for code, n in short.items()]
        data[kind] = {code: rows for code, rows in by_language.items() if code not in short}
    files: dict[Path, bytes] = {}
    for kind, by_language in data.items():
        files |= task_files(directory, f"{name}_{kind}", COMMON[kind], METRICS[kind], by_language)
    try:
        with whole_directory(directory) as draft:
            write_files({draft / path.name: content for path, content in files.items()})
    except OSError as problem:
        raise InputError(f"{directory} cannot be made ({problem.strerror}); give another directory") from None
    return TaskFiles(
        directory,
        {kind: f"{name}_{kind}" for kind in data},
        {kind: {code: len(rows) for code, rows in by_language.items()} for kind, by_language in data.items()},
        (*corpus.notes, *few),
    )


def _corpus(text: str | Path | Corpus | None, languages: Iterable[str] | None, *, parallel: bool) -> Corpus:
    if parallel and text is not None and not isinstance(text, Corpus) and text not in EMBEDDED:
        return read_corpus(text, languages=languages, parallel=True)
    corpus = open_corpus(text, languages)
    if parallel and not corpus.parallel:
        raise InputError(f"{corpus.name} is not parallel text; items of {TRANSLATION} need it: leave them out")
    return corpus


def _source(corpus: Corpus) -> str:
    """Returns the language that translations are from."""
    codes = list(corpus.calibration)
    return ENGLISH if ENGLISH in codes else codes[0]


def _obstacles(kind: str, corpus: Corpus) -> dict[str, str]:
    """Returns why languages have no items of a kind, whatever their text."""
    if kind == TRANSLATION:
        return {_source(corpus): "the others are translated from it"}
    return {code: reason for code in corpus.calibration if (reason := obstacle(kind, code))}


def _items(kind: str, code: str, corpus: Corpus, split: str, limit: int | None, seed: int) -> list[Row]:
    """Returns the items of a language, none of them twice, from documents in their seeded order."""
    documents = corpus.split(split)
    order = sorted(range(len(documents[code])), key=lambda i: seeded_hash(seed, i))
    texts = [documents[code][i] for i in order]
    if kind == BPB:
        return [{"text": text} for text in texts[:limit]]
    if kind == CLOZE:
        return list(islice(_corrupted(texts, seed), limit))
    if kind == NEGATION:
        questions: Iterable[Question] = negations(texts, seed, code)
    elif kind == TRANSLATION:
        questions = translations([documents[_source(corpus)][i] for i in order], texts, seed)
    else:
        questions = MAKERS[kind](texts, seed)
    return list(islice(_rows(questions), limit))


def _corrupted(texts: Iterable[str], seed: int) -> Iterator[Row]:
    for sentence in dict.fromkeys(part for text in texts for part in sentences(text)):
        if (corrupted := corrupt(sentence, seed=seed)) is not None:
            yield {"original": sentence, "corrupted": corrupted}


def _rows(questions: Iterable[Question]) -> Iterator[Row]:
    before: set[tuple[str, str]] = set()
    for question in questions:
        if (key := (question.context, question.right)) not in before:
            before.add(key)
            yield {"context": question.context, "choices": question.choices, "answer": question.answer}


def task_files(
    directory: Path, group: str, common: str, metric: str, by_language: Mapping[str, list[Row]]
) -> dict[Path, bytes]:
    """Returns the content of the files of one kind: what all share, a task and its data per language, the group."""
    shared = f"_{group}.yaml"
    files = {directory / shared: common.encode()}
    names = {code: f"{group}_{code.replace('-', '_')}" for code in by_language}
    for code, rows in by_language.items():
        data = directory / f"{names[code]}.jsonl"
        files[data] = as_lines(json.dumps(row, ensure_ascii=False) for row in rows)
        files[data.with_suffix(".yaml")] = (
            f"include: {shared}\n"
            f"task: {names[code]}\n"
            "dataset_kwargs:\n"
            "  data_files:\n"
            f"    test: {json.dumps(str(data), ensure_ascii=False)}\n"
            "metadata:\n"
            f"  version: {VERSION}\n"
        ).encode()
    listed = "".join(f"  - {task}\n" for task in names.values())
    files[directory / f"{group}.yaml"] = (
        f"group: {group}\ntask:\n{listed}aggregate_metric_list:\n"
        f"  - metric: {metric}\n    aggregation: mean\n    weight_by_size: false\n"
        f"metadata:\n  version: {VERSION}\n"
    ).encode()
    return files
