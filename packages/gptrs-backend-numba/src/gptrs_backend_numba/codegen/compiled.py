"""The machine code of kernels: from the store if it was compiled before, else from numba."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import llvmlite

from gptrs.spans import span
from gptrs_backend_numba.codegen import target
from gptrs_backend_numba.codegen.compile_listeners import LISTENERS
from gptrs_backend_numba.codegen.kernel import KernelFunction, SpecializedKernel
from gptrs_backend_numba.codegen.kernel_store import KernelStore, open_store
from gptrs_backend_numba.codegen.machine_code import Kernel, Linker, MachineCode, decode
from gptrs_backend_numba.codegen.sources import SOURCES_DIGEST
from gptrs_backend_numba.codegen.wanted_kernel import WantedKernel

_KERNELS: dict[str, Kernel] = {}
_LINKER = Linker()
COMPILING = threading.Lock()
"""Held while kernels are compiled, found and linked."""


def compiled(
    kernel: KernelFunction | SpecializedKernel, *, fastmath: tuple[str, ...] = ()
) -> Kernel:
    """Return the machine code of a kernel; one without bindings needs no `specialize`.

    `fastmath` has LLVM's flags for the floating-point operations of the kernel and of functions
    that it calls, except those that have flags of their own. In a survey of what is missing it is
    a kernel that nobody can call: see `missing_kernels`.
    """
    specialized = kernel.specialize() if isinstance(kernel, KernelFunction) else kernel
    return _found(WantedKernel(specialized, fastmath))


def compiled_task(kernel: KernelFunction | SpecializedKernel) -> int:
    """Return the address of a compiled kernel, for `call_task` and the like in other kernels."""
    return compiled(kernel).address


def compiled_source(
    source: str,
    *,
    fastmath: tuple[str, ...] = (),
    constants: Mapping[str, object] | None = None,
) -> Kernel:
    """Return the machine code of the function `kernel` that generated source text defines.

    `source` must differ wherever `constants`, its additional global names, differ.
    """
    return _found(WantedKernel(source, fastmath, constants))


def address_of_kernel(kernel: Kernel) -> int:
    """Return the address of the machine code of a compiled kernel, for calls by other kernels."""
    return kernel.address


def _found(wanted: WantedKernel) -> Kernel:
    with COMPILING:
        key = wanted.key
        found = _KERNELS.get(key)
        if found is None:
            found = _stored(kernel_store(), entry_of(key), wanted.function_name)
            if found is None and _SURVEY.missing is not None:
                _SURVEY.missing[key] = wanted
                return _NOT_THERE
            if found is None:
                with kernel_store().alone(entry_of(key)):
                    found = _made(wanted)
            _KERNELS[key] = found
        return found


class _Survey(threading.local):
    """The kernels that this thread has missed, if it surveys what is missing."""

    missing: dict[str, WantedKernel] | None = None


_SURVEY = _Survey()
_NOT_THERE = Kernel(0, 0)
"""Stands for kernels that are missing in a survey."""


@contextmanager
def missing_kernels() -> Generator[dict[str, WantedKernel]]:
    """Scope that collects kernels that no store has, by key, and gives empty ones for them."""
    missing: dict[str, WantedKernel] = {}
    former, _SURVEY.missing = _SURVEY.missing, missing
    try:
        yield missing
    finally:
        _SURVEY.missing = former


def is_stored(wanted: WantedKernel) -> bool:
    """Return whether a kernel was compiled, by this process or another."""
    return wanted.key in _KERNELS or kernel_store().has(entry_of(wanted.key))


def compile_if_free(wanted: WantedKernel) -> bool:
    """Compile a kernel and return True, unless it was compiled or another process is doing so."""
    with COMPILING:
        if is_stored(wanted):
            return False
        with kernel_store().alone_if_free(entry_of(wanted.key)) as free:
            if free:
                _KERNELS[wanted.key] = _made(wanted)
            return free


def link_stored(name: str, key: str, make: Callable[[], MachineCode]) -> Kernel:
    """Return the function `name` that no kernel is the source of: stored, else from `make`."""
    with COMPILING:
        store, entry = kernel_store(), entry_of(key)
        stored = _stored(store, entry, name)
        if stored is not None:
            return stored
        code = make()
        store.save(entry, code.encoded())
        return _LINKER.link(code)


def entry_of(key: str) -> str:
    """Return the name of the entry of a kernel in the store."""
    return hashlib.blake2b(f"{kernel_store().version}\n{key}".encode(), digest_size=20).hexdigest()


def _made(wanted: WantedKernel) -> Kernel:
    """Return a kernel that nobody else compiles, from the store or compiled."""
    store, entry = kernel_store(), entry_of(wanted.key)
    stored = _stored(store, entry, wanted.function_name)  # another process may have compiled it
    if stored is not None:
        return stored
    _announce(store)
    LISTENERS.kernel()
    with span("compile kernel", wanted.name):
        compiler = import_module("gptrs_backend_numba.codegen.numba_compiler")
        code = compiler.machine_code(wanted.function(), wanted.fastmath)
    store.save(entry, code.encoded())
    return _LINKER.link(code)


def _stored(store: KernelStore, name: str, function: str) -> Kernel | None:
    body = store.load(name)
    if body is None:
        return None
    try:
        with span("load kernel", function):
            return _LINKER.link(decode(body, function))
    except (ValueError, RuntimeError) as error:  # whole, and yet not what we save
        store.discard(name, str(error))
        return None


@cache
def kernel_store() -> KernelStore:
    """Return the store in which this process finds and keeps its kernels."""
    content = SOURCES_DIGEST + target.description().encode()
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    return open_store(
        f"Python {platform.python_version()}, numba {importlib.metadata.version('numba')},"
        f" llvmlite {llvmlite.__version__}, {target.cpu_name()}, kernels {digest}"
    )


@cache
def _announce(store: KernelStore) -> None:
    kept = f"kept in `{store.folder}`" if store.keeps else "not kept"
    logging.getLogger("gptrs").info("backend `numba`: compiling kernels for this machine, %s", kept)
