"""Dropout: what every language loses when random input columns are missing."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from fairbits.quantize.rounding.layer import matrix
from fairbits.science.experiments.laboratory import ModelLab
from fairbits.stats import LanguageFrame

DROPPED = 0.05
"""The share of input columns that is set to 0."""
DRAWS = 4


def dropped(lab: ModelLab) -> LanguageFrame:
    """Returns the damage of setting a random 5 % of the input columns of every linear map to 0, mean of the draws."""
    frames = []
    for seed in range(DRAWS):
        lab.tell("dropping columns", seed, DRAWS)
        frames.append(lab.changed(_without_columns(lab, seed)))
    return replace(frames[0], values=np.mean([each.values for each in frames], axis=0))


def _without_columns(lab: ModelLab, seed: int) -> Iterator[tuple[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    for each in chain.from_iterable(lab.maps):
        W = matrix(lab.checkpoint, each)
        yield each.name, W * (torch.rand(W.shape[1], generator=rng) >= DROPPED)
