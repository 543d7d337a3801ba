"""The Ray cluster that the user names: its tasks are shown in one table."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fairbits.cli.terminal import chosen_device, print_notes, stages
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress

if TYPE_CHECKING:
    from fairbits.core.task_pool import Cluster


def cluster_of(address: str | None, cpus: float, gpus: float) -> "Cluster | None":
    """Returns the cluster of --ray, or None without it; raises if Ray is not installed."""
    from importlib.util import find_spec

    from fairbits.core.task_pool import NEEDS_RAY, Cluster, check_reachable

    if address is None:
        if (cpus, gpus) != (1.0, 1.0):
            raise InputError(
                "--ray-cpus and --ray-gpus are for tasks of a Ray cluster; name it with --ray, or leave them out"
            )
        return None
    if find_spec("ray") is None:  # before anything is read
        raise InputError(NEEDS_RAY)
    cluster = Cluster(address, cpus=cpus, gpus=gpus)
    check_reachable(address)  # before torch is imported and the model is read
    return cluster


def device_here(device: str, cluster: "Cluster | None", *, earlier: str | None = None) -> str:
    """Returns the device of this machine, with a note on it; on a cluster, the device as requested."""
    return chosen_device(device, earlier=earlier) if cluster is None else device


@contextmanager
def progress_of(cluster: "Cluster | None", first: str) -> "Iterator[tuple[Progress | None, Cluster | None]]":
    """Yields the progress of a command, and the cluster, which shows its tasks in a table instead."""
    with ExitStack() as stack:
        if cluster is None:
            yield stack.enter_context(stages(first)), None
            return
        from fairbits.cli.task_progress import task_table

        starts = (
            "starting Ray on this machine" if cluster.address == "local" else f"connecting to Ray at {cluster.address}"
        )
        print_notes([f"{starts} …"])
        yield None, replace(cluster, watch=stack.enter_context(task_table()))
