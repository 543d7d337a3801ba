"""Generation: batches of prompts are continued by `generate` of transformers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from fairbits.core.checks import in_range, whole
from fairbits.core.errors import InputError
from fairbits.models.device import fixed_seed

MAX_NEW_TOKENS = 64  # the number of new tokens if neither the caller nor the model sets it
FUNCTIONS = ("logits_processor", "prefix_allowed_tokens_fn", "stopping_criteria")
"""Options of `generate` that are not part of its configuration."""
REFUSED = {
    "max_length": "it counts the padding of a batch: give max_new_tokens",
    "min_length": "it counts the padding of a batch: give min_new_tokens",
    "num_return_sequences": "every prompt has one continuation: give it several times",
    "pad_token_id": "the tokenizer's is used",
    "return_dict_in_generate": "text is returned: take the model from `using` for more",
}


@dataclass(frozen=True)
class Prompt:
    """A text to continue, in tokens, and its place among the others."""

    place: int
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Continuation:
    """The generated continuation of a prompt."""

    text: str
    tokens: int
    finish_reason: str


@dataclass(frozen=True)
class Settings:
    """How prompts are continued: at most `most` tokens each, until one of `ends`."""

    options: Mapping[str, Any]
    most: int
    ends: frozenset[int]
    padding: int
    seed: int | None

    @property
    def alone(self) -> bool:
        """Whether each prompt needs a separate batch, because sampling depends on the other prompts of a batch."""
        return self.seed is not None and bool(self.options["do_sample"])


def settings_for(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], *, seed: int | None
) -> Settings:
    """Returns the options completed with the model's defaults; raises if `generate` does not have one of them."""
    if not model.can_generate() or model.config.is_encoder_decoder:
        raise InputError(
            f"{type(model).__name__} does not generate text; give a model that does, such as Llama or BLOOM"
        )
    _check(options, allowed={*vars(GenerationConfig()), *FUNCTIONS})  # type: ignore[no-untyped-call]
    defaults: Any = model.generation_config
    most = options.get("max_new_tokens", defaults.max_new_tokens)
    most = MAX_NEW_TOKENS if most is None else whole("max_new_tokens", most, least=1)
    end = options.get("eos_token_id", defaults.eos_token_id)
    ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
    vocabulary = model.config.get_text_config().vocab_size
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, *ends, 0)
    padding = next(token for token in candidates if isinstance(token, int) and token < vocabulary)
    full = {"do_sample": bool(defaults.do_sample), **options, "max_new_tokens": most}
    if options.get("stop_strings"):
        full["tokenizer"] = tokenizer  # `generate` needs it to find them
    return Settings(full, most, frozenset(ends), padding, seed)


def _check(options: Mapping[str, Any], *, allowed: Collection[str]) -> None:
    for name, value in options.items():
        if name in REFUSED:
            raise InputError(f"the option {name} is not taken, as {REFUSED[name]}")
        if name not in allowed or name.startswith("_"):
            raise InputError(f"there is no option {name!r:.40}; give options of GenerationConfig in transformers")
        if value is not None and name == "temperature":
            in_range(name, value, above=0.0)
        if value is not None and name == "top_p":
            in_range(name, value, above=0.0, most=1.0)


def generate_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], settings: Settings
) -> dict[int, Continuation]:
    """Returns the continuation of every prompt, by its place."""
    generated = zip(prompts, generate_tokens(model, [prompt.ids for prompt in prompts], settings), strict=True)
    return {prompt.place: _continuation(tokenizer, prompt, new, settings) for prompt, new in generated}


def generate_tokens(model: PreTrainedModel, prompts: Sequence[Sequence[int]], settings: Settings) -> list[list[int]]:
    """Returns the new tokens of every prompt up to its end, which is one of them; padding may follow a stop string."""
    ids, mask = _left_padded(prompts, settings.padding, model.device)
    with fixed_seed(settings.seed, model.device):
        try:
            rows: Tensor = model.generate(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=mask,
                pad_token_id=settings.padding,
                num_return_sequences=1,
                return_dict_in_generate=False,
                **settings.options,
            )
        except (TypeError, ValueError) as problem:  # every option is validated differently
            raise InputError(
                f"transformers cannot generate with these options: {' '.join(str(problem).split()):.300}"
            ) from problem
    generated: list[list[int]] = rows[:, ids.shape[1] :].tolist()
    ends = [next((i for i, token in enumerate(new) if token in settings.ends), len(new)) for new in generated]
    return [new[: end + 1] for new, end in zip(generated, ends, strict=True)]


def _continuation(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, new: list[int], settings: Settings
) -> Continuation:
    ended = bool(new) and new[-1] in settings.ends
    while not ended and new and new[-1] == settings.padding:  # padding after a stop string
        new = new[:-1]
    reason = "length" if not ended and len(new) == settings.most else "stop"
    return Continuation(continued_text(tokenizer, prompt.ids, new), len(new), reason)


def continued_text(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], new: Sequence[int]) -> str:
    """Returns the text that new tokens add to a prompt."""
    # a tokenizer may drop a leading space when it decodes; here the space is in the middle of the text
    before, whole_text = (decode_text(tokenizer, ids) for ids in (prompt, (*prompt, *new)))
    return whole_text[len(before) :] if whole_text.startswith(before) else decode_text(tokenizer, new)


def decode_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Returns the text of tokens as it is, without special tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _left_padded(prompts: Sequence[Sequence[int]], padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)
