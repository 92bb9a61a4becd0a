"""Turns the source of a kernel into machine code, from the store when it was compiled before."""

from __future__ import annotations

import hashlib
import logging
import pickle
import platform
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba
from numba import njit, types
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from gptrs_backend_numba.compile_listeners import LISTENERS
from gptrs_backend_numba.kernel_store import KernelStore, open_store
from gptrs_backend_numba.kernels import (
    complex_numbers,
    conversion,
    gemm_ir,
    interpreter,
    machine,
    random,
    scalar,
    tasks,
)

Kernel = Callable[..., int]
"""Takes machine integers (addresses and sizes) only, returns 0 or the number of a failure."""


def _sources_digest() -> bytes:
    """Stands for the sources of all kernels, and of the functions that kernels call."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    content = b"".join(path.read_bytes() for path in sources)
    return hashlib.blake2b(content, digest_size=20).digest()


# Taken at import, together with the code that it stands for.
_SOURCES_DIGEST = _sources_digest()
_NAMESPACE = {
    name: value
    for module in (
        machine,
        conversion,
        scalar,
        complex_numbers,
        random,
        tasks,
        interpreter,
        gemm_ir,
    )
    for name, value in module.EXPORTS.items()
}
_RESULTS: dict[str, CompileResult] = {}
_ADDRESSES: dict[Kernel, int] = {}
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
    result = _result(source, fastmath, constants)
    _ADDRESSES[result.entry_point] = _address(result)
    return result.entry_point


def address_of_kernel(kernel: Kernel) -> int:
    """Where the machine code of a compiled kernel begins, for calls by other kernels."""
    return _ADDRESSES[kernel]


def compiled_task(source: str, constants: Mapping[str, object] | None = None) -> int:
    """The address of the compiled function `kernel`, for `call_task` in other kernels."""
    return _address(_result(source, (), constants))


def _address(result: CompileResult) -> int:
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
            arguments = (types.int64,) * function.__code__.co_argcount
            with _StoredCode(kernel_store(), key) as dispatcher._cache:
                dispatcher.compile(types.int64(*arguments))
            found = _RESULTS[key] = dispatcher.overloads[arguments]
        return found


class _StoredCode(_Cache, ExitStack):
    """numba's interface of an on-disk cache, for the single signature of one kernel.

    From the moment when it finds nothing to its exit, other processes wait for the kernel.
    """

    def __init__(self, store: KernelStore, key: str) -> None:
        ExitStack.__init__(self)
        self._store = store
        self._name = hashlib.blake2b(f"{store.version}\n{key}".encode(), digest_size=20).hexdigest()

    @property
    def cache_path(self):
        return str(self._store.folder)

    def load_overload(self, sig, target_context):
        target_context.refresh()
        found = self._load(target_context)
        if found is None:
            self.enter_context(self._store.alone(self._name))
            found = self._load(target_context)  # another process may have compiled it meanwhile
        if found is None:
            _announce(self._store)
            LISTENERS.kernel()
        return found

    def save_overload(self, sig, data):
        self._store.save(self._name, dumps(data._reduce()))

    def enable(self):
        """Nothing to switch on."""

    def disable(self):
        """Nothing to switch off: each kernel is loaded or compiled once."""

    def flush(self):
        """Entries are named by content, so none is ever stale."""

    def _load(self, target_context) -> CompileResult | None:
        body = self._store.load(self._name)
        if body is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(body))
        except Exception as error:  # whole, and yet not what this numba makes
            self._store.discard(self._name, f"{type(error).__name__}: {error}")
            return None


@cache
def kernel_store() -> KernelStore:
    """Where this process finds and keeps its kernels."""
    target = repr(cpu_target.target_context.codegen().magic_tuple()).encode()
    digest = hashlib.blake2b(_SOURCES_DIGEST + target, digest_size=8).hexdigest()
    return open_store(
        f"Python {platform.python_version()}, numba {numba.__version__},"
        f" llvmlite {llvmlite.__version__}, {llvm.get_host_cpu_name()}, kernels {digest}"
    )


@cache
def _announce(store: KernelStore) -> None:
    kept = f"kept in `{store.folder}`" if store.keeps else "not kept"
    logging.getLogger("gptrs").info("backend `numba`: compiling kernels for this machine, %s", kept)
