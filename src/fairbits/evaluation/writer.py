"""Writers: what continues prompts, such as a model on this machine: by the most probable tokens, or by drawn ones.

A drawn token is the first at which the cumulative probability exceeds a uniform number. The numbers of a prompt depend
on the seed and on its tokens alone, so that the other prompts of a batch change nothing but rounding errors. What the
files of a model say about generation (a penalty for repetition, the most probable tokens only) is not used, but for
the tokens that end a text: the tokens come from the distribution of the model itself, in float32, in which models are
evaluated.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from fairbits.core.array_checks import Floats
from fairbits.core.checks import in_range, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import WRITING, Progress, begin
from fairbits.core.records import read_object
from fairbits.core.units import readable_size
from fairbits.evaluation.hidden_states import DTYPE, LOADED_FACTOR
from fairbits.forward.generation import Settings, continued_text, decode_text, generate_tokens, settings_for
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import fits_whole, is_gpu, move
from fairbits.models.untrusted.config_check import check_generation_config
from fairbits.text.documents import seeded_hash

ROWS, GPU_ROWS = 16, 64  # prompts that are continued at a time

Ids = Sequence[int]


@dataclass(frozen=True)
class WrittenText:
    """How a prompt is continued; `ended`: by the model, not by the limit. `ids` is None if only the text is known."""

    text: str
    ended: bool
    ids: tuple[int, ...] | None = None


class TextWriter(Protocol):
    """What continues prompts, which are tokens; a temperature of 0 takes the most probable token every time."""

    def answers(
        self,
        prompts: Sequence[Ids],
        *,
        new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> list[WrittenText]: ...


class LocalWriter:
    """A model on this machine, in memory only while it writes, or from then on (`keep`).

    `ends` are the tokens that end a text.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str = "cpu",
        ends: Iterable[int] | None = None,
        name: str = "",
        keep: bool = False,
    ) -> None:
        plain = checkpoint.plain
        if plain is not None and plain.task != "causal":
            raise InputError(f"{checkpoint.target} does not continue text; give a model that does, such as Llama")
        if plain is None:  # only another package reads its weights
            weights = LOADED_FACTOR * sum(info.nbytes for info in checkpoint.tensors.values())
        else:
            weights = sum(info.numel for info in plain.tensors.values()) * DTYPE.itemsize
        if not fits_whole(weights, device):
            raise InputError(
                f"{checkpoint.target} has {readable_size(weights)} of weights in float32, and twice as much is not "
                f"free on {device}; a model that writes text must be in memory as a whole: use a machine with more "
                "memory, or evaluate without generated text"
            )
        self._checkpoint, self._device = plain or checkpoint, device
        self.stage = f"{WRITING}, {name}" if name else WRITING
        self._keep = keep
        self._loaded: PreTrainedModel | None = None
        self.ends = end_tokens(checkpoint) if ends is None else frozenset(ends)

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
        tokenizer = self._checkpoint.tokenizer()
        written = self.tokens(prompts, new_tokens=new_tokens, temperature=temperature, seed=seed, progress=progress)
        return [
            WrittenText(continued_text(tokenizer, prompt, new), bool(self.ends.intersection(new[-1:])), tuple(new))
            for prompt, new in zip(prompts, written, strict=True)
        ]

    @torch.inference_mode()
    def tokens(
        self,
        prompts: Sequence[Ids],
        *,
        new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> list[list[int]]:
        """Returns the new tokens of every prompt: `new_tokens` of them, or fewer if the last one ends the text.

        After one of the texts `stop`, there may be padding.
        """
        self._check(prompts, new_tokens, temperature, seed)
        if not prompts:
            return []
        begin(progress, self.stage)
        model = self._loaded or move(self._checkpoint.load(DTYPE, device=self._device, read_only=True), self._device)
        self._loaded = model if self._keep else None
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        uniforms = _uniforms(prompts, new_tokens, seed) if temperature else None
        rows = GPU_ROWS if is_gpu(self._device) else ROWS
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))  # what needs most memory comes first
        written: dict[int, list[int]] = {}
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            chooser = _TokenChooser(None if uniforms is None else uniforms[batch], temperature)
            settings = self._settings(model, chooser, new_tokens, stop, read=len(prompts[batch[0]]))
            if progress is not None:
                chooser.follow(progress, self.stage, done=start * new_tokens, total=len(order) * new_tokens)
            written |= zip(batch, generate_tokens(model, [prompts[i] for i in batch], settings), strict=True)
        return [written[i] for i in range(len(prompts))]

    def _settings(
        self, model: PreTrainedModel, chooser: "_TokenChooser", new_tokens: int, stop: Sequence[str], *, read: int
    ) -> Settings:
        options: dict[str, Any] = {"max_new_tokens": new_tokens, "eos_token_id": sorted(self.ends) or None}
        options["logits_processor"] = LogitsProcessorList([chooser])
        tokenizer = self._checkpoint.tokenizer()
        if stop:
            options["stopping_criteria"] = StoppingCriteriaList([_StopTexts(tokenizer, stop, read)])
        return settings_for(model, tokenizer, options, seed=None)

    def _check(self, prompts: Sequence[Ids], new_tokens: int, temperature: float, seed: int) -> None:
        whole("new_tokens", new_tokens, least=1)
        whole("seed", seed, least=0)
        in_range("temperature", temperature, least=0.0)
        room = self._checkpoint.stated_positions
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise InputError(f"prompts[{i}] has no token; every prompt must have at least one")
            if len(prompt) + new_tokens > room:
                raise InputError(
                    f"prompts[{i}] has {len(prompt):,} tokens, and up to {new_tokens:,} more are requested; "
                    f"{self._checkpoint.target} has {room:,} positions: request fewer"
                )


