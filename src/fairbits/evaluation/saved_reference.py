"""A reference model's predictions in a directory, so that they are computed once for many candidates.

It has the features of every position, the head that reads them, and the token ids of the text; not the model.
"""

import warnings
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairbits.core.errors import InputError
from fairbits.core.files import check_directory, file_sha256, whole_directory
from fairbits.core.progress import SAVING, Progress
from fairbits.core.records import Amount, Code, Count, Digest, Kind, Positive, to_json
from fairbits.evaluation.hidden_states import predicted_positions
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.servers.address import RECORD_FILE
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.forward.windows import TokenizedText, Window, WindowPart
from fairbits.models.io.safetensors_files import StoredTensor, in_memory, map_tensor, read_header, write_tensors

TENSORS = "reference.safetensors"
HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class SavedReference:
    """What a saved reference is about; its tensors are in another file, whose hash it has."""

    reference: Identity
    setting: EvaluationSetting
    languages: tuple[Code, ...]
    lang: tuple[Code, ...]
    document: tuple[Count, ...]
    size_bytes: tuple[Amount, ...]
    estimated: Count
    padding: Count
    vocabulary: Positive
    notes: tuple[str, ...]
    sha256: Digest


REFERENCE_KIND = Kind("fairbits.reference/1", "a saved reference", "fairbits evaluate --save-reference", SavedReference)


def save_reference(reference: ReferenceModel, path: str | Path, *, progress: Progress | None = None) -> None:
    """Writes the predictions of a reference model into a new directory."""
    target = check_directory(path, holding=())
    assert reference.setting is not None
    assert reference.identity is not None
    text, head = reference.text, reference.head
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no tensors that can only be read; these are not written
        features = torch.from_numpy(reference.features).view(reference.dtype)
    if isinstance(head, nn.Linear):
        weights = {"head.weight": head.weight, **({} if head.bias is None else {"head.bias": head.bias})}
        vocabulary = head.out_features
    elif isinstance(head, nn.Module) or reference.separate:
        raise InputError(
            f"the head of {reference.target} is more than one linear layer, so it cannot be saved without the model; "
            "leave --save-reference out, and give the model each time"
        )
    else:
        weights, vocabulary = {}, features.shape[1]  # the features are the logits
    windows = [window.main for window in text.windows]
    stored = {
        "features": features,
        **weights,
        "ids": torch.tensor([token for window in windows for token in window.ids]),
        "labels": torch.tensor([label for window in windows for label in window.labels]),
        "text": torch.tensor([real for window in windows for real in window.text]),
        "lengths": torch.tensor([len(window.ids) for window in windows]),
        "documents": torch.tensor([window.document for window in text.windows]),
    }
    with whole_directory(target) as draft:
        digest = write_tensors(draft / TENSORS, in_memory(stored), stage=SAVING, progress=progress)
        record = REFERENCE_KIND.stamp(
            {
                "reference": vars(reference.identity),
                "setting": reference.setting.as_data(),
                "languages": text.languages,
                "lang": text.lang.tolist(),
                "document": text.document.tolist(),
                "size_bytes": text.size_bytes.tolist(),
                "estimated": text.estimated,
                "padding": text.padding,
                "vocabulary": vocabulary,
                "notes": reference.notes,
                "sha256": digest,
            }
        )
        (draft / RECORD_FILE).write_bytes(to_json(record))


def open_reference(path: str | Path) -> ReferenceModel:
    """Returns the reference model that a directory has the predictions of."""
    directory = Path(path).expanduser()
    record = REFERENCE_KIND.read(directory / RECORD_FILE)
    tensors = read_header(directory / TENSORS)
    try:
        if file_sha256(directory / TENSORS) != record.sha256:
            raise ValueError(f"{TENSORS} has changed")
        text = _read_text(record, tensors)
        features = map_tensor(tensors["features"])
        head = _read_head(tensors, features, record.vocabulary)
        consistent = len(features) == predicted_positions(text) and len(record.lang) == len(record.size_bytes)
    except (KeyError, ValueError, IndexError, RuntimeError) as problem:
        consistent, reason = False, str(problem)
    else:
        reason = "its parts do not belong together"
    if not consistent:
        raise InputError(f"{directory} is damaged ({reason}); write it again with --save-reference")
    rows = features.reshape(len(features), -1).view(torch.uint8).numpy()
    return ReferenceModel(
        *(record.reference.target, text, record.notes, head, rows, features.dtype),
        (directory / TENSORS).open("rb"),
        separate=bool(HEAD[0] in tensors),
        setting=record.setting,
        identity=record.reference,
    )


def _read_text(record: SavedReference, tensors: dict[str, StoredTensor]) -> TokenizedText:
    ids, labels, real, lengths, documents = (
        map_tensor(tensors[name]).tolist() for name in ("ids", "labels", "text", "lengths", "documents")
    )
    parts = [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
    if not len(ids) == len(labels) == len(real) == sum(lengths) or max(documents) >= len(record.lang):
        raise ValueError("its text is not whole")
    windows = tuple(
        Window(number, WindowPart(ids[part], real[part], labels[part]))
        for number, part in zip(documents, parts, strict=True)
    )
    return TokenizedText(
        record.languages,
        np.array(record.lang),
        np.array(record.document),
        np.array(record.size_bytes),
        windows,
        record.padding,
        record.estimated,
    )


def _read_head(tensors: dict[str, StoredTensor], features: Tensor, vocabulary: int) -> Any:
    weight, bias = (map_tensor(tensors[name]) if name in tensors else None for name in HEAD)
    if weight is None:
        if features.shape[1] != vocabulary:
            raise ValueError("it has no head")
        return lambda rows: rows
    if weight.shape != (vocabulary, features.shape[1]):
        raise ValueError("its head does not fit its features")
    head = nn.Linear(features.shape[1], vocabulary, bias=bias is not None, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        head.bias = nn.Parameter(bias, requires_grad=False)
    return head
