"""Forms of weights by identity: found on disk, and written there in the background."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Buffer
from gptrs.backend.weight_identity import WeightIdentity, WeightOrigin, file_digest
from gptrs.disk_cache import (
    CachePart,
    CacheReport,
    Entries,
    Found,
    bytes_setting,
    files_in,
    make_room,
    remove,
)
from gptrs.ir.tensor_type import TensorType
from gptrs.private_files import ELSEWHERE, make_private, private_folder, remove_abandoned
from gptrs_backend_numba.codegen.compiled import kernel_store
from gptrs_backend_numba.codegen.read_faults import handle_read_faults
from gptrs_backend_numba.kept_weights.weight_file import (
    CHECKED,
    TRAILER,
    USED_S,
    BackgroundWriter,
    StoppedError,
    UnusableFileError,
    bring_to_disk,
    map_weight,
    prefetch_file,
    write_weight,
)

# The folder of kept weights: `VERSION/FILE/WEIGHT-FORM`; listing, a budget, clearing.


LABEL = "path"
"""The file that says where the file of weights was."""
_FOLDER = re.compile(r"[0-9a-f]{16}/[0-9a-f]{32}")
_NAMES = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")
_LONGEST_LABEL = 1 << 14
_MOST_BYTES = 20 << 30
_SHARE = 4
"""The part of the disk, 1 / so much of what is free and what is kept, that is taken at most."""


def kept_files(root: Path) -> Iterator[Found]:
    """Return all kept forms below `root`; other files are ignored."""
    for folder in _folders(root):
        with suppress(FileNotFoundError):  # another process was faster
            yield from files_in(folder, _NAMES)


def default_budget(root: Path) -> int:
    """Return 20 GiB, or a quarter of what is free and kept on a disk where that is less."""
    held = sum(found.nbytes for found in kept_files(root))
    return min(_MOST_BYTES, (shutil.disk_usage(root).free + held) // _SHARE)


def free_bytes(root: Path, budget: int, need: int, before: float) -> int:
    """Return the free bytes of a budget, after removal of forms for `need` bytes: see `make_room`.

    What killed writers left is removed, too.
    """
    free = make_room(kept_files(root), budget, need, before)
    _remove_empty(root)
    return free


def kept_in(root: Path, version: str) -> list[CachePart]:
    """Return what is kept by the file of weights and whether `version` uses it, largest first."""
    entries: dict[tuple[str, bool], Entries] = defaultdict(Entries)
    about: dict[Path, tuple[str, bool]] = {}
    for found in kept_files(root):
        folder = found.path.parent
        if folder not in about:
            about[folder] = _label(folder), _is_current(folder, version)
        entries[about[folder]] += Entries(1, found.nbytes)
    files = [CachePart(path, current, held) for (path, current), held in entries.items()]
    return sorted(files, key=lambda each: (not each.current, -each.entries.nbytes, each.name))


def clear(root: Path, keep: str | None) -> Entries:
    """Remove all forms except those of the version `keep`; ExecutionError if one stays."""
    kept = {folder for folder in _folders(root) if keep and _is_current(folder, keep)}
    removed = remove(found for found in kept_files(root) if found.path.parent not in kept)
    _remove_empty(root)
    return removed


def _folders(root: Path) -> list[Path]:
    """Return the folders of files of weights, of all versions."""
    return [path for path in root.glob("*/*") if _FOLDER.fullmatch(str(path.relative_to(root)))]


def _label(folder: Path) -> str:
    try:
        with (folder / LABEL).open("rb") as file:
            return os.fsdecode(file.read(_LONGEST_LABEL))
    except OSError:
        return "unknown"


def _is_current(folder: Path, version: str) -> bool:
    """Return whether the file of weights is where it was, and has not been changed."""
    if folder.parent.name != version:
        return False
    try:
        return file_digest(os.stat(_label(folder))).hex() == folder.name
    except (OSError, ValueError):
        return False


def _remove_empty(root: Path) -> None:
    """Remove folders in which no form is left, and what killed writers left in others."""
    for folder in _folders(root):
        with suppress(OSError):
            remove_abandoned(folder)
            if {path.name for path in folder.iterdir()} <= {LABEL, CHECKED}:
                for name in (LABEL, CHECKED):
                    (folder / name).unlink(missing_ok=True)
            folder.rmdir()
    for folder in root.iterdir():
        with suppress(OSError):  # it is not empty
            folder.rmdir()


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
        """Return whether to write a form of `nbytes` bytes, of a weight that is slow to make."""
        return self.keeps and nbytes >= _least(slow=slow)

    def find(self, identity: WeightIdentity, form: str, nbytes: int) -> np.ndarray | None:
        """Return the bytes of a form as a read-only mapped array; None if it is not kept."""
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
        """Ask the system to read ahead all forms of a weight; False if none is kept."""
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
    """Return the store of this process; UsageError if its budget is not a number of bytes.

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


