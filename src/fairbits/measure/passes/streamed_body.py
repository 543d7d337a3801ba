"""StreamedBody: a model without its head, for a pass in blocks, and the head that belongs to it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch
from fairbits.measure.passes.forward import Split

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-2}


class NotStreamableError(Exception):
    """A model that cannot be passed block by block, and why."""


class StreamedBody:
    """The model without its head, as a function of a batch; one batch passes the whole model.

    The head is the last linear map, if that alone gives the logits. Otherwise it is what the model computes from the
    result of its body: the model's own code is called with the result replaced. So logits that are scaled or clipped,
    or features that are transformed first, are computed as always.
    """

    def __init__(self, model: "PreTrainedModel", *, whole: Batch) -> None:
        self._model, self._base, self._whole = model, model.base_model, whole
        self._result: Any = None
        if self._base is model:
            raise NotStreamableError("its head cannot be separated from its blocks")

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the features of a batch, or the logits of the batch that passes the whole model."""
        if batch is self._whole:
            logits: Tensor = self._model(**batch.inputs_for(self._model), use_cache=False).logits
            return logits
        found = self._base(**batch.inputs_for(self._model), use_cache=False)
        self._result = type(found)
        features: Tensor = found.last_hidden_state
        return features

    def split(self, logits: Tensor, features: Tensor) -> Split:
        """Returns the body and a head that gives these logits from these features."""
        if features.shape[:-1] == logits.shape[:-1]:
            for head in (self._model.get_output_embeddings(), self._rest):  # type: ignore[no-untyped-call]
                if self._gives(head, logits.flatten(0, 1), features.flatten(0, 1)):
                    return Split(self, head, True)
        raise NotStreamableError("its logits do not follow from its last hidden states alone")

    def _gives(self, head: Callable[[Tensor], Tensor], logits: Tensor, features: Tensor) -> bool:
        with suppress(RuntimeError, InputError):  # shapes that do not fit, or a head that calls blocks again
            found, tolerance = head(features).float(), HEAD_TOLERANCE.get(logits.dtype, 1e-3)
            return torch.allclose(found, logits.float(), rtol=tolerance, atol=tolerance)
        return False

    def _rest(self, features: Tensor) -> Tensor:
        """Returns the logits of features (positions, width), by the model's own code."""
        self._base.forward = partial(_replaced, self._result(last_hidden_state=features[None]))
        try:
            ids = torch.zeros((1, len(features)), dtype=torch.long, device=features.device)
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        finally:
            del self._base.forward
        return logits[0]


def _replaced(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    return result
