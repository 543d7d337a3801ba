"""Estimate: time, GPU memory, RAM and disk of every stage of a job on this machine."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbits.api.dry_run.fit import Shortage, Workload, advice, capacity_here, overall, shortages
from fairbits.api.dry_run.rates import measure_rates
from fairbits.api.dry_run.work import Held, Rates, Stage
from fairbits.models.capacity import Capacity
from fairbits.models.checkpoint import Checkpoint

SCHEMA = "fairbits.estimate/1"


@dataclass(frozen=True)
class Estimate:
    """What a job takes; `advice` says what to lower if it does not fit."""

    model: str
    device: str
    stages: tuple[Stage, ...]
    rates: Rates
    capacity: Capacity
    advice: str | None = None

    @property
    def seconds(self) -> float:
        """The time of the whole job."""
        return sum(map(self.time, self.stages))

    @property
    def held(self) -> Held:
        """The most that is held at a time."""
        return overall(self.stages)

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        """What does not fit."""
        return shortages(self.stages, self.capacity)

    def time(self, stage: Stage) -> float:
        """Returns the seconds of a stage."""
        return self.rates.time(stage.work, overlapping=stage.overlapping)

    def as_data(self) -> dict[str, Any]:
        """Returns the estimate for JSON."""
        stages = [
            {
                "stage": each.name,
                "seconds": round(self.time(each), 2),
                "parts": {name: round(spent, 2) for name, spent in self.rates.parts(each.work).items()},
                **_bytes(each.held),
            }
            for each in self.stages
        ]
        return {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device,
            "seconds": round(self.seconds, 2),
            **_bytes(self.held),
            "stages": stages,
            "free": asdict(self.capacity),
            "rates": {name: None if rate == float("inf") else rate for name, rate in asdict(self.rates).items()},
            "problems": [str(each) for each in self.shortages],
            "advice": self.advice,
        }


def estimate_workload(
    checkpoint: Checkpoint, workload: Workload[Any], *, device: str, out: str | Path | None
) -> Estimate:
    """Returns what a job takes, after a few seconds of measurement; nothing is left in `out`."""
    capacity, stages = capacity_here(device, out), workload.stages()
    missing = shortages(stages, capacity)
    what_to_do = advice(missing[0], workload, capacity) if missing else None
    rates = measure_rates(checkpoint, device=device, out=out)
    return Estimate(checkpoint.target, device, stages, rates, capacity, what_to_do)


def _bytes(held: Held) -> dict[str, int]:
    return {
        "gpu_bytes": round(held.gpu),
        "ram_bytes": round(held.ram),
        "disk_bytes": round(held.written),
        "scratch_bytes": round(held.scratch),
    }
