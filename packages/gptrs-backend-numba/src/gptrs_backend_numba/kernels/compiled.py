"""Turns the source of a kernel into machine code, from the store when it was compiled before."""

from __future__ import annotations

import hashlib
import logging
import pickle
import platform
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import llvmlite
import numba
from numba import njit, types
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from gptrs_backend_numba.kernel_store import KernelStore, open_store
from gptrs_backend_numba.kernels import machine, scalar, tasks, vector

Kernel = Callable[..., int]
"""Takes machine integers (addresses and sizes) only, returns 0 or the number of a failure."""


def _fingerprint() -> str:
    """Everything besides its own source that the machine code of a kernel depends on."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.blake2b(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{digest} {platform.python_version()} {numba.__version__} {llvmlite.__version__}"


# Taken at import, together with the code that it stands for.
_FINGERPRINT = _fingerprint()
_NAMESPACE = {**machine.EXPORTS, **scalar.EXPORTS, **vector.EXPORTS, **tasks.EXPORTS}
_RESULTS: dict[str, CompileResult] = {}
_LOCK = threading.Lock()


def compiled(
    source: str,
    *,
    fastmath: tuple[str, ...] = (),
    constants: Mapping[str, object] | None = None,
) -> Kernel:
    """The machine code of the function `kernel` that `source` defines, all arguments int64.

    `source` must differ wherever `constants`, its additional global names, differ.
    """
    return _result(source, fastmath, constants).entry_point


def compiled_task(source: str, constants: Mapping[str, object] | None = None) -> int:
    """The address of the compiled function `kernel`, for `call_task` in other kernels."""
    result = _result(source, (), constants)
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)


def _result(source, fastmath, constants) -> CompileResult:
    key = f"{fastmath}\n{source}"
    with _LOCK:
        found = _RESULTS.get(key)
        if found is None:
            namespace = {"__name__": __name__, **_NAMESPACE, **(constants or {})}
            exec(compile(source, "<gptrs kernel>", "exec"), namespace)
            function = namespace["kernel"]
            # The linker knows functions by name only, and numba numbers them anew in each process:
            # kernels that different processes have stored would take each other's place.
            name = f"kernel_{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"
            function.__name__ = function.__qualname__ = name
            dispatcher = njit(nogil=True, error_model="numpy", fastmath=set(fastmath))(function)
            dispatcher._cache = _StoredCode(_store(), key)
            arguments = (types.int64,) * function.__code__.co_argcount
            dispatcher.compile(types.int64(*arguments))
            found = _RESULTS[key] = dispatcher.overloads[arguments]
        return found


class _StoredCode(_Cache):
    """numba's interface of an on-disk cache, for the single signature of one kernel."""

    def __init__(self, store: KernelStore, key: str) -> None:
        self._store = store
        self._key = key

    @property
    def cache_path(self):
        return str(self._store.folder)

    def load_overload(self, sig, target_context):
        target_context.refresh()
        body = self._store.load(self._name(target_context))
        if body is None:
            _announce(self._store)
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(body))

    def save_overload(self, sig, data):
        self._store.save(self._name(data.target_context), dumps(data._reduce()))

    def enable(self):
        """Nothing to switch on."""

    def disable(self):
        """Nothing to switch off: each kernel is loaded or compiled once."""

    def flush(self):
        """Entries are named by content, so none is ever stale."""

    def _name(self, target_context) -> str:
        parts = (_FINGERPRINT, repr(target_context.codegen().magic_tuple()), self._key)
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=20).hexdigest()


@cache
def _store() -> KernelStore:
    return open_store()


@cache
def _announce(store: KernelStore) -> None:
    kept = f"kept in `{store.folder}`" if store.folder else "not kept"
    logging.getLogger("gptrs").info("backend `numba`: compiling kernels for this machine, %s", kept)
