"""Writes a copy of a checkpoint with the outliers of a plan."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from fairbits.core.errors import InputError
from fairbits.core.files import whole_directory
from fairbits.core.version import __version__
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.cache import kept_directory
from fairbits.models.io.safetensors_files import StoredTensor
from fairbits.models.io.writer import COMPANIONS
from fairbits_research.outliers.couplings import Route, Slice
from fairbits_research.outliers.outlier_plan import OutlierPlan, plan_outliers


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
