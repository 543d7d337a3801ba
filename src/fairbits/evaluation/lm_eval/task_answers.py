"""The answers of a model to the items of tasks, whose weights are in memory once at most."""

from collections.abc import Iterator, Sequence

from fairbits.core.errors import InputError
from fairbits.core.memory import STATES_BYTES
from fairbits.core.progress import Progress
from fairbits.evaluation.hidden_states import DTYPE, passes_in_blocks
from fairbits.evaluation.lm_eval.task_files import TaskFile
from fairbits.evaluation.lm_eval.task_items import Answer, TaskItem, TaskItems
from fairbits.evaluation.request_likelihoods import Ids, LikelihoodModel, RequestTokenizer
from fairbits.evaluation.writer import LocalWriter
from fairbits.forward.batches import in_parts
from fairbits.models.checkpoint import Checkpoint


class TaskAnswers:
    """A model that is asked the items of tasks: how likely texts are, or to continue prompts until one of `ends`."""

    def __init__(self, checkpoint: Checkpoint, tokens: RequestTokenizer, *, ends: frozenset[int], device: str) -> None:
        self._checkpoint, self._tokens, self._ends, self._device = checkpoint, tokens, ends, device
        self._asked: LikelihoodModel | LocalWriter | None = None
        self.notes: tuple[str, ...] = ()

    def parts(self, items: TaskItems) -> Iterator[list[str]]:
        """Yields names of tasks that are asked together: one, or if weights pass in blocks, as many as states fit.

        What cannot be asked is refused before anything that takes time.
        """
        sizes: dict[str, int] = {}  # tokens of a task whose texts are not continued
        for name, (task, some) in items.items():
            if task.output_type == "generate_until":
                LocalWriter(self._checkpoint, device=self._device, ends=self._ends)  # raises if it is too large
                self._prompts(task, some)
            else:
                rows = self._pairs(task, some)
                sizes[name] = sum(len(before) + len(after) for row in rows for pairs in row for before, after in pairs)
        position = self._checkpoint.hidden_size * DTYPE.itemsize
        room = STATES_BYTES if passes_in_blocks(self._checkpoint, self._device) else 0
        if sizes:
            yield from in_parts(sizes, lambda name: sizes[name] * position, room=room, most=len(sizes))
        yield from ([name] for name in items if name not in sizes)

    def of(self, items: TaskItems, progress: Progress | None) -> dict[str, list[list[Answer]]]:
        """Returns the answers to every item of some tasks, which `parts` has put together."""
        name, (task, some) = next(iter(items.items()))
        if task.output_type == "generate_until":
            return {name: [[text] for text in self._written(task, some, progress)]}
        if not isinstance(self._asked, LikelihoodModel):
            self._asked = LikelihoodModel(self._checkpoint, self._tokens, device=self._device)
        asked = {name: self._pairs(*chosen) for name, chosen in items.items()}
        flat = [pair for rows in asked.values() for row in rows for pairs in row for pair in pairs]
        values = iter(self._asked.likelihoods(flat, progress))
        self.notes = self._asked.notes
        answers: dict[str, list[list[Answer]]] = {}
        for name, rows in asked.items():
            parts = [[[next(values) for _ in pairs] for pairs in row] for row in rows]
            whole = items[name][0].output_type == "loglikelihood_rolling"
            answers[name] = [[sum(nats for nats, _ in part) if whole else part[0] for part in row] for row in parts]
        return answers

    def _pairs(self, task: TaskFile, items: Sequence[TaskItem]) -> list[list[list[tuple[Ids, Ids]]]]:
        """Returns for every request of every item its pairs of context and continuation."""
        rolling = task.output_type == "loglikelihood_rolling"
        rows = []
        for item in items:
            try:
                rows.append(
                    [
                        list(self._tokens.rolling(*request)) if rolling else [self._tokens.pair(*request)]
                        for request in item.requests
                    ]
                )
            except InputError as problem:
                raise InputError(f"{task.path}: item {item.number}: {problem}") from None
        return rows

    def _prompts(self, task: TaskFile, items: Sequence[TaskItem]) -> list[tuple[int, ...]]:
        """Returns the tokens of prompts, cut at their beginning so that an answer has room."""
        room = self._tokens.length - task.new_tokens
        if room < 1:
            raise InputError(
                f"{task.path}: max_gen_toks is {task.new_tokens:,}, and the model has {self._tokens.length:,} "
                "positions, of which the prompt needs some; lower it"
            )
        prompts = [tuple(self._tokens.encode(item.requests[0][0])[-room:]) for item in items]
        if not all(prompts):
            raise InputError(f"{task.path}: item {items[prompts.index(())].number}: no token stands for the prompt")
        return prompts

    def _written(self, task: TaskFile, items: Sequence[TaskItem], progress: Progress | None) -> list[str]:
        """Returns the text after every prompt, up to the first of the texts that end an answer."""
        if not isinstance(self._asked, LocalWriter):
            self._asked = None  # its weights leave memory first
            self._asked = LocalWriter(self._checkpoint, device=self._device, ends=self._ends, keep=True)
        prompts = self._prompts(task, items)
        distinct = list(dict.fromkeys(prompts))
        new = self._asked.tokens(distinct, new_tokens=task.new_tokens, stop=task.until, progress=progress)
        texts = {}
        for prompt, ids in zip(distinct, new, strict=True):
            text = str(self._tokens.tokenizer.decode(ids, skip_special_tokens=True))
            for end in filter(None, task.until):
                text = text.split(end)[0]
            texts[prompt] = text
        return [texts[prompt] for prompt in prompts]
