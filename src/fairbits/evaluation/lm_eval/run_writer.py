"""The files of a run as lm-eval writes them: a task is complete once the results file names it."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from statistics import stdev
from typing import Any

import transformers

from fairbits.core.errors import InputError
from fairbits.core.files import check_directory, write_files
from fairbits.core.records import as_lines, read_object, to_json
from fairbits.core.version import __version__
from fairbits.evaluation.lm_eval.paired_samples import HIGHER
from fairbits.evaluation.lm_eval.sample_files import HASHES, listed
from fairbits.evaluation.lm_eval.task_files import AGGREGATIONS, AnswerFilter, TaskFile
from fairbits.evaluation.lm_eval.task_items import Answer, TaskItem, filtered, item_scores, total_score
from fairbits.evaluation.setting import Identity

RESULTS = "results_*.json"


@dataclass(frozen=True, eq=False)
class RunWriter:
    """A directory of samples and the content of its results file, which grows with every task."""

    directory: Path
    date: str
    content: dict[str, Any]

    @classmethod
    def open(cls, out: str | Path, model: Identity, *, tokenizer: str, ends: Iterable[int]) -> "RunWriter":
        """Returns the run of a model in a directory, begun or new; raises if the directory holds something else.

        `tokenizer` is the hash of the tokenizer that cuts the items, `ends` are the tokens that end an answer.
        """
        names = [path.name for path in Path(out).glob(RESULTS)]
        directory = check_directory(out, holding=names or (RESULTS,))
        identity = {
            "model": model.fingerprint,
            "kv_cache": model.kv_cache,
            "tokenizer": tokenizer,
            "ends": sorted(ends),
        }
        if names:
            content = read_object(directory / names[0], finite=False, remedy="give another directory")
            if len(names) > 1 or content.get("fairbits") != identity:
                raise InputError(f"{directory} has the results of another run or model; give a new directory")
            return cls(directory, names[0].removeprefix("results_").removesuffix(".json"), content)
        by_task = ("results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples")
        content = {
            **{key: {} for key in (*by_task, "task_hashes")},
            "config": {"model": "fairbits", "model_args": f"pretrained={model.target},dtype=float32"},
            "date": time.time(),
            "transformers_version": transformers.__version__,
            "fairbits_version": __version__,
            "fairbits": identity,
            "model_source": "fairbits",
            "model_name": model.target,
            **dict.fromkeys(("system_instruction", "system_instruction_sha", "chat_template", "chat_template_sha")),
            "fewshot_as_multiturn": False,
        }
        run = cls(directory, datetime.now().isoformat().replace(":", "-"), content)
        directory.mkdir(parents=True, exist_ok=True)
        run.save({})
        return run

    def missing(self, tasks: Mapping[str, tuple[TaskFile, Sequence[TaskItem]]]) -> list[str]:
        """Returns the tasks that are not there yet; raises if others are there, or the same with other items."""
        there = self.content["task_hashes"]
        other = sorted(
            name
            for name in there
            if name not in tasks
            or there[name] != _task_hash(*tasks[name])
            or self.content["configs"].get(name) != _as_json(tasks[name][0].config)
        )
        if other:
            raise InputError(f"{self.directory} has {listed(other)} with other items or settings; give a new directory")
        return [name for name in tasks if name not in there or not self.samples_file(name).is_file()]

    def samples_file(self, task: str) -> Path:
        return self.directory / f"samples_{task}_{self.date}.jsonl"

    def add(self, task: TaskFile, items: Sequence[TaskItem], answers: Sequence[Sequence[Answer]]) -> None:
        """Writes the samples of a task, given the answers to every item, and names it in the results."""
        totals: dict[str, Any] = {"alias": task.task, "sample_len": len(items)}
        lines: list[str] = []
        for reading in task.filter_list:
            values: dict[str, list[Any]] = {entry.metric: [] for entry in task.metrics}
            for item, row in zip(items, answers, strict=True):
                read = [filtered(reading, answer) if isinstance(answer, str) else answer for answer in row]
                scores = item_scores(task, item, read)
                for name, value in scores.items():
                    values[name].append(value)
                lines.append(json.dumps(_sample(item, row, read, reading, scores), ensure_ascii=False))
            for name, column in values.items():
                aggregation = AGGREGATIONS[task.output_type][name]
                totals[f"{name},{reading.name}"] = total_score(aggregation, column)
                several = aggregation == "mean" and len(column) > 1
                error = stdev(column) / len(column) ** 0.5 if several else "N/A"
                totals[f"{name}_stderr,{reading.name}"] = error
        higher = {
            entry.metric: HIGHER.get(entry.metric, False) if entry.higher_is_better is None else entry.higher_is_better
            for entry in task.metrics
        }
        entries = {
            "results": totals,
            "group_subtasks": [],
            "configs": _as_json(task.config),
            "versions": (task.config.get("metadata") or {}).get("version", "Yaml"),
            "n-shot": 0,
            "higher_is_better": higher,
            "n-samples": {"effective": len(items)},
            "task_hashes": _task_hash(task, items),
        }
        for key, value in entries.items():
            self.content[key][task.task] = value
        self.save({self.samples_file(task.task): as_lines(lines)})

    def save(self, samples: Mapping[Path, bytes]) -> None:
        """Writes files of samples and, when they are complete, the results."""
        write_files({**samples, self.directory / f"results_{self.date}.json": to_json(self.content)})


def _sample(
    item: TaskItem, answers: Sequence[Answer], read: Sequence[Answer], reading: AnswerFilter, scores: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a line of samples, with its keys in the order of lm-eval."""
    arguments = {
        f"gen_args_{i}": {f"arg_{j}": argument for j, argument in enumerate(request)}
        for i, request in enumerate(item.requests)
    }
    return {
        "doc_id": item.number,
        "doc": item.doc,
        "target": str(item.target),
        "arguments": arguments,
        "resps": [[_as_text(answer)] for answer in answers],
        "filtered_resps": [_as_text(answer) for answer in read],
        "filter": reading.name,
        "metrics": list(scores),
        **dict(zip(HASHES, _hashes(item), strict=True)),
        **scores,
    }


def _as_text(answer: Answer) -> Any:
    return [str(part) for part in answer] if isinstance(answer, tuple) else str(answer)


def _hashes(item: TaskItem) -> tuple[str, str, str]:
    document = json.dumps(item.doc, indent=2, ensure_ascii=False)
    return _sha(document), _sha(item.requests[0][0]), _sha(str(item.target))


def _task_hash(task: TaskFile, items: Sequence[TaskItem]) -> str:
    return _sha("".join("".join(_hashes(item)) for item in items) * len(task.filter_list))


def _sha(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
