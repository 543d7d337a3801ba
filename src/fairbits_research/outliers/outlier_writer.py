"""Writes a copy of a checkpoint whose chosen blocks have a requested kurtosis, without changing the function.

`plan_outliers` decides what is rescaled; `write_with_outliers` writes the rescaled copy and the plan.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError
from fairbits.core.files import kept_directory, whole_directory
from fairbits.core.version import __version__
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.checkpoint_writer import COMPANIONS
from fairbits.models.io.safetensors_files import StoredTensor
from fairbits_research.outliers.couplings import Channels, Coupling, Route, Slice
from fairbits_research.outliers.kurtosis_search import find_staircase, kurtosis, power_sums


@dataclass(frozen=True)
class Rescaling:
    """One channel of one block: what its coupling grows × `factor`, what it shrinks ÷ `factor` (a power of two)."""

    block: int
    factor: int
    coupling: Coupling


@dataclass(frozen=True)
class OutlierPlan:
    """What is rescaled, and the excess kurtosis per block before, as requested and as achieved.

    κ is that of all linear weights of the block together, or of those with the given role.
    """

    route: Route
    role: str | None
    seed: int
    before: Mapping[int, float]
    requested: Mapping[int, float]
    achieved: Mapping[int, float]
    rescalings: tuple[Rescaling, ...]

    @property
    def factors(self) -> Mapping[str, tuple[tuple[Slice, float], ...]]:
        """The slices to multiply and their factors, by tensor name."""
        factors: dict[str, list[tuple[Slice, float]]] = {}
        for step in self.rescalings:
            grows = [(part, float(step.factor)) for part in step.coupling.grows]
            shrinks = [(part, 1 / step.factor) for part in step.coupling.shrinks]
            for part, factor in grows + shrinks:
                factors.setdefault(part.tensor, []).append((part, factor))
        return {name: tuple(parts) for name, parts in factors.items()}


def plan_outliers(
    checkpoint: Checkpoint, kappa: Mapping[int, float], *, seed: int = 0, route: Route = "norm", role: str | None = None
) -> OutlierPlan:
    """Returns the plan that brings every block in `kappa` to that excess kurtosis within 2 %, at an equal function.

    The fewest channels that come within 1 % are taken. The seed orders the channels, with one order for all blocks
    since the outliers of real models keep to the same channels throughout.
    """
    if not isinstance(kappa, Mapping) or not kappa:
        raise InputError(f"kappa is {kappa!r}; it must map at least one block to a κ, for example {{3: 125}}")
    for block, target in kappa.items():
        whole("block", block, least=0, most=checkpoint.architecture.n_blocks - 1)
        in_range(f"kappa of block {block}", target, above=0.0)
    whole("seed", seed, least=0)
    requested = {block: float(kappa[block]) for block in sorted(kappa)}
    before, achieved, rescalings = {}, {}, []
    for block, target in requested.items():
        try:
            before[block], achieved[block], chosen = _plan_block(
                checkpoint, block, target=target, seed=seed, route=route, role=role
            )
        except InputError as error:
            raise InputError(f"block {block} of {checkpoint.target}: {error}") from None
        rescalings += chosen
    return OutlierPlan(route, role, seed, before, requested, achieved, tuple(rescalings))


def _plan_block(
    checkpoint: Checkpoint, block: int, *, target: float, seed: int, route: Route, role: str | None
) -> tuple[float, float, list[Rescaling]]:
    linears = checkpoint.architecture.blocks[block].linears.values()
    if role is not None:
        one_of("role", role, sorted({weight.role for weight in linears}))
    weights = {w.name: checkpoint.read(w.name) for w in linears if role in (None, w.role)}
    for name, W in weights.items():
        if W.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise InputError(f"{name} is stored as {W.dtype}; it must be float16, bfloat16 or float32")
    measured = {name: power_sums(W) for name, W in weights.items()}
    channels = Channels(checkpoint, block, seed=seed, route=route, measured=measured)
    n = sum(W.numel() for W in weights.values())
    sums = np.sum([rows.sum(0) for rows, _ in measured.values()], axis=0)
    if not (np.isfinite(sums).all() and sums[1] > 0):
        raise InputError("its weights are all 0, or some are NaN or infinite; repair them first")
    staircase = find_staircase(target, n, sums, orders=channels.orders, slices=channels.power_sums)
    couplings = channels.bearing(staircase.order, max(staircase.exponents, default=0))
    chosen = [Rescaling(block, 2**e, c) for e, c in zip(staircase.exponents, couplings, strict=False)]
    return float(kurtosis(n, sums)), staircase.kappa, chosen


def write_with_outliers(
    checkpoint: Checkpoint,
    directory: Path,
    kappa: Mapping[int, float],
    *,
    seed: int = 0,
    route: Route = "norm",
    role: str | None = None,
) -> OutlierPlan:
    """Returns the plan (see `plan_outliers`) after writing the rescaled checkpoint and the plan into `directory`.

    The directory must be new or empty; it is written completely or not at all. Files keep their names and layout, and
    every tensor that the plan does not touch keeps its bytes. The plan is saved as ``outliers.json``.
    """
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty; give a new directory")
    plan = plan_outliers(checkpoint, kappa, seed=seed, route=route, role=role)
    try:
        with whole_directory(directory) as draft:
            _write(checkpoint, plan, draft)
    except OSError as problem:
        raise InputError(f"cannot write {directory} ({problem}); free some space or give another directory") from None
    return plan


def directory_with_outliers(checkpoint: Checkpoint, kappa: Mapping[int, float]) -> Path:
    """Returns the directory of the checkpoint with the given kurtosis by block, written to the cache if it is missing.

    Its name is a hash of everything that decides its content, this code included: other code may write another model.
    """
    code = [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
    content = "\n".join([checkpoint.fingerprint, checkpoint.tokenizer_hash, repr(dict(kappa)), *code])
    name = f"outliers-{hashlib.sha256(content.encode()).hexdigest()}"
    return kept_directory(name, lambda draft: write_with_outliers(checkpoint, draft, kappa))


def rescale(name: str, tensor: torch.Tensor, factors: Iterable[tuple[Slice, float]]) -> torch.Tensor:
    """Returns a copy of the tensor with the given slices multiplied."""
    result = tensor.clone()
    for part, factor in factors:
        if part.axis >= result.ndim or max(part.indices) >= result.shape[part.axis]:
            raise InputError(
                f"{name} has shape {tuple(result.shape)}, too small for the plan; plan for this model first"
            )
        result.movedim(part.axis, 0)[list(part.indices)] *= factor
    if not result.isfinite().all():
        raise InputError(f"{name} would leave the range of {result.dtype}; request a smaller κ or use a wider type")
    return result


def _write(checkpoint: Checkpoint, plan: OutlierPlan, directory: Path) -> None:
    shards = {info.file for info in checkpoint.files.values()}
    companions = {path for path in checkpoint.directory.iterdir() if path.is_file() and path.suffix in COMPANIONS}
    for path in shards | companions:
        shutil.copyfile(path, directory / path.name)
    for name, factors in plan.factors.items():
        info = checkpoint.files[name]
        _overwrite(directory / info.file.name, info, rescale(name, checkpoint.read(name), factors))
    (directory / "outliers.json").write_text(_as_json(plan, checkpoint), encoding="utf-8")


def _overwrite(file: Path, info: StoredTensor, tensor: torch.Tensor) -> None:
    with file.open("r+b") as stream:
        stream.seek(info.start)
        stream.write(tensor.contiguous().view(torch.uint8).numpy().data)


def _as_json(plan: OutlierPlan, checkpoint: Checkpoint) -> str:
    source = {"target": checkpoint.target, "sha256": checkpoint.fingerprint, "notes": checkpoint.notes}
    content = {"schema": 1, "fairbits": __version__, "source": source, **asdict(plan)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
