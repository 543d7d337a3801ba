"""Trials as tasks: each (policy, bits, seed) on one model, done in this process or by a Ray cluster."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbits.api.make_plan import plan as make_plan
from fairbits.comparison.plan_trial import PlanResult, PlanTrial
from fairbits.comparison.stored_trials import StoredTrials
from fairbits.core.errors import InputError
from fairbits.core.progress import QUANTIZED, REFERENCE, ROUNDING, NumberedProgress, Progress
from fairbits.core.task_pool import Cluster, Resources, TaskPool, open_pool
from fairbits.core.version import __version__
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, is_gpu, resolve_device
from fairbits.quantization.policies.variants import Variant
from fairbits.text.corpus import Corpus, TextRequest

COPIES = 1.5  # of the model in float32: the model itself, and half as much for whatever else a task holds
AT_LEAST = 10**9  # bytes of a process that has imported torch and holds text, activations and results


@dataclass(frozen=True)
class Trial:
    """One policy at one width, calibrated on the text of one request; `label` is what its scores are called."""

    variant: Variant
    bits: int
    calibration: TextRequest
    label: str

    @property
    def name(self) -> str:
        return f"{self.variant.name}, {self.bits} bits, seed {self.calibration.seed}"


@dataclass(frozen=True, eq=False)
class TrialWork:
    """What the trials of one model share: model, text, the options of all policies, and the device."""

    checkpoint: Checkpoint
    corpus: Corpus
    evaluation: TextRequest
    common: Mapping[str, Any]
    device: str

    @contextmanager
    def open(self, progress: Progress | None = None) -> Iterator[Callable[[Trial, Progress | None], PlanResult]]:
        """Yields the function that does one trial, after one pass over the evaluation text."""
        device = resolve_device(self.device)
        of = PlanTrial.of(self.checkpoint, self.corpus, request=self.evaluation, device=device, progress=progress)
        with of as opened:
            same: dict[tuple[str, int, str], PlanResult] = {}  # plans that need no text, whatever the seed

            def do(trial: Trial, progress: Progress | None) -> PlanResult:
                plan = make_plan(
                    opened.checkpoint,
                    policy=trial.variant.policy,
                    text=opened.corpus if trial.variant.reads_text else None,
                    device=device,
                    progress=progress,
                    **trial.variant.at(trial.bits, {**self.common, **trial.calibration.settings}),
                )
                key = trial.label, trial.bits, plan.digest
                if key in same:
                    return same[key]
                result = opened.run(plan, name=trial.label, progress=progress)
                if not plan.reads_text:
                    same[key] = result
                return result

            yield do

    def settings(self, trial: Trial) -> dict[str, Any]:
        return {
            "fairbits": __version__,
            "model": self.checkpoint.fingerprint,
            "tokenizer": self.checkpoint.tokenizer_hash,
            "policy": trial.variant.name,
            "bits": trial.bits,
            "options": dict(self.common),
            "text": {split: dict(hashes) for split, hashes in self.corpus.hashes.items()},
            "parallel": self.corpus.parallel,
            "calibration": asdict(trial.calibration),
            "evaluation": asdict(self.evaluation),
            "device": self.device.partition(":")[0],
        }


def run_trials(
    trials: list[Trial],
    work: TrialWork,
    *,
    pool: TaskPool,
    results: str | Path | None = None,
    progress: Progress | None = None,
) -> list[PlanResult]:
    """Returns the results of trials, in their order; those that the directory `results` has are not done again."""
    done: dict[str, PlanResult] = {}
    tasks = {trial.name: trial for trial in trials}
    with ExitStack() as stack:
        store = None if results is None else stack.enter_context(StoredTrials(results))
        for name, trial in tasks.items():
            if store is not None and (earlier := store.load(name, work.settings(trial))) is not None:
                done[name] = earlier

        def keep(name: str, result: PlanResult) -> None:
            there, here = result.scores.reference.fingerprint, work.checkpoint.fingerprint
            if there != here:
                raise InputError(
                    f"{work.checkpoint.target} is another model on a machine of the cluster (fingerprint {there[:12]} "
                    f"there, {here[:12]} here); copy the same files to every machine"
                )
            if store is not None:
                store.save(name, work.settings(tasks[name]), result)
            done[name] = result

        left = {name: trial for name, trial in tasks.items() if name not in done}
        needs = dict.fromkeys(left, task_resources([work.checkpoint], work.device, pool))
        stages = [f"{trial.label}: {part}" for trial in left.values() for part in (ROUNDING, QUANTIZED)]
        show = NumberedProgress(progress, [(stage, 0.0) for stage in (REFERENCE, *stages)])
        pool.run(left, work, resources=needs, on_result=keep, progress=show)
    return [done[trial.name] for trial in trials]


@contextmanager
def pool_and_device(ray: str | Cluster | None, device: str) -> Iterator[tuple[TaskPool, str]]:
    """Yields the pool, and the device on which its tasks compute."""
    resolved = resolve_device(device) if ray is None else device  # before a cluster is started
    with open_pool(ray) as pool:
        yield pool, resolved if pool.cluster is None else task_device(device, pool)


def task_device(device: str, pool: TaskPool) -> str:
    """Returns the device of tasks on a cluster: a GPU if one is requested, or if the cluster has any."""
    if device == AUTO:
        return "cuda" if pool.has_gpus else "cpu"
    if device not in ("cpu", "cuda"):
        raise InputError(
            f"device is {device!r:.40}; with --ray it must be auto, cpu or cuda, because Ray picks the GPU"
        )
    return device


def task_resources(checkpoints: list[Checkpoint], device: str, pool: TaskPool) -> Resources:
    """Returns what one task needs that holds these models in memory."""
    if pool.cluster is None:
        return Resources()
    weights = sum(info.numel for checkpoint in checkpoints for info in checkpoint.tensors.values())
    memory = AT_LEAST + int(COPIES * 4 * weights)
    return Resources(pool.cluster.cpus, pool.cluster.gpus if is_gpu(device) else 0.0, memory)
