"""The state of a run in one file, replaced atomically; a run resumes with the same bits."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import numpy as np
from msgspec import Struct, field

from gptrs.api import GptrsError, UsageError
from gptrs.api.backends import ProcessGroup
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.safetensors import SafetensorsFile, write_safetensors
from gptrs.operating_system import lock_file
from gptrs.quoting import quoted, shown_value

STATE: Final = "state.safetensors"
BEST: Final = "best.safetensors"
METRICS: Final = "metrics.jsonl"
SUFFIX: Final = ".run"
_LEVEL: Final = "/"
_NOT_COMPARED: Final = ("save_every", "threads")
"""Settings that a resumed run may change: none of them changes a bit."""


class SavedRunError(GptrsError):
    """The state of a run cannot be written, or belongs to another run."""

    exit_code = 3
    code = "run"


class Progressed(msgspec.Struct, kw_only=True):
    """The progress of a run: updates, tokens, seconds, and its best evaluation."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    """Evaluations since the best one."""


class SavedRun(Struct):
    """The folder `OUT.run` of a run with settings `run`; a resumed run must have the same."""

    folder: Path
    run: Mapping[str, object]
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    group: ProcessGroup | None = None
    """The processes that run it together."""

    @classmethod
    def beside(
        cls, out: Path, run: Mapping[str, object], group: ProcessGroup | None = None
    ) -> SavedRun:
        """Return the folder of the run that writes `out`; UsageError for `.` and `/`."""
        if not out.name:
            raise UsageError(
                f"{quoted(str(out))} cannot be replaced by a whole folder",
                hint="name a folder in it that is not there yet",
            )
        # Compared with what JSON gives back on resuming, where a tuple has become a list.
        plain = cast("dict[str, object]", json.loads(json.dumps(run)))
        return cls(out.with_name(out.name + SUFFIX), plain, group=group)

    @property
    def writes(self) -> bool:
        """Whether this process writes the folder: the first of a group does."""
        return self.group is None or self.group.number == 0

    @property
    def exists(self) -> bool:
        """Whether a state was saved."""
        return (self.folder / STATE).is_file()

    @property
    def nbytes(self) -> int:
        """The bytes of the weights and the state in the folder, which this run replaces."""
        files = (self.folder / name for name in (STATE, BEST))
        return sum(file.stat().st_size for file in files if file.is_file())

    @contextmanager
    def alone(self) -> Generator[None]:
        """Scope of the only process that writes the run; UsageError if another one does.

        Makes the folder. The lock ends with the process, whatever ends that.
        """
        if not self.writes:
            yield
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            shown = quoted(str(self.folder), 200)
            raise SavedRunError(f"cannot write {shown}: {error.strerror}") from error
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):  # a run to resume that is not there leaves nothing
                self.folder.rmdir()

    def _lock(self, descriptor: int) -> None:
        try:
            lock_file(descriptor)
        except BlockingIOError:
            raise UsageError(
                f"another process is writing the run in {quoted(str(self.folder), 200)}",
                hint="wait for it, or take another --out",
            ) from None
        except OSError:  # some network file systems have no locks
            return

    def begin(self) -> None:
        """Make the folder for a new run, and remove another one's state in it."""
        if not self.writes:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # STATE goes first: a process killed here leaves a folder that nothing can resume,
            # rather than an old state beside new metrics.
            for name in (STATE, BEST, METRICS):
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            shown = quoted(str(self.folder), 200)
            raise SavedRunError(f"cannot write {shown}: {error.strerror}") from error

    def save(self, state: Mapping[str, Any], at: Progressed) -> None:
        """Write the state, arrays in nested dicts, in place of the previous one."""
        # Settings and progress are in the file of the tensors, so one rename replaces all three. In
        # files of their own, a kill between two renames would pair weights with a wrong step.
        metadata = {"run": json.dumps(self.run), "at": msgspec.json.encode(at).decode()}
        self._write(STATE, dict(_flat(state)), metadata)

    def save_best(self, trained: Mapping[str, np.ndarray], at: Progressed) -> None:
        """Write the weights of the best evaluation so far."""
        self._write(BEST, trained, {"step": str(at.step)})

    def _write(self, name: str, arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
        if not self.writes:
            return
        tensors = [OutgoingTensor.of(each, array) for each, array in arrays.items()]
        with atomic_file(self.folder / name, SavedRunError) as file:
            write_safetensors(file, tensors, metadata)

    def load(self) -> tuple[dict[str, Any], Progressed]:
        """Return the saved state and the progress of the run; later measurements are discarded.

        UsageError where there is none, or for settings that differ.
        """
        at = self.require_same()
        with SafetensorsFile.open(self.folder / STATE) as file:
            # Copies: the arrays of the file are views of its mapping, which ends with this scope.
            state = _nested({name: file.read(name).copy() for name in file.names()})
        self._read_metrics(at.step)
        return state, at

    def require_same(self) -> Progressed:
        """Return the progress of the run; UsageError where none is saved, or another run's.

        SavedRunError for a file that is not the state of a run.
        """
        if not self.exists:
            raise UsageError(
                f"there is no run to resume in {quoted(str(self.folder), 200)}",
                hint="leave out --resume to start one",
            )
        with SafetensorsFile.open(self.folder / STATE) as file:
            try:
                stated = msgspec.json.decode(file.metadata["run"], type=dict[str, object])
                at = msgspec.json.decode(file.metadata["at"], type=Progressed)
            except (KeyError, msgspec.MsgspecError):
                raise SavedRunError(
                    f"{quoted(str(self.folder / STATE), 200)} is not the state of a run",
                    hint="leave out --resume to start over",
                ) from None
        self._require_same(stated)
        return at

    def load_best(self) -> dict[str, np.ndarray]:
        """Return the weights of the best evaluation."""
        with SafetensorsFile.open(self.folder / BEST) as file:
            return {name: file.read(name).copy() for name in file.names()}

    def _require_same(self, other: Mapping[str, object]) -> None:
        names = [name for name in {**other, **self.run} if name not in _NOT_COMPARED]
        differ = [name for name in names if other.get(name) != self.run.get(name)]
        if not differ:
            return
        shown = [
            f"`{name}` was {shown_value(other.get(name))}, is {shown_value(self.run.get(name))}"
            for name in differ
        ]
        raise UsageError(
            f"the run in {quoted(str(self.folder), 200)} is another one: {', '.join(shown[:4])}",
            hint="give the same settings and files, or start over without --resume",
        )

    def _read_metrics(self, step: int) -> None:
        path = self.folder / METRICS
        lines = path.read_bytes().splitlines() if path.is_file() else []
        self.metrics = []
        for line in lines:
            # A killed process leaves half a line at the end.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                row = cast("dict[str, Any]", json.loads(line))
                # Updates after the saved one are made again, and would have two lines.
                if row["step"] <= step:
                    self.metrics.append(row)
        if not self.writes:
            return
        with atomic_file(path, SavedRunError) as file:
            file.writelines(json.dumps(row).encode() + b"\n" for row in self.metrics)

    @contextmanager
    def measured(self) -> Generator[Metrics]:
        """Scope in which lines are appended to the metrics."""
        path = self.folder / METRICS if self.writes else Path(os.devnull)
        try:
            # Without a buffer: closing one would write again, and fail again, on a full disk.
            file = path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritten(error) from error
        with file:
            yield Metrics(self.metrics, file)


class Metrics:
    """The lines of `metrics.jsonl`, in memory and on disk."""

    def __init__(self, rows: list[dict[str, Any]], file: Any) -> None:
        self._rows = rows
        self._file = file

    def add(self, row: dict[str, Any]) -> None:
        """Append a line."""
        self._rows.append(row)
        try:
            # Readers follow the file while the run goes on. No fsync: after a power failure the
            # resumed run writes the lines again.
            line = json.dumps(row).encode() + b"\n"
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _unwritten(error) from error


def _unwritten(error: OSError) -> SavedRunError:
    return SavedRunError(f"cannot write `{METRICS}`: {error.strerror}")


def digest_of_run(run: Mapping[str, object]) -> str:
    """Return a digest, in hex, of the settings of a run that change its bits."""
    compared = {name: value for name, value in run.items() if name not in _NOT_COMPARED}
    text = json.dumps(compared, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return a digest of the content of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def folder_is_new(path: Path) -> bool:
    """Return whether nothing is at a path, or an empty folder."""
    return not path.exists() or (path.is_dir() and not os.listdir(path))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Generator[tuple[str, np.ndarray]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}{_LEVEL}")
        else:
            yield f"{prefix}{name}", np.asarray(value)


def _nested(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(_LEVEL)
        below = tree
        for each in outer:
            below = cast("dict[str, Any]", below.setdefault(each, {}))
        below[last] = value
    return tree
