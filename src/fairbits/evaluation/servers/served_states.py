"""ServedStates: the last hidden states that vLLM writes to disk, and the head of the served checkpoint that reads them.

vLLM keeps the states at the output of the last block, before the final norm, with

    --speculative_config '{"method": "extract_hidden_states", "num_speculative_tokens": 1,
      "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [BLOCKS]}}}'
    --kv_transfer_config '{"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer",
      "kv_connector_extra_config": {"shared_storage_path": "DIR"}}'

and names their file in its answer. What comes after the last block is computed here, in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.evaluation.hidden_states import HiddenStates, positions_of_logits
from fairbits.evaluation.servers.answer_errors import refuse
from fairbits.evaluation.servers.concurrency import all_answers
from fairbits.evaluation.servers.http_client import HttpClient
from fairbits.evaluation.servers.interfaces import OTHER_TOKENS, completion_body, completion_choice
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import read_header, read_tensor
from fairbits.models.streaming_model import StreamingModel

SWITCH = "start it with extract_hidden_states and ExampleHiddenStatesConnector (docs/guides/servers.md)"


class ServedStates:
    """A model that a server on this machine computes, up to its last block; its files are in one directory."""

    separate = True
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        client: HttpClient,
        model: str,
        checkpoint: Checkpoint,
        text: TokenizedText,
        *,
        directory: Path,
        concurrency: int,
        device: str = "cpu",
    ) -> None:
        self.name = client.address.api
        self._client, self._model, self._text = client, model, text
        self._concurrency, self._device, self._directory = concurrency, device, directory.resolve()
        self.logit_positions = positions_of_logits(checkpoint.config.get_text_config().vocab_size, device)
        self._width = checkpoint.hidden_size
        self._head = after_last_block(checkpoint, device=device)

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        return self._head

    def features(self, stage: str, progress: Progress | None) -> Iterator[HiddenStates]:
        """Yields the states of every window in the order of the reference's features; files are deleted when read."""
        windows = self._text.windows
        order = sorted(range(len(windows)), key=lambda number: windows[number].length)
        answers = all_answers(
            self._client, lambda number: self._states(windows[number].main.ids), order, self._concurrency, in_order=True
        )
        for done, (number, states) in enumerate(answers):
            labels = np.array(windows[number].main.labels)
            at = np.flatnonzero(labels != NO_LABEL)
            document = torch.full((len(at),), windows[number].document)
            yield HiddenStates(states[at].to(self._device), torch.from_numpy(labels[at]), document)
            if progress is not None:
                progress(stage, done + 1, len(order))

    def _states(self, ids: Sequence[int]) -> Tensor:
        """Returns the states of a prompt (tokens, hidden size), in float32."""
        url, body = f"{self._client.address.api}/completions", completion_body(self._model, ids)
        return self._client.post(url, body, lambda data: self._read(data, ids))

    def _read(self, data: dict[str, Any], ids: Sequence[int]) -> Tensor:
        completion_choice(data, self._model, ids)
        named = (data.get("kv_transfer_params") or {}).get("hidden_states_path")
        if not isinstance(named, str):
            refuse("names no file of hidden states", SWITCH)
        path = Path(named).resolve()
        if self._directory not in path.parents:  # it is deleted when it has been read
            refuse(f"keeps its hidden states in {path.parent}, and not in {self._directory}", "name its directory")
        _wait_until_written(path)
        try:
            header = read_header(path)
            tokens, states = (read_tensor(header[name]) for name in ("token_ids", "hidden_states"))
        except (OSError, KeyError, InputError) as problem:
            raise InputError(f"hidden states in {path} cannot be read ({problem}); see the log of vLLM") from None
        finally:
            for file in (path, lock_of(path)):
                with suppress(OSError):
                    file.unlink()
        if tokens[: len(ids)].tolist() != list(ids):
            refuse("wrote the hidden states of other tokens than those of the request", OTHER_TOKENS)
        if states.shape[1:] != (1, self._width) or len(states) < len(ids):
            refuse(
                f"wrote hidden states of the shape {list(states.shape)}; [{len(ids)}, 1, {self._width}] are needed",
                "let it keep the output of one layer, the last block",
            )
        return states[: len(ids), 0].float()


def lock_of(path: Path) -> Path:
    """Returns the file that vLLM locks while it writes another."""
    return path.with_name(f"{path.name}.lock")


def _wait_until_written(path: Path) -> None:
    import fcntl  # not on Windows, where vLLM does not run

    try:
        with lock_of(path).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        if not path.is_file():
            raise InputError(
                f"{path}, where the server wrote hidden states, is not on this machine; fairbits must run where the "
                "server runs, and see its shared_storage_path"
            ) from None


@torch.no_grad()
def after_last_block(checkpoint: Checkpoint, *, device: str) -> Callable[[Tensor], Tensor]:
    """Returns the function from the output of a model's last block (positions, hidden size) to logits, in float32.

    The model's own code runs with its last block alone, whose output is replaced.
    """
    plain = checkpoint.plain or checkpoint
    loader = StreamingModel(plain, device)
    loader.load_outside(torch.zeros(1, dtype=torch.long), {})
    last = plain.architecture.blocks[-1]
    loader.load_block(last, {})
    loader.load_head()
    model = loader.model
    path, _, name = last.module.rpartition(".")
    owner, _, leaf = path.rpartition(".")
    block = model.get_submodule(last.module)
    if not name.isdigit():
        raise InputError(f"{checkpoint.target} has no list of blocks, so its last hidden states cannot be read")
    setattr(model.get_submodule(owner), leaf, nn.ModuleList([block]))

    def logits(states: Tensor) -> Tensor:
        handle = block.register_forward_hook(partial(_replaced, states[:, None]))
        try:
            ids = torch.zeros((len(states), 1), dtype=torch.long, device=device)
            result: Tensor = model(input_ids=ids, use_cache=False).logits[:, 0]
        finally:
            handle.remove()
        return result

    return logits


def _replaced(states: Tensor, _module: nn.Module, _inputs: Any, output: Any) -> Any:
    return (states, *output[1:]) if isinstance(output, tuple) else states
