"""ReferenceModel: the full-precision model's predictions on a text, and quantized models compared with them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.core.progress import QUANTIZED, REFERENCE, Progress, begin
from fairbits.evaluation.divergence import DocumentSums, compare_logits
from fairbits.evaluation.hidden_states import EvaluatedModel, HiddenStates, evaluated_model, predicted_positions
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.forward.tokenize import estimated_size_notes, joined_notes, short_text_notes, tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest

WHOLE = "the head of the reference cannot be separated from it: its logits were kept on disk instead of its features"


@dataclass(frozen=True, eq=False)
class ReferenceModel:
    """The features of a model at every predicting position, in a temporary file, and the head that reads them.

    The model itself is not kept, so it and the quantized model are never in memory together. Close it, or use it in a
    `with` statement, to remove the file.
    """

    target: str  # the model
    text: TokenizedText  # what it was evaluated on
    notes: tuple[str, ...]  # what a reader of any result must know
    head: Callable[[Tensor], Tensor] = field(repr=False)
    features: NDArray[np.uint8] = field(repr=False)
    dtype: torch.dtype = field(repr=False)
    _file: IO[bytes] = field(repr=False)
    separate: bool = True  # whether the features are not the logits themselves
    setting: EvaluationSetting | None = None  # only `on_corpus` sets it and `identity`
    identity: Identity | None = None

    @classmethod
    def on_corpus(
        cls,
        checkpoint: Checkpoint,
        corpus: Corpus,
        *,
        request: TextRequest,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> "ReferenceModel":
        """Returns the reference of a model, after one pass over the requested text; it can score quantized models."""
        begin(progress, REFERENCE)
        setting = EvaluationSetting.of(checkpoint, corpus, request)
        text = tokenize_corpus(checkpoint, corpus, request=request, least=1)
        short = short_text_notes(text, request, parallel=corpus.parallel)
        estimated = estimated_size_notes(text.estimated, len(text.lang))
        identity = Identity.of(checkpoint)
        reference = cls.on_text(checkpoint, text, device=device, progress=progress)
        notes = (*corpus.notes, *joined_notes(request), *short, *estimated, *reference.notes)
        return replace(reference, notes=notes, setting=setting, identity=identity)

    @classmethod
    def on_text(
        cls,
        model: PreTrainedModel | Checkpoint,
        text: TokenizedText,
        *,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> "ReferenceModel":
        """Returns the reference of a model, after one pass over the text; the head of a loaded one must not change."""
        begin(progress, REFERENCE)
        evaluated = evaluated_model(model, text, device=device)
        with ExitStack() as stack:  # a failed pass leaves no file
            file = stack.enter_context(tempfile.TemporaryFile())
            states = evaluated.features(REFERENCE, progress)
            features, dtype = _write_features(file, states, text)
            stack.pop_all()
        notes = (*evaluated.notes, *(() if evaluated.separate else (WHOLE,)))
        target = model.target if isinstance(model, Checkpoint) else evaluated.name
        return cls(target, text, notes, evaluated.head, features, dtype, file, evaluated.separate)

    def logits(self, positions: slice | Tensor, *, device: str = "cpu") -> Tensor:
        """Returns the logits of some positions, numbered in the order of the features, as a copy."""
        if self._file.closed:
            raise InputError(f"the reference {self.target} is closed; use it before closing it, or create it again")
        if isinstance(self.head, torch.nn.Module):
            self.head.to(device)
        # a copy, as the features may themselves be the logits
        rows = np.array(self.features[positions if isinstance(positions, slice) else positions.numpy()])
        with torch.no_grad():
            return self.head(torch.from_numpy(rows).view(self.dtype).to(device))

    @torch.no_grad()
    def compare(
        self,
        model: PreTrainedModel | Checkpoint | EvaluatedModel,
        *,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> DocumentSums:
        """Returns how a quantized model, loaded or not, differs from the reference, after one pass over the text."""
        begin(progress, QUANTIZED)
        evaluated: EvaluatedModel
        if isinstance(model, PreTrainedModel | Checkpoint):
            evaluated = evaluated_model(model, self.text, device=device)
        else:
            evaluated = model
        sums = torch.zeros(7, len(self.text.lang), dtype=torch.float64)
        token_kl, token_margin = torch.empty(2, predicted_positions(self.text))
        token_document = torch.empty(len(token_kl), dtype=torch.long)
        done = 0
        for states in evaluated.features(QUANTIZED, progress):
            for part in states.split(evaluated.logit_positions):
                at = slice(done, done + len(part.labels))
                a, b = self.logits(at, device=device), evaluated.head(part.features)
                if a.shape != b.shape:
                    raise InputError(
                        f"{evaluated.name} has {b.shape[1]:,} tokens in its vocabulary and {self.target} "
                        f"{a.shape[1]:,}; both must have the same vocabulary: evaluate a model against the one it was "
                        "made from"
                    )
                values = compare_logits(a.float(), b.float(), part.labels.to(device)).cpu()
                if not torch.isfinite(values).all():
                    finite = torch.isfinite(self.logits(at, device=device)).all()
                    name = evaluated.name if finite else self.target
                    raise InputError(
                        f"the logits of {name} contain NaN or infinity; load it in float32, or check its weights"
                    )
                sums[0].index_add_(0, part.documents, torch.ones(len(part.labels), dtype=torch.float64))
                sums[1:6].index_add_(1, part.documents, values[:5])
                sums[6].index_add_(0, part.documents, values[3] * values[4])
                token_kl[at], token_margin[at] = values[2].float(), values[5].float()
                token_document[at] = part.documents
                done = at.stop
        tokens = token_kl.numpy(), token_margin.numpy(), token_document.numpy()
        predicted, nll_reference, nll_quantized, kl, flips, sure, sure_flips = sums.numpy()
        both = nll_reference, nll_quantized
        return DocumentSums(predicted, *both, kl, flips, sure, sure_flips, *tokens, evaluated.notes)

    def scores(
        self,
        model: PreTrainedModel | Checkpoint,
        quantized: Identity,
        *,
        notes: tuple[str, ...] = (),
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Scores:
        """Returns the scores of a quantized model; `notes` are about the models and come first."""
        assert self.setting is not None
        assert self.identity is not None
        sums = self.compare(model, device=device, progress=progress)
        notes = (*notes, *sums.notes, *self.notes)
        return Scores.of(
            sums, self.text, quantized=quantized, reference=self.identity, setting=self.setting, notes=notes
        )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "ReferenceModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_features(
    file: IO[bytes], states: Iterator[HiddenStates], text: TokenizedText
) -> tuple[NDArray[np.uint8], torch.dtype]:
    positions, written = predicted_positions(text), 0
    try:
        for part in states:
            features = part.features.cpu().contiguous()
            if not written:
                needed, free = positions * features[0].nbytes, shutil.disk_usage(tempfile.gettempdir()).free
                if needed > free:
                    raise _no_room(f"{needed:,} bytes are needed and {free:,} are free")
            written += file.write(features.view(torch.uint8).numpy().data)
        file.flush()
    except OSError as problem:
        raise _no_room(f"{problem.strerror} after {written:,} bytes") from None
    return np.memmap(file, dtype=np.uint8, mode="r").reshape(positions, -1), features.dtype


def _no_room(problem: str) -> InputError:
    return InputError(
        f"{tempfile.gettempdir()} has no room for the predictions of the reference model ({problem}); free some space, "
        "set TMPDIR to another directory, or evaluate on fewer tokens"
    )
