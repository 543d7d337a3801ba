"""Inspect: what is known of a model without running it: its blocks, its tensors, the moments of their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.version import __version__
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.hub_checkpoint import open_to_read
from fairbits.models.io.gguf_file import gguf_names
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.weight_moments import ModelMoments, Moments, mixture_moments, weight_moments

SCHEMA = "fairbits.inspection/1"
SHORT: Mapping[str, str] = {
    "attention_out": "o",
    "mlp_gate": "gate",
    "mlp_up": "up",
    "mlp_gate_up": "gate_up",
    "mlp_down": "down",
}
CROSS = "cross "
ORDER = ("q", "k", "v", "qkv", "o", *(CROSS + role for role in "qkvo"), "gate", "up", "gate_up", "down")
"""Roles in the order of tables; others follow."""


@dataclass(frozen=True)
class StoredRole:
    """How the weights of one role are stored, if they are stored alike, and how the inputs of their layers are."""

    role: str
    stored: str
    inputs: str
    weights: int
    nbytes: int

    @property
    def bits(self) -> float:
        """Bits per weight, with scales and zero points."""
        return 8 * self.nbytes / max(self.weights, 1)


def storage(checkpoint: Checkpoint) -> tuple[StoredRole, ...]:
    """Returns how a quantized checkpoint is stored, role by role; only headers are read."""
    plain = checkpoint.plain
    if plain is None:
        raise InputError(
            f"{checkpoint.target} was quantized by {checkpoint.quantization_method}, and only its own package reads "
            "that: evaluate it instead, where the package is installed"
        )
    kinds = gguf_types(checkpoint) if checkpoint.kind == "gguf" else {}
    sums: dict[tuple[str, str, str], list[int]] = {}
    for name, weight in plain.architecture.weights.items():
        stored, inputs, nbytes = kinds.get(name) or plain.stored_as(name)
        role = role_name(weight) if weight.linear or weight.is_embedding else "other"
        total = sums.setdefault((role, stored, inputs), [0, 0])
        total[0] += plain.tensors[name].numel
        total[1] += nbytes
    places = {role: place for place, role in enumerate(("embedding", *ORDER))}
    return tuple(
        StoredRole(*kind, *total) for kind, total in sorted(sums.items(), key=lambda item: places.get(item[0][0], 99))
    )


def gguf_types(checkpoint: Checkpoint) -> dict[str, tuple[str, str, int]]:
    """Returns the type and the bytes of the tensors of a GGUF file, by the names of the model that was made of it."""
    import gguf

    architecture = checkpoint.architecture
    names = gguf_names(architecture.family, checkpoint.tensors, blocks=architecture.n_blocks)
    reader = gguf.GGUFReader(Path(checkpoint.target).expanduser())
    stored = {tensor.name: (tensor.tensor_type.name, "–", int(tensor.n_bytes)) for tensor in reader.tensors}
    return {name: stored[there] for name, there in names.items() if there in stored}


@dataclass(frozen=True, eq=False)
class Inspection:
    """A model and the moments of its weights."""

    checkpoint: Checkpoint
    moments: ModelMoments

    @property
    def roles(self) -> tuple[Mapping[str, Moments], ...]:
        """The moments of the linear layers of every block by their role; layers of one role, as experts, are joined.

        Attention that reads the encoder's output is "cross q", "cross k", "cross v", "cross o". The research notes
        place mT5's outliers in the attention of its decoder.
        """
        return tuple(self._roles_of(block.linears) for block in self.checkpoint.architecture.blocks)

    def _roles_of(self, linears: Mapping[str, Weight]) -> dict[str, Moments]:
        by_role: dict[str, list[Moments]] = {}
        for name, weight in linears.items():
            by_role.setdefault(role_name(weight), []).append(self.moments.tensors[name])
        ordered = sorted(by_role, key=lambda role: ORDER.index(role) if role in ORDER else len(ORDER))
        return {role: _joined(by_role[role]) for role in ordered}

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
            "roles": [{role: moments.kappa for role, moments in block.items()} for block in self.roles],
        }


def role_name(weight: Weight) -> str:
    """Returns the role of a linear layer as tables name it, with "cross" for attention to the encoder's output."""
    sees = weight.sees or ""
    cross = sees == "encoder_output" or "cross_attention" in sees
    return f"{CROSS * cross}{SHORT.get(weight.role, weight.role)}"


def _joined(parts: Sequence[Moments]) -> Moments:
    sizes = [part.n for part in parts]
    return parts[0] if len(parts) == 1 else mixture_moments(parts, sizes, n=sum(sizes))


def inspect(model: Model, *, progress: Progress | None = None) -> Inspection:
    """Returns a model and the moments of its weights, after one pass over its files; on the Hub, if they are there."""
    opened = open_to_read(model) if isinstance(model, str | Path) else open_checkpoint(model)
    checkpoint = opened.plain or opened
    return Inspection(checkpoint, weight_moments(checkpoint, progress=progress))
