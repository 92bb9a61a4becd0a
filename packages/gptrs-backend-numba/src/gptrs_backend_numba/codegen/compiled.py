"""The machine code of kernels: from the store if it was compiled before, else from numba."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import FunctionType

import llvmlite

from gptrs.spans import span
from gptrs_backend_numba.codegen import (
    complex_numbers,
    conversion,
    machine,
    scalar,
    target,
)
from gptrs_backend_numba.codegen.compile_listeners import LISTENERS
from gptrs_backend_numba.codegen.kernel import (
    KernelFunction,
    SpecializedKernel,
    unique_name,
)
from gptrs_backend_numba.codegen.kernel_store import KernelStore, open_store
from gptrs_backend_numba.codegen.machine_code import Kernel, Linker, MachineCode, decode
from gptrs_backend_numba.codegen.sources import SOURCES_DIGEST

Build = Callable[[str], FunctionType]
"""Makes the function of a kernel, with the given name, if it is in no store."""
_NAMESPACE = {
    name: value
    for module in (machine, conversion, scalar, complex_numbers)
    for name, value in module.EXPORTS.items()
}
_KERNELS: dict[str, Kernel] = {}
_LINKER = Linker()
COMPILING = threading.Lock()
"""Held while kernels are compiled, found and linked."""


def compiled(
    kernel: KernelFunction | SpecializedKernel, *, fastmath: tuple[str, ...] = ()
) -> Kernel:
    """Return the machine code of a kernel; one without bindings needs no `specialize`.

    `fastmath` has LLVM's flags for the floating-point operations of the kernel and of functions
    that it calls, except those that have flags of their own.
    """
    specialized = kernel.specialize() if isinstance(kernel, KernelFunction) else kernel
    return _found(specialized.name, specialized.key, fastmath, specialized.build)


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

    def build(name: str) -> FunctionType:
        return _from_text(name, source, constants or {})

    return _found("kernel", source, fastmath, build)


def address_of_kernel(kernel: Kernel) -> int:
    """Return the address of the machine code of a compiled kernel, for calls by other kernels."""
    return kernel.address


def _found(name: str, key: str, fastmath: tuple[str, ...], build: Build) -> Kernel:
    key = f"{fastmath}\n{key}"
    with COMPILING:
        found = _KERNELS.get(key)
        if found is None:
            found = _KERNELS[key] = _made(name, key, fastmath, build)
        return found


def link_stored(name: str, key: str, make: Callable[[], MachineCode]) -> Kernel:
    """Return the function `name` that no kernel is the source of: stored, else from `make`."""
    with COMPILING:
        store = kernel_store()
        entry = hashlib.blake2b(f"{store.version}\n{key}".encode(), digest_size=20).hexdigest()
        stored = _stored(store, entry, name)
        if stored is not None:
            return stored
        code = make()
        store.save(entry, code.encoded())
        return _LINKER.link(code)


def _made(name: str, key: str, fastmath: tuple[str, ...], build: Build) -> Kernel:
    store = kernel_store()
    entry = hashlib.blake2b(f"{store.version}\n{key}".encode(), digest_size=20).hexdigest()
    function = unique_name(name, key)
    stored = _stored(store, entry, function)
    if stored is not None:
        return stored
    with store.alone(entry):
        stored = _stored(store, entry, function)  # another process may have compiled it meanwhile
        if stored is not None:
            return stored
        _announce(store)
        LISTENERS.kernel()
        with span("compile kernel", name):
            compiler = import_module("gptrs_backend_numba.codegen.numba_compiler")
            code = compiler.machine_code(build(function), fastmath)
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


def _from_text(name: str, source: str, constants: Mapping[str, object]) -> FunctionType:
    _require_kept(source)
    namespace = {"__name__": __name__, **_NAMESPACE, **constants}
    exec(compile(source, "<gptrs kernel>", "exec"), namespace)
    function = namespace["kernel"]
    assert isinstance(function, FunctionType)
    function.__name__ = function.__qualname__ = name
    return function


def _require_kept(source: str) -> None:
    """Raise AssertionError if an array is mentioned last for its address: numba frees it then."""
    for name in set(re.findall(r"\b(\w+)\.ctypes\b", source)):
        rest = re.split(rf"\b{name}\b", source)[-1]
        assert not rest.startswith(".ctypes"), f"`{name}` is mentioned last to take its address"


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
