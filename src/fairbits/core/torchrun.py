"""What torchrun says of this process: one of several that do the same work, each on its own GPU."""

import os
from dataclasses import dataclass

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that torchrun sets; without one of them, this process is alone."""


@dataclass(frozen=True)
class Process:
    """One of `count` processes; `local_rank` counts those on this machine, `local_count` of them."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def leads(self) -> bool:
        """Whether it is the one process that writes files and prints."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.count > 1


def this_process() -> Process:
    """Returns what torchrun says of this process, or a process that is alone."""
    values = [os.environ.get(name, "") for name in VARIABLES]
    if not all(values) or not all(value.isdigit() for value in values[:4]):
        return Process()
    return Process(*map(int, values[:4]))
