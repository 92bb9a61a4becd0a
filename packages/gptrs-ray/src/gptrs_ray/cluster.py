"""Ray clusters: joining or starting one, and its room for workers."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

import ray
from msgspec import Struct

from gptrs.api import GptrsError, UsageError
from gptrs.api.backends import granted_cpus
from gptrs_ray.worker import Failed

# Errors of runs on a cluster.


class InputRowsError(GptrsError):
    """A file of rows cannot be read."""

    exit_code = 3
    code = "file"


class OutputRowsError(GptrsError):
    """The results cannot be written, or existing ones are from another run."""

    exit_code = 3
    code = "file"


class ClusterError(GptrsError):
    """The cluster cannot be reached, has no room, or keeps losing workers."""

    exit_code = 4
    code = "cluster"


class RemoteError(GptrsError):
    """An error of a worker, with its message."""

    def __init__(self, failed: Failed, where: str = "") -> None:
        super().__init__(f"{where}{failed.message}", hint=failed.hint)
        self.exit_code = failed.exit_code  # pyright: ignore[reportAttributeAccessIssue]
        self.code = failed.code  # pyright: ignore[reportAttributeAccessIssue]


RAY: Final[Any] = ray
"""The module `ray`, which is only partly typed."""
MOST_CPUS: Final = 4
"""Default limit of the CPUs per worker: beyond it, more workers with fewer threads have the higher
throughput."""
_VARIABLE: Final = "RAY_ADDRESS"
_ADDRESS: Final = re.compile(r"(ray://)?\[?(?P<host>[^\[\]/]+)\]?:(?P<port>[0-9]{1,5})")
_CONNECT_S: Final = 10.0


class Room(Struct, frozen=True):
    """The number of workers, and the CPUs of each."""

    workers: int
    cpus: int


@contextmanager
def joined(address: str | None) -> Generator[None]:
    """Scope in which this process is part of the cluster at `address`.

    None means the cluster that this process has joined already, else RAY_ADDRESS, else a local
    cluster that ends with the scope. ClusterError if it cannot be reached.
    """
    if RAY.is_initialized():
        if address is not None:
            raise ClusterError(
                f"this process is in a Ray cluster already, and cannot join `{address}`",
                hint="leave the address out, or call `ray.shutdown()`",
            )
        yield
        return
    where = address or os.environ.get(_VARIABLE) or "local"
    alone: dict[str, Any] = {}
    if where == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
        alone = {"num_cpus": granted_cpus(), "include_dashboard": False}
    else:
        _require_reachable(where)
    try:
        # Ray's own log lines and those of workers would run into the progress; errors of workers
        # come back as values.
        RAY.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        # Ray's messages are several lines with advice on its own flags; the first one names the
        # cause.
        said = str(error).strip().splitlines()
        raise ClusterError(
            f"the Ray cluster `{where}` cannot be joined: {said[0] if said else error}",
            hint="start one by `ray start --head`, or leave out --ray to use this machine",
        ) from error
    try:
        yield
    finally:
        RAY.shutdown()


def _require_reachable(where: str) -> None:
    """Raise ClusterError if nothing listens at HOST:PORT: Ray itself would retry for minutes."""
    address = _ADDRESS.fullmatch(where)
    if address is None:
        return
    try:
        socket.create_connection((address["host"], int(address["port"])), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at `{where}`: {error}",
            hint="start one by `ray start --head`, or leave out --ray to use this machine",
        ) from error


def room_for(workers: int | None, cpus: int | None) -> Room:
    """Return how workers divide the cluster; ClusterError if there is no room for one.

    `cpus` None: each worker gets the CPUs of the smallest node, at most `MOST_CPUS`. `workers`
    None: as many as fit.
    """
    nodes = [int(node["Resources"].get("CPU", 0)) for node in _alive()]
    nodes = [count for count in nodes if count]
    if not nodes:
        raise ClusterError("no node of the cluster has a CPU for a worker")
    # The smallest node: all workers are alike, and each node should have room for one.
    each = min(*nodes, MOST_CPUS) if cpus is None else cpus
    fitting = sum(count // each for count in nodes)
    if not fitting:
        raise ClusterError(
            f"no node of the cluster has {each} CPUs, the largest has {max(nodes)}",
            hint=f"--cpus {max(nodes)}",
        )
    return Room(fitting if workers is None else workers, each)


def room_beside(workers: int, cpus: int | None) -> tuple[int, float]:
    """Return the threads of each of `workers`, and the CPUs that it reserves of the cluster.

    `cpus` None: as in `room_for`. If workers reserved all CPUs, the tasks of Ray Data that read
    rows for them would wait forever: together they leave one. UsageError if there are too few.
    """
    if (cpus is not None and cpus < 1) or workers < 1:
        raise UsageError(f"a run has at least 1 worker with 1 CPU, got {workers} with {cpus}")
    if not RAY.is_initialized():  # the cluster is not known yet
        return cpus or MOST_CPUS, cpus or MOST_CPUS
    nodes = [int(node["Resources"].get("CPU", 0)) for node in _alive()]
    total = sum(nodes)
    each = cpus or min(MOST_CPUS, *(count for count in nodes if count), max(1, total // workers))
    if workers * each > total:
        raise UsageError(
            f"{workers} workers of {each} CPUs need {workers * each}, the cluster has {total}",
            hint="take fewer workers or CPUs, or a range of workers if the cluster grows",
        )
    # Ray schedules fractions of CPUs, so workers may reserve a little less than the threads that
    # they use.
    return each, min(each, (total - 1) / workers)


def _alive() -> list[dict[str, Any]]:
    return [node for node in cast("list[dict[str, Any]]", RAY.nodes()) if node["Alive"]]
