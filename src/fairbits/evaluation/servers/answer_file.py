"""AnswerFile: what a server has answered, on disk, so that an interrupted evaluation continues where it stopped."""

import sqlite3
from pathlib import Path

import numpy as np

from fairbits.core.errors import InputError
from fairbits.evaluation.servers.interfaces import PromptAnswer

FORM = 1
CREATE = """
create table if not exists about (form integer, question text);
create table if not exists answers (asking integer, prompt integer, logprobs blob, ids blob, top blob,
                                    primary key (asking, prompt));
"""


class AnswerFile:
    """Answers by prompt, in an SQLite file: one is there whole or not at all, and never twice.

    `question` identifies the server and the prompts. Answers to another question are refused. `asking` tells apart
    several answers to the same prompt.
    """

    def __init__(self, path: Path | None, *, question: str, top: int) -> None:
        self._path, self.top = path, top
        try:
            self._file = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._file.execute("pragma journal_mode = wal")
            self._file.execute(
                "pragma synchronous = normal"
            )  # a killed process loses nothing; no answer waits for disks
            self._file.executescript(CREATE)
            rows = self._file.execute("select form, question from about").fetchall()
            if not rows:
                self._file.execute("insert into about values (?, ?)", (FORM, question))
        except sqlite3.Error as problem:
            reason = f"{path} cannot keep the answers of the server ({problem})"
            raise InputError(f"{reason}; delete it, or give --out another name") from None
        if rows and rows[0] != (FORM, question):
            self._file.close()
            raise InputError(
                f"{path} has the answers of another server, model or text; delete it, or give --out another name"
            )

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def missing(self, asking: int, prompts: list[int]) -> list[int]:
        """Returns the prompts that have no answer yet, in their order."""
        there = {row[0] for row in self._file.execute("select prompt from answers where asking = ?", (asking,))}
        return [prompt for prompt in prompts if prompt not in there]

    def add(self, asking: int, prompt: int, answer: PromptAnswer) -> None:
        parts = (answer.logprobs.tobytes(), answer.ids.tobytes(), answer.top.tobytes())
        try:
            self._file.execute("insert into answers values (?, ?, ?, ?, ?)", (asking, prompt, *parts))
        except sqlite3.Error as problem:
            raise InputError(
                f"{self._path or 'memory'} cannot keep the answers of the server ({problem}); make room, then run the "
                "same command again"
            ) from None

    def get(self, asking: int, prompt: int) -> PromptAnswer:
        find = "select logprobs, ids, top from answers where asking = ? and prompt = ?"
        logprobs, ids, top = self._file.execute(find, (asking, prompt)).fetchone()
        shape = (-1, self.top)
        return PromptAnswer(
            np.frombuffer(logprobs, np.float32),
            np.frombuffer(ids, np.int32).reshape(shape),
            np.frombuffer(top, np.float32).reshape(shape),
        )
