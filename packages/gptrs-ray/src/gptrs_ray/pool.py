"""A pool of workers that come and go: slices of rows go to those alive, and again after a loss.

Ray could restart actors and repeat their calls by itself, but a call to an actor that no longer
finds room waits forever. Here, a slice lost with its worker goes to the next one, and a new worker
joins when the cluster has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct, field
from ray.exceptions import RayActorError

from gptrs_ray.cluster import RAY, ClusterError, RemoteError, Room
from gptrs_ray.records import Record
from gptrs_ray.tasks import Row
from gptrs_ray.worker import Failed, RowWorker, WorkerSettings

MOST_LOSSES: Final = 4
"""Workers that may end on one row, or while loading, before the row (or the model) is blamed."""
_HALVED_AFTER: Final = 2
"""Workers that end on one slice before its halves run apart: a single loss may be that of a host.
"""
_AHEAD: Final = 2
"""Slices assigned to a worker: one waits while it runs another."""


class Slice(Struct, frozen=True):
    """Some rows of the input, and how many workers have ended on them."""

    records: Sequence[Record]
    losses: int = 0

    def __str__(self) -> str:
        first, last = self.records[0], self.records[-1]
        return str(first) if first is last else f"rows from {first} to {last}"

    def halves(self) -> list[Slice]:
        """Return the halves of several rows; one has the row that ends workers."""
        middle = len(self.records) // 2
        return [Slice(part, 1) for part in (self.records[:middle], self.records[middle:])]


Outcome = Row | Failed | None
"""Columns that a task adds to a row, its error, or None if an error before it stopped the run."""


class _Worker(Struct):
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

    def run(self, slices: Iterable[Slice]) -> Iterator[tuple[Slice, list[Outcome]]]:
        """Yield each slice and the outcome of each of its rows, as they finish.

        A row that ends its workers is an error of that row. Raises RemoteError for an error that is
        not of a row.
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
                result = cast("list[Outcome] | Failed", RAY.get(done))
            except RayActorError:
                # Only the slice whose call failed may have caused the loss; what waited behind it
                # goes back without blame.
                again.extend(each for each in self._lose(worker) if each is not part)
                left = _after_loss(part)
                again.extend(left)
                # The input may be used up while these slices are not.
                more = True
                if not left:
                    yield part, [_ENDS_WORKERS]
                continue
            del worker.held[done]
            if isinstance(result, Failed):
                raise RemoteError(result, f"{part}: ")
            yield part, result

    def finished(self) -> Iterator[tuple[Slice, list[Outcome]]]:
        """Yield the slices that are done and were not yielded, without waiting for others."""
        held = {call: part for worker in self._workers for call, part in worker.held.items()}
        if not held:
            return
        done, _ = RAY.wait(list(held), num_returns=len(held), timeout=0)
        for call in done:
            with suppress(RayActorError):
                result = cast("list[Outcome] | Failed", RAY.get(call))
                if not isinstance(result, Failed):
                    yield held[call], result

    def _start(self) -> None:
        remote = RAY.remote(RowWorker)
        # Restarts by Ray would load the model again out of sight, and a call to an actor that finds
        # no room waits forever.
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
            # Not reset by workers that load: one host without enough memory would start workers
            # forever.
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
        # Results of two models in one file would differ without a sign of it.
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

    def _free(self) -> _Worker | None:
        """Return the loaded worker with the fewest slices; None if all have enough."""
        ready = [worker for worker in self._workers if worker.loaded and len(worker.held) < _AHEAD]
        # The least loaded first: at the end of a file, two slices on one worker while another idles
        # would double the last wait.
        return min(ready, key=lambda worker: len(worker.held), default=None)

    def _give(self, worker: _Worker, part: Slice) -> None:
        rows = [record.row for record in part.records]
        worker.held[worker.actor.run.remote(rows)] = part

    def _wait(self) -> Any:
        calls = [*self._loading, *(call for worker in self._workers for call in worker.held)]
        done, _ = RAY.wait(calls, num_returns=1)
        return done[0]


_ENDS_WORKERS: Final = Failed(
    f"the row ended {MOST_LOSSES} workers one after another",
    "is there enough memory for it?",
    ClusterError.exit_code,
    ClusterError.code,
)


def _after_loss(part: Slice) -> list[Slice]:
    """Return what to rerun of a slice that ended a worker; nothing of a row to blame."""
    losses = part.losses + 1
    if len(part.records) > 1 and losses >= _HALVED_AFTER:
        return part.halves()
    return [] if losses >= MOST_LOSSES else [Slice(part.records, losses)]
