"""A pool of workers that come and go: slices of rows go to those alive, and again after a loss.

Ray could restart actors and repeat their calls by itself, but a call to an actor that no longer
finds room waits forever. Here, a slice lost with its worker goes to the next one, and a new worker
joins when the cluster has room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ray.exceptions import RayActorError

from gptrs_ray.cluster import RAY, ClusterError, RemoteError, Room
from gptrs_ray.tasks import Row
from gptrs_ray.worker import Failed, RowWorker, WorkerSettings

MOST_LOSSES: Final = 4
"""Workers that may end on one slice, or while loading, before the rows (or the model) are
blamed."""
_AHEAD: Final = 2
"""Slices assigned to a worker: one waits while it runs another."""


@dataclass(frozen=True)
class Slice:
    """A slice of the input: its number, the number of its first row (from 1), and the rows."""

    number: int
    first: int
    rows: list[Row]

    def __str__(self) -> str:
        return f"rows {self.first} to {self.first + len(self.rows) - 1}"


@dataclass
class _Worker:
    """An actor, whether it has loaded the model, and its slices."""

    actor: Any
    loaded: bool = False
    held: dict[Any, Slice] = field(default_factory=dict[Any, Slice])


class Pool:
    """Workers of one kind; call `close` at the end, or use it as a context manager."""

    def __init__(self, settings: WorkerSettings, room: Room) -> None:
        self._settings = settings
        self._cpus = room.cpus
        self._loading: dict[Any, _Worker] = {}
        self._workers: list[_Worker] = []
        self._losses: Counter[int] = Counter()
        self._lost_loading = 0
        self._identity: str | None = None
        self.lost = 0
        """Workers that ended early."""
        for _ in range(room.workers):
            self._start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            RAY.kill(worker.actor)
        self._workers.clear()

    def identity(self) -> str:
        """Return the identity of the first worker's model, once it is loaded; raises its errors."""
        while self._identity is None:
            self._joined(self._wait())
        return self._identity

    def run(self, slices: Iterable[Slice]) -> Iterator[tuple[Slice, list[Row]]]:
        """Yield each slice and its rows with results, as they finish.

        Raises RemoteError for an error of a worker, ClusterError for rows that end their workers.
        """
        coming = iter(slices)
        again: deque[Slice] = deque()
        more = True
        while True:
            while more and (worker := self._free()) is not None:
                part = again.popleft() if again else next(coming, None)
                if part is None:
                    more = False
                else:
                    self._give(worker, part)
            if not more and not any(worker.held for worker in self._workers):
                return
            done = self._wait()
            if done in self._loading:
                self._joined(done)
                continue
            worker = next(each for each in self._workers if done in each.held)
            part = worker.held[done]
            try:
                result = cast("list[Row] | Failed", RAY.get(done))
            except RayActorError:
                again.extend(self._lose(worker))
                more = True
                self._count_loss(part)
                continue
            del worker.held[done]
            if isinstance(result, Failed):
                raise RemoteError(result, f"in the {part}: ")
            yield part, result

    def _start(self) -> None:
        remote = RAY.remote(RowWorker)
        actor = remote.options(num_cpus=self._cpus, max_restarts=0).remote(self._settings)
        worker = _Worker(actor)
        self._workers.append(worker)
        self._loading[actor.load.remote()] = worker

    def _joined(self, done: Any) -> None:
        """Register a worker that has loaded its model; start another one if it was lost."""
        worker = self._loading[done]
        try:
            found = cast("str | Failed", RAY.get(done))
        except RayActorError as error:
            self._lose(worker)
            self._lost_loading += 1
            if self._lost_loading >= MOST_LOSSES:
                raise ClusterError(
                    f"{self._lost_loading} workers ended while they loaded the model: {error}",
                    hint="is there enough memory for it on each host?",
                ) from error
            return
        del self._loading[done]
        if isinstance(found, Failed):
            raise RemoteError(found)
        if self._identity not in (None, found):
            raise ClusterError(
                f"two hosts have different models at `{self._settings.model}`",
                hint="copy the same files to each host",
            )
        self._identity = found
        worker.loaded = True

    def _lose(self, worker: _Worker) -> list[Slice]:
        """Replace a worker that ended; return its slices."""
        self.lost += 1
        self._workers.remove(worker)
        self._loading = {call: each for call, each in self._loading.items() if each is not worker}
        self._start()
        return list(worker.held.values())

    def _count_loss(self, part: Slice) -> None:
        self._losses[part.number] += 1
        if self._losses[part.number] >= MOST_LOSSES:
            raise ClusterError(
                f"the {part} ended {MOST_LOSSES} workers one after another",
                hint="take fewer rows a slice (--rows), or leave these rows out",
            )

    def _free(self) -> _Worker | None:
        """Return the loaded worker with the fewest slices; None if all have enough."""
        ready = [worker for worker in self._workers if worker.loaded and len(worker.held) < _AHEAD]
        return min(ready, key=lambda worker: len(worker.held), default=None)

    def _give(self, worker: _Worker, part: Slice) -> None:
        worker.held[worker.actor.run.remote(part.rows)] = part

    def _wait(self) -> Any:
        calls = [*self._loading, *(call for worker in self._workers for call in worker.held)]
        done, _ = RAY.wait(calls, num_returns=1)
        return done[0]
