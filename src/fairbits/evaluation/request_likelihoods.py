"""Log-likelihoods of texts, given what precedes them: many requests to one model in one pass.

Texts become tokens as in lm-eval, so that results are comparable: a context and its continuation are split together,
and spaces at the end of the context belong to the continuation. What is too long is cut at its beginning.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.evaluation.hidden_states import EvaluatedModel, WholeModel, evaluated_model, positions_by_window
from fairbits.forward.windows import NO_LABEL, TokenizedText, Window, WindowPart
from fairbits.models.checkpoint import Checkpoint

STAGE = "evaluating"
LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")
UNLIMITED = 2**31  # positions of a tokenizer that states no limit, or more
DEFAULT_LENGTH = 2048  # of models that state none, as in lm-eval
Ids = list[int]
Likelihood = tuple[float, bool]
"""The log-likelihood of a continuation in nats, and whether each of its tokens is the most probable one."""


class RequestTokenizer:
    """The tokens of requests to a model, as lm-eval makes them."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        tokenizer, plain = checkpoint.tokenizer() if tokenizer is None else tokenizer, checkpoint.plain
        if plain is not None and plain.task != "causal":
            raise InputError(f"{checkpoint.target} does not predict the next token; tasks need a model that does")
        config = checkpoint.config.get_text_config()
        self.tokenizer, self.rows = tokenizer, int(config.vocab_size)
        prefix = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if not isinstance(prefix, int):
            raise InputError(f"the tokenizer of {checkpoint.target} has neither a start nor an end token; it needs one")
        self.prefix, self._begins = prefix, str(tokenizer.decode([prefix]))
        stated = [getattr(config, name, None) for name in LENGTHS] + [tokenizer.model_max_length, DEFAULT_LENGTH]
        self.length = next(int(length) for length in stated if length is not None and 0 < length < UNLIMITED)
        self.padding = next(
            token
            for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
            if isinstance(token, int) and token < self.rows
        )  # any of the vocabulary, as padding is masked
        if tokenizer("a", verbose=False)["input_ids"][1:][-1:] == [tokenizer.eos_token_id]:
            raise InputError(
                f"the tokenizer of {checkpoint.target} ends every text with {tokenizer.eos_token!r}, so that choices "
                "would be compared by that token; set add_eos_token to false in its tokenizer_config.json"
            )
        self.encode: Callable[[str], Ids] = lru_cache(16)(self._encode)  # a context occurs with every choice

    def _encode(self, text: str) -> Ids:
        """Returns the tokens of a text, with the special ones that the tokenizer adds; the start token only once."""
        return self._ids(text, special=not text.startswith(self._begins))

    def _ids(self, text: str, *, special: bool) -> Ids:
        ids: Ids = self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        if max(ids, default=0) >= self.rows:
            raise InputError(f"the tokenizer gives the id {max(ids)}, and the model has a vocabulary of {self.rows}")
        return ids

    def pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Returns the tokens of a context and of its continuation."""
        if not context:
            ids = self._ids(continuation, special=False)
            before, after = (ids[:1], ids[1:]) if ids[:1] == [self.prefix] else ([self.prefix], ids)
        else:
            plain = context.rstrip()
            before = self.encode(plain)
            after = self._encode(context + continuation)[len(before) :]
        if not before or not after:
            part, text = ("continuation", continuation) if before else ("context", context)
            raise InputError(f"no token stands for the {part} {text!r:.60}; change the text, or leave the item out")
        if len(after) > self.length:
            raise InputError(
                f"the continuation {continuation!r:.60} has {len(after):,} tokens, and the model accepts "
                f"{self.length:,}; shorten it, or leave the item out"
            )
        return before, after

    def rolling(self, text: str) -> Iterator[tuple[Ids, Ids]]:
        """Yields contexts and continuations that together are a text; only the last context is longer than a token.

        The start token is not part of the text. lm-eval predicts it, after itself, where a tokenizer adds it.
        """
        ids = self._encode(text)
        ids = ids[1:] if ids[:1] == [self.prefix] else ids
        if not ids:
            raise InputError(f"no token stands for the text {text!r:.60}; change it, or leave the item out")
        yield [self.prefix], ids[: self.length]
        for begin in range(self.length, len(ids), self.length):
            end = min(begin + self.length, len(ids))
            yield ids[end - self.length - 1 : begin], ids[begin:end]


class LikelihoodModel:
    """A model that says how likely continuations are; it is in memory as a whole, or block by block in every pass."""

    def __init__(self, checkpoint: Checkpoint, tokens: RequestTokenizer, *, device: str) -> None:
        self._checkpoint, self._tokens, self._device = checkpoint, tokens, device
        self._loaded: WholeModel | None = None
        self.notes: tuple[str, ...] = ()

    @torch.no_grad()
    def likelihoods(self, pairs: Sequence[tuple[Ids, Ids]], progress: Progress | None = None) -> list[Likelihood]:
        """Returns the log-likelihood of every continuation.

        Pairs with the same tokens but for the last are one window: a prompt whose choices are one token each passes the
        model once. The head only sees the positions of continuations.
        """
        if not pairs:
            return []
        read: dict[tuple[int, ...], list[int]] = {}  # tokens that the model reads → pairs
        for index, (before, after) in enumerate(pairs):
            read.setdefault(tuple((before + after)[-self._tokens.length - 1 : -1]), []).append(index)
        spans = [max(len(pairs[index][1]) for index in indices) for indices in read.values()]
        windows = tuple(
            Window(number, WindowPart(list(ids), [True] * len(ids), [NO_LABEL] * (len(ids) - span) + [0] * span))
            for number, (ids, span) in enumerate(zip(read, spans, strict=True))
        )
        names = np.full(len(windows), "")
        padding = self._tokens.padding
        text = TokenizedText(("",), names, np.arange(len(windows)), np.zeros(len(windows)), windows, padding)
        targets = [
            (position, label, index)
            for indices, positions in zip(read.values(), positions_by_window(text), strict=True)
            for index in indices
            for position, label in zip(positions[-len(pairs[index][1]) :], pairs[index][1], strict=True)
        ]
        nats, greedy = np.zeros(len(pairs)), np.ones(len(pairs), dtype=bool)
        for indices, values, likeliest in self._values(text, np.array(sorted(targets)), progress):
            np.add.at(nats, indices, values)
            np.logical_and.at(greedy, indices, likeliest)
        return list(zip(nats.tolist(), greedy.tolist(), strict=True))

    def _values(
        self, text: TokenizedText, targets: NDArray[np.intp], progress: Progress | None
    ) -> Iterator[tuple[NDArray[np.intp], Floats, NDArray[np.bool_]]]:
        """Yields pairs, log-probabilities and whether these are the largest, of sorted targets.

        A target is a position, in the order of the features, a token and a pair.
        """
        model, done = self._model(text), 0
        for states in model.features(STAGE, progress):
            for part in states.split(model.logit_positions):
                begin, end = np.searchsorted(targets[:, 0], (done, done + len(part.labels)))
                rows, labels, indices = targets[begin:end].T
                logits = model.head(part.features).float()
                logits = logits - logits.amax(-1, keepdim=True)  # differences of small numbers are more exact
                at, label = (torch.from_numpy(column).to(logits.device) for column in (rows - done, labels.copy()))
                values = (logits[at, label] - logits.exp().sum(-1).log()[at]).cpu().double().numpy()
                if not np.isfinite(values).all():
                    raise InputError(f"the logits of {model.name} contain NaN or infinity; check its weights")
                yield indices, values, (logits.argmax(-1)[at] == label).cpu().numpy()
                done += len(part.labels)

    def _model(self, text: TokenizedText) -> EvaluatedModel:
        if self._loaded is not None:
            return self._loaded.on(text)
        model = evaluated_model(self._checkpoint, text, device=self._device)
        self._loaded, self.notes = (model if isinstance(model, WholeModel) else None), model.notes
        return model
