"""ServerWriter: a running server that continues prompts."""

from collections.abc import Sequence
from typing import Any

from fairbits.core.progress import WRITING, Progress, begin
from fairbits.evaluation.servers.answer_errors import refuse
from fairbits.evaluation.servers.concurrency import all_answers
from fairbits.evaluation.servers.http_client import HttpClient
from fairbits.evaluation.servers.interfaces import completion_body, completion_choice
from fairbits.evaluation.writer import Ids, WrittenText


class ServerWriter:
    """What writes text behind an address; only the text is known, not its tokens."""

    def __init__(self, client: HttpClient, model: str, *, concurrency: int) -> None:
        self._client, self._model, self._concurrency = client, model, concurrency

    def answers(
        self,
        prompts: Sequence[Ids],
        *,
        new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> list[WrittenText]:
        """Returns the continuation of every prompt."""
        stage = f"{WRITING}, server"
        begin(progress, stage)
        settings = {"max_tokens": new_tokens, "temperature": temperature, "seed": seed}

        def ask(number: int) -> WrittenText:
            return self._continued(prompts[number], settings)

        written: dict[int, WrittenText] = {}
        for number, answer in all_answers(self._client, ask, range(len(prompts)), self._concurrency):
            written[number] = answer
            if progress is not None:
                progress(stage, len(written) * new_tokens, len(prompts) * new_tokens)
        return [written[number] for number in range(len(prompts))]

    def _continued(self, ids: Ids, settings: dict[str, Any]) -> WrittenText:
        body = {**completion_body(self._model, ids), **settings}

        def read(data: dict[str, Any]) -> WrittenText:
            choice = completion_choice(data, self._model, ids)
            if not isinstance(choice.get("text"), str):
                refuse("gives no text", "see its log")
            return WrittenText(choice["text"], ended=choice.get("finish_reason") == "stop")

        return self._client.post(f"{self._client.address.api}/completions", body, read)