# The answers of the backend to `gptrs cache`, about weights.


class StoredWeights:
    """The part of the backend that knows its forms of weights on disk."""

    def weight_report(self) -> CacheReport:
        """Return the forms on disk, by the file of weights."""
        store = weight_store()
        files = [] if store.root is None else kept_in(store.root, store.version)
        return CacheReport(store.root, store.budget, files)

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        """Remove all forms, or those of other versions and of files that were changed."""
        store = weight_store()
        if store.root is None:
            return Entries()
        return clear(store.root, keep=store.version if stale_only else None)

    def finish_weights(self) -> Entries:
        """Wait until all forms that this process writes are written."""
        store = weight_store()
        store.writer.finish()
        return store.written

    def prefetch_weight(self, identity: WeightIdentity) -> bool:
        """Have the system read the forms of a weight; False if none is on disk."""
        return weight_store().prefetch(identity)


# Weights that are read when something needs them: of most, only packed forms are, from disk.


_PLAIN = "plain"
"""The form of a weight as it is, row-major."""


class DeferredWeight(np.ndarray):
    """Stands for the array of a weight: has its type and shape, but no memory for its elements.

    Programs of one process may share it; whoever asks for elements holds `RUN_LOCK`, or is the only
    one that has the weight.
    """

    _identity: WeightIdentity
    _load: Callable[[], np.ndarray]
    _elements: np.ndarray | None

    @classmethod
    def of(cls, identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray]) -> Self:
        """Return the weight that is in the store, or that `load` gives when it is needed."""
        made = np.broadcast_to(_nothing(type.dtype.numpy), type.shape).view(cls)
        made._identity, made._load, made._elements = identity, load, None
        return made

    def elements(self) -> np.ndarray:
        """Return the elements, which stay as long as this does; loaded ones are kept on disk."""
        if self._elements is None:
            self._elements = kept_array(self._identity, TensorType.of(self), self._load)
        return self._elements

    @override
    def tobytes(self, order: Literal["K", "A", "C", "F"] | None = "C") -> bytes:
        """Return the bytes of the elements: small arguments of programs are copied so."""
        return self.elements().tobytes(order)

    def passing_elements(self) -> np.ndarray:
        """Return the elements for one who makes another form of them: they are not kept."""
        if self._elements is not None:
            return self._elements
        return kept_array(self._identity, TensorType.of(self), self._load, keep=False)

    @property
    def known(self) -> np.ndarray | None:
        """The elements, None if nothing has needed them yet."""
        return self._elements


def _nothing(dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return what shows in results if somebody does not ask for the elements: NaN, or -1."""
    return np.full(dtype.itemsize, 255, np.uint8).view(dtype).reshape(())


def kept_array(
    identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray], *, keep: bool = True
) -> np.ndarray:
    """Return a weight from the store, else by `load`, and if it is to `keep` have it stored."""
    store = weight_store()
    found = store.find(identity, _PLAIN, type.nbytes)
    if found is not None:
        return found.view(type.dtype.numpy).reshape(type.shape)
    array = load()
    if keep:
        store.keep(identity, _PLAIN, array)
    return array


def known_elements(buffer: Buffer) -> np.ndarray:
    """Return the array of a buffer; a deferred weight that nothing has needed stands for itself."""
    known = buffer.known if isinstance(buffer, DeferredWeight) else None
    return cast("np.ndarray", buffer) if known is None else known


# Which weight an array of a backend is: the identities that core told, by array.


_IDENTITIES: dict[int, tuple[weakref.ref[np.ndarray], WeightIdentity]] = {}


def identity_of(array: np.ndarray) -> WeightIdentity | None:
    """Return the identity of a weight that `weight_array` gave; None of any other array."""
    found = _IDENTITIES.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def weight_array(
    identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray], origin: WeightOrigin
) -> np.ndarray:
    """Return the array of a weight: a view of its file, one from the store, or a deferred one."""
    if origin == "mapped":
        array = load()
    elif origin == "computed":  # by a run: none may begin within another one
        array = kept_array(identity, type, load)
    else:
        array = DeferredWeight.of(identity, type, load)
    _note(array, identity)
    return array


def _note(array: np.ndarray, identity: WeightIdentity) -> None:
    key = id(array)
    forget = weakref.ref(array, lambda _: _IDENTITIES.pop(key, None))
    _IDENTITIES[key] = (forget, identity)
