"""Inspect: what is known of a model without running it: its blocks, its tensors, the moments of their weights."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbits.core.progress import Progress
from fairbits.core.version import __version__
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.hub_checkpoint import open_to_read
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.weight_moments import ModelMoments, weight_moments

SCHEMA = "fairbits.inspection/1"


@dataclass(frozen=True, eq=False)
class Inspection:
    """A model and the moments of its weights."""

    checkpoint: Checkpoint
    moments: ModelMoments

    def as_data(self) -> dict[str, Any]:
        checkpoint, architecture = self.checkpoint, self.checkpoint.architecture
        return {
            "schema": SCHEMA,
            "fairbits": __version__,
            "target": checkpoint.target,
            "fingerprint": checkpoint.fingerprint,
            "notes": list(checkpoint.notes),
            "family": architecture.family,
            "class": architecture.class_name,
            "weights": {name: asdict(weight) for name, weight in architecture.weights.items()},
            "fused": {name: [weight.name for weight in group] for name, group in architecture.fused_groups.items()},
            "tied": dict(architecture.tied),
            "ignored": dict(architecture.ignored),
            "moments": self.moments.as_data(),
        }


def inspect(model: Model, *, progress: Progress | None = None) -> Inspection:
    """Returns a model and the moments of its weights, after one pass over its files; on the Hub, if they are there."""
    checkpoint = open_to_read(model) if isinstance(model, str | Path) else open_checkpoint(model)
    return Inspection(checkpoint, weight_moments(checkpoint, progress=progress))