def write_text(
    checkpoint: Checkpoint,
    prompts: Sequence[Ids],
    *,
    new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[list[int]]:
    """Returns what a model writes after every prompt, in tokens; by default drawn from its own distribution."""
    return LocalWriter(checkpoint, device=device).tokens(
        prompts, new_tokens=new_tokens, temperature=temperature, seed=seed, progress=progress
    )


def local_writers(reference: Checkpoint, quantized: Checkpoint, *, device: str) -> tuple[LocalWriter, LocalWriter]:
    """Returns the writers of two models whose texts are compared: the files of the reference say what ends a text."""
    first = LocalWriter(reference, device=device, name="reference model")
    return first, LocalWriter(quantized, device=device, ends=first.ends, name="quantized model")


def end_tokens(checkpoint: Checkpoint) -> frozenset[int]:
    """Returns the tokens that end a text by the files of a model; they may name several."""
    check_generation_config(checkpoint.directory)
    file = checkpoint.directory / "generation_config.json"
    stated = [
        read_object(file, finite=False).get("eos_token_id") if file.is_file() else None,
        getattr(checkpoint.config.get_text_config(), "eos_token_id", None),
        checkpoint.tokenizer().eos_token_id,
    ]
    tokens = {token for value in stated for token in (value if isinstance(value, list) else [value])}
    return frozenset(token for token in tokens if isinstance(token, int) and token >= 0)


class _TokenChooser(LogitsProcessor):
    """Draws the token of every row by its uniform numbers, one per step; without these the logits decide."""

    def __init__(self, uniforms: Floats | None, temperature: float) -> None:
        self._uniforms, self._temperature, self._step = uniforms, temperature, 0
        self._report: Any = None

    def follow(self, progress: Progress, stage: str, *, done: int, total: int) -> None:
        """Reports every step from now on: a token of every row."""
        self._report = lambda rows: progress(stage, done + rows * self._step, total)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._step += 1
        if self._report is not None:
            self._report(len(input_ids))
        if self._uniforms is None:
            return scores
        u = torch.from_numpy(self._uniforms[:, self._step - 1]).to(scores.device)
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, drawn(scores, u, temperature=self._temperature)[:, None], 0.0)


class _StopTexts(StoppingCriteria):
    """Ends a row whose new tokens, after as many as were `read`, contain one of some texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], read: int) -> None:
        self._tokenizer, self._texts, self._read = tokenizer, [text for text in texts if text], read
        self._tail = 1 + max((len(text.encode()) for text in self._texts), default=0)  # a token has a byte or more

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:  # noqa: ARG002
        tails = [decode_text(self._tokenizer, row[-self._tail :]) for row in input_ids[:, self._read :].tolist()]
        ended = [any(text in tail for text in self._texts) for tail in tails]
        return torch.tensor(ended, device=input_ids.device)


def drawn(logits: Tensor, u: Tensor, *, temperature: float) -> Tensor:
    """Returns the token of every row of logits: the first at which the cumulative probability exceeds u, 0 ≤ u < 1.

    >>> drawn(torch.tensor([[0.2, 0.5, 0.3]]).log(), torch.tensor([0.6]), temperature=1.0)
    tensor([1])
    """
    share = (logits.double() / temperature).softmax(-1).cumsum(-1)
    return torch.searchsorted(share, u.double()[:, None] * share[:, -1:], right=True)[:, 0]


def _uniforms(prompts: Sequence[Ids], count: int, seed: int) -> Floats:
    """Returns uniform numbers for every prompt; a prompt that occurs again gets other ones."""
    before: Counter[tuple[int, ...]] = Counter()
    rows = []
    for prompt in map(tuple, prompts):
        digest = seeded_hash(seed, before[prompt], *prompt)
        rows.append(np.random.default_rng(int.from_bytes(digest)).random(count))
        before[prompt] += 1
    return np.stack(rows)
