"""PassSettings: what a pass over text measures, and how."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.experts import ExpertCounter, expert_points
from fairbits.forward.recorder import Recorder, measuring_points, observable_linears
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class PassSettings:
    """A model and the text to measure it on; `dtype` and `device` are what it computes in and on."""

    checkpoint: Checkpoint
    text: TokenizedText
    schemes: tuple[Scheme, ...] = field(kw_only=True)
    second_moments: bool = field(kw_only=True)
    dtype: torch.dtype = field(kw_only=True)
    device: str = field(kw_only=True)
    seed: int = field(kw_only=True)
    progress: Progress | None = field(kw_only=True)

    def recorder(self, model: "PreTrainedModel") -> Recorder:
        """Returns a recorder for the modules of this model, which need not have weights yet."""
        linears, left_out = observable_linears(self.checkpoint.architecture, model)
        if not linears:
            raise InputError(f"{self.checkpoint.target} has no linear layer whose activations can be observed")
        languages = torch.from_numpy(self.text.language_of)
        return Recorder(
            model,
            measuring_points(self.checkpoint.architecture, model),
            linears,
            documents=languages,
            schemes=self.schemes,
            second_moments=self.second_moments,
            left_out=left_out,
            experts=ExpertCounter(expert_points(self.checkpoint.architecture), languages, device=self.device),
            device=self.device,
        )
