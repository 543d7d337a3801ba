"""The base file: a reference model's log-probabilities in 16 bits, as `llama-perplexity --kl-divergence` reads them.

The file holds, in little-endian order, the text "_logits_", three int32 (tokens in a chunk, tokens in the vocabulary,
number of chunks), the tokens of all chunks as int32, and a row for every predicted token: scale and least as float32,
and an unsigned 16-bit code for every token of the vocabulary (one more if their number is odd), with
log p = scale · code + least. The codes reach from the largest log-probability to SPAN below it, or to the smallest.
llama-perplexity leaves tokens with log p ≤ −SPAN out of the divergence.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.memory import LOGIT_POSITIONS, LOGITS
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.windows import NO_LABEL, Window

MAGIC = b"_logits_"
SPAN = 16.0
TOP_CODE = 65535


@dataclass(frozen=True, eq=False)
class StoredReference:
    """What a base file holds, with one entry per predicted token.

    `nll`      −log p(token) of the reference, in nats, and `nll_stored` what the file says
    `self_kl`  KL of the reference with itself as it is in the file, over the tokens that llama-perplexity reads
    `skipped`  the probability of all tokens that it leaves out
    `moved`    1 where the first choice is another token in the file, as the codes of two are equal
    """

    nll: Floats
    nll_stored: Floats
    self_kl: Floats
    skipped: Floats
    moved: Floats


def base_file_size(chunks: int, length: int, vocabulary: int, *, predicted: int) -> int:
    """Returns the bytes of a base file of chunks of `length` tokens."""
    return 20 + 4 * chunks * length + 2 * chunks * predicted * _row_width(vocabulary)


def write_base_file(
    file: IO[bytes], answers: ReferenceModel, windows: Sequence[Window], positions: range, *, device: str
) -> StoredReference:
    """Returns what it wrote: the answers of the reference on windows of equal length, at some of its positions."""
    labels = torch.tensor([label for window in windows for label in window.main.labels if label != NO_LABEL])
    vocabulary = answers.logits(slice(positions.start, positions.start + 1), device=device).shape[1]
    rows = max(LOGITS // vocabulary, LOGIT_POSITIONS)
    ids = [window.main.ids for window in windows]
    file.write(MAGIC + struct.pack("<3i", len(ids[0]), vocabulary, len(ids)) + np.array(ids, "<i4").tobytes())
    facts = []
    for begin in range(0, len(positions), rows):
        part = positions[begin : begin + rows]
        logits = answers.logits(slice(part.start, part.stop), device=device).float()
        if not torch.isfinite(logits).all():
            raise InputError(f"the logits of {answers.target} contain NaN or infinity; check its weights")
        encoded, about = encode_logits(logits, labels[begin : begin + rows].to(device))
        file.write(encoded.data)
        facts.append(about.cpu())
    file.flush()
    return StoredReference(*torch.cat(facts, 1).double().numpy())


def encode_logits(logits: Tensor, labels: Tensor) -> tuple[NDArray[np.uint16], Tensor]:
    """Returns the rows of some positions, and the fields of `StoredReference`, (5, positions).

    Everything is computed in float32 in the order of llama.cpp, so that the same logits give the same file.
    """
    top, choice = logits.max(1, keepdim=True)
    floor = torch.maximum(logits.amin(1, keepdim=True), top - SPAN)
    log_sum = (logits - top).exp_().sum(1, keepdim=True, dtype=torch.float64).log_().float()
    scale, least = (top - floor) / TOP_CODE, floor - top - log_sum
    codes = (logits - floor).clamp_min_(0).mul_(torch.where(scale > 0, 1 / scale, 0)).round_()
    log_p = logits - top - log_sum
    stored = scale * codes + least
    at = labels[:, None]
    losses = -log_p.gather(1, at)[:, 0], -stored.gather(1, at)[:, 0]
    p = stored.exp().masked_fill_(stored <= -SPAN, 0)
    skipped = log_p.exp().masked_fill_(stored > -SPAN, 0).sum(1)
    self_kl = (stored - log_p).mul_(p).sum(1)
    moved = (codes.argmax(1) != choice[:, 0]).float()
    rows = np.zeros((len(logits), _row_width(logits.shape[1])), dtype="<u2")
    rows[:, :4] = torch.cat([scale, least], 1).cpu().numpy().astype("<f4").view("<u2")
    rows[:, 4 : 4 + logits.shape[1]] = codes.cpu().numpy().astype("<u2")
    return rows, torch.stack([*losses, self_kl, skipped, moved])


def _row_width(vocabulary: int) -> int:
    """Returns how many 16-bit numbers a row has."""
    return 2 * ((vocabulary + 1) // 2) + 4
