"""Forms of weights by identity: found on disk, and written there in the background."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.disk_cache import Entries, bytes_setting
from gptrs.private_files import ELSEWHERE, make_private, private_folder
from gptrs_backend_numba.codegen.compiled import kernel_store
from gptrs_backend_numba.codegen.read_faults import handle_read_faults
from gptrs_backend_numba.kept_weights.weight_file import (
    TRAILER,
    USED_S,
    StoppedError,
    UnusableFileError,
    bring_to_disk,
    map_weight,
    prefetch_file,
    write_weight,
)
from gptrs_backend_numba.kept_weights.weight_folder import LABEL, default_budget, free_bytes
from gptrs_backend_numba.kept_weights.writer import BackgroundWriter

_LOG = logging.getLogger("gptrs")
VARIABLE = "GPTRS_WEIGHT_CACHE_BYTES"
"""The environment variable with the most bytes that forms of weights may take on disk."""
LEAST = 1 << 18
"""Bytes from which a form is kept: a smaller one is made as fast as its file is opened."""
LEAST_OF_SLOW = 1 << 10
"""The same of weights that are made slowly: scales are small, but need all codes to be found."""
_EXIT_S = 5.0
"""The longest that the end of a process waits for the disk; the next writes the rest. At 200 MB/s
a short process with a model of 1 GB keeps all of it, where 1 s was enough for a fifth."""


def _least(*, slow: bool) -> int:
    return LEAST_OF_SLOW if slow else LEAST


class WeightStore:
    """Forms of weights below `root`, made by the backend of `version`; None: nothing is kept.

    Nothing that fails here is an error: forms are made again, and the log says why, once. A form is
    never used after the file that it was made of has changed, as that has another identity then.
    """

    def __init__(self, root: Path | None, version: str, budget: int | None = None) -> None:
        self.root = root
        self.version = version
        self._budget = budget
        self.keeps = root is not None and budget != 0
        """False without a folder or a budget, and once saving has failed."""
        self.written = Entries()
        self.writer = BackgroundWriter()
        self._started = time.time() - USED_S
        self._free = 0
        self._warned: set[str] = set()
        self._labelled: set[Path] = set()

    @property
    def budget(self) -> int:
        """The most bytes that forms may take: what was asked for, else what suits the disk."""
        if self._budget is None:
            self._budget = 0 if self.root is None else default_budget(self.root)
        return self._budget

    def takes(self, nbytes: int, *, slow: bool = False) -> bool:
        """Return whether a form of so many bytes is written, of a weight that is made slowly."""
        return self.keeps and nbytes >= _least(slow=slow)

    def find(self, identity: WeightIdentity, form: str, nbytes: int) -> np.ndarray | None:
        """Return the bytes of a form as a read-only mapped array, None if there is none."""
        if self.root is None or nbytes < _least(slow=identity.is_slow) or self._budget == 0:
            return None
        path = self._path(self.root, identity, form)
        try:
            array, on_disk = map_weight(path, nbytes)
        except FileNotFoundError:
            return None
        except UnusableFileError as error:
            self._warn("damaged", f"packed weight `{path}` is made again: {error}")
            with suppress(OSError):
                path.unlink()
            return None
        except (OSError, ValueError) as error:
            self._warn("refused", f"packed weight `{path}` is not used: {error}")
            return None
        handle_read_faults()  # the file may be cut while programs read it
        self._label(path.parent, identity)
        if not on_disk:
            self.writer.add(partial(_last, path), urgent=False)
        return array

    def keep(
        self, identity: WeightIdentity, form: str, array: np.ndarray, *, now: bool = False
    ) -> None:
        """Have a contiguous array written as a form of a weight, `now` or if it exists later."""
        if not self.takes(array.nbytes, slow=identity.is_slow):
            return
        save = partial(self._save, identity, form, weakref.ref(array))
        if now:
            save(lambda: False)
        else:
            self.writer.add(save)

    def prefetch(self, identity: WeightIdentity) -> bool:
        """Have the system read all forms of a weight, without waiting; False if there is none."""
        if self.root is None:
            return False
        paths = list(self._folder(self.root, identity).glob(f"{identity.digest.hex()}-*"))
        for path in paths:
            prefetch_file(path)
        return bool(paths)

    def _save(
        self,
        identity: WeightIdentity,
        form: str,
        reference: weakref.ref[np.ndarray],
        stopped: Callable[[], bool],
    ) -> None:
        array = reference()
        if self.root is None or array is None or not self.keeps:
            return
        path = self._path(self.root, identity, form)
        try:
            if not path.exists() and identity.unchanged and self._has_room(path, array.nbytes):
                self._make_folder(path.parent, identity)
                write_weight(path, array, stopped)
                self.written += Entries(1, array.nbytes)
                self.writer.add(partial(_last, path), urgent=False)
        except (StoppedError, FileNotFoundError):  # the folder was cleared meanwhile
            return
        except OSError as error:
            problem = f"packed weights cannot be kept in `{self.root}`: {error.strerror}"
            self._give_up(f"{problem}; {ELSEWHERE}")

    def _has_room(self, path: Path, nbytes: int) -> bool:
        """Make room for a form, but not at the cost of what was used since this process began."""
        assert self.root is not None, "the caller has looked"
        need = nbytes + TRAILER
        if self._free < need:
            self._free = free_bytes(self.root, self.budget, need, before=self._started)
        if self._free < need:
            self._give_up(
                f"packed weights do not all fit into {self.budget} bytes of `{self.root}`,"
                f" see `{VARIABLE}`"
            )
            return False
        self._free -= need
        return True

    def _make_folder(self, folder: Path, identity: WeightIdentity) -> None:
        make_private(folder.parent)
        make_private(folder)
        self._label(folder, identity)

    def _label(self, folder: Path, identity: WeightIdentity) -> None:
        """Note where the file of weights is, once in a process: its folder may have been moved."""
        label, path = folder / LABEL, os.fsencode(identity.files[0].path)
        if folder in self._labelled and label.exists():
            return
        self._labelled.add(folder)
        with suppress(OSError):
            if not label.exists() or label.read_bytes() != path:
                label.write_bytes(path)

    def _folder(self, root: Path, identity: WeightIdentity) -> Path:
        return root / self.version / identity.files[0].digest.hex()

    def _path(self, root: Path, identity: WeightIdentity, form: str) -> Path:
        digest = hashlib.blake2b(form.encode(), digest_size=8).hexdigest()
        return self._folder(root, identity) / f"{identity.digest.hex()}-{digest}"

    def _give_up(self, text: str) -> None:
        self.keeps = False
        self._warn("full", text)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("%s", text)


@cache
def weight_store() -> WeightStore:
    """Return the store of this process; UsageError if its budget is no number of bytes.

    Its version is that of the kernels, which make the forms: another one makes them anew.
    """
    budget = bytes_setting(VARIABLE)
    version = hashlib.blake2b(kernel_store().version.encode(), digest_size=8).hexdigest()
    try:
        root = private_folder("numba", "weights")
        store = WeightStore(root, version, budget)
    except OSError as error:
        problem = f"packed weights are not kept in `{error.filename}`: {error.strerror}"
        told = kernel_store().folder is None  # of the same folder
        _LOG.log(logging.DEBUG if told else logging.WARNING, "%s; %s", problem, ELSEWHERE)
        return WeightStore(None, version)
    atexit.register(store.writer.end, _EXIT_S)
    os.register_at_fork(after_in_child=store.writer.begin_anew)
    return store


def _last(path: Path, stopped: Callable[[], bool]) -> None:
    """Bring a written file to the disk; if that fails it counts until the system restarts."""
    try:
        bring_to_disk(path)
    except OSError as error:
        _LOG.debug("`%s` is not on the disk: %s", path, error)
