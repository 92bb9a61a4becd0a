"""The machine code of kernels: out of the pack that is installed, the user's store, or numba."""

from __future__ import annotations

import hashlib
import logging
import platform
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import cast

import llvmlite
from msgspec import Struct

from gptrs.backend.contract import Compiling
from gptrs.metadata_library import metadata
from gptrs.spans import span
from gptrs_backend_numba.codegen import machine
from gptrs_backend_numba.codegen.kernel import (
    GeneratedKernel,
    KernelFunction,
    SpecializedKernel,
    unique_name,
)
from gptrs_backend_numba.codegen.kernel_pack import kernel_pack
from gptrs_backend_numba.codegen.kernel_store import SOURCES_DIGEST, KernelStore, open_store
from gptrs_backend_numba.codegen.machine_code import Kernel, Linker, MachineCode, decode
from gptrs_backend_numba.codegen.processor import host_name

# The listeners that are told of each kernel before it is compiled.


class CompileListeners:
    """The functions to call before a kernel is compiled, each with the number of its calls."""

    def __init__(self) -> None:
        self._heard: dict[Compiling, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def told(self, tell: Compiling) -> Generator[None]:
        """Scope in which `tell` is called before each kernel that is compiled, from 1."""
        with self._lock:
            self._heard[tell] = 0
        try:
            yield
        finally:
            with self._lock:
                self._heard.pop(tell, None)

    def kernel(self) -> None:
        """Tell the listeners that a kernel is about to be compiled; the total is unknown."""
        with self._lock:
            for tell in self._heard:
                self._heard[tell] += 1
            heard = list(self._heard.items())
        for tell, number in heard:
            tell(number, None)


LISTENERS = CompileListeners()
"""The listeners of this process."""


# A kernel before it is looked for: its key, and how its function is made if no store has it.


class WantedKernel(Struct, frozen=True):
    """A kernel with flags of LLVM."""

    source: SpecializedKernel | GeneratedKernel
    fastmath: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the kernel, which others may have, too."""
        return self.source.name

    @property
    def key(self) -> str:
        """Return what tells the kernel from all others, in all processes."""
        return f"{self.fastmath}\n{self.source.key}"

    @property
    def function_name(self) -> str:
        """Return the name of the function, which no other kernel has."""
        return unique_name(self.name, self.key)

    def function(self) -> FunctionType:
        """Return the function to compile."""
        return self.source.build(self.function_name)


_KERNELS: dict[str, Kernel] = {}
_WANTED: dict[int, WantedKernel] = {}
"""The kernels of this process by the addresses of their machine code."""
_LINKER = Linker()
COMPILING = threading.Lock()
"""Held while kernels are compiled, found and linked."""


def compiled(
    kernel: KernelFunction | SpecializedKernel | GeneratedKernel, *, fastmath: tuple[str, ...] = ()
) -> Kernel:
    """Return the machine code of a kernel; one without bindings needs no `specialize`.

    `fastmath` has LLVM's flags for the floating-point operations of the kernel and of functions
    that it calls, except those that have flags of their own. In a survey of what is missing it is
    a kernel that nobody can call: see `missing_kernels`.
    """
    specialized = kernel.specialize() if isinstance(kernel, KernelFunction) else kernel
    return _found(WantedKernel(specialized, fastmath))


def compiled_task(kernel: KernelFunction | SpecializedKernel | GeneratedKernel) -> int:
    """Return the address of a compiled kernel, for `call_task` and the like in other kernels."""
    return compiled(kernel).address


def address_of_kernel(kernel: Kernel) -> int:
    """Return the address of the machine code of a compiled kernel, for calls by other kernels."""
    return kernel.address


def known(wanted: WantedKernel) -> Kernel:
    """Return the machine code of a wanted kernel, see `compiled`."""
    return _found(wanted)


def stored(wanted: WantedKernel) -> Kernel | None:
    """Return the machine code of a kernel that was compiled before; None if it would have to be."""
    with COMPILING:
        key = wanted.key
        found = _KERNELS.get(key) or _kept(key, wanted.function_name)
        if found is not None:
            _keep(key, wanted, found)
        return found


def _keep(key: str, wanted: WantedKernel, found: Kernel) -> None:
    """Note a kernel; the caller holds COMPILING."""
    _KERNELS[key] = found
    _WANTED[found.address] = wanted


def kernels_by_address() -> Mapping[int, WantedKernel]:
    """Return the kernels that programs of this process call, by address."""
    return _WANTED


def _found(wanted: WantedKernel) -> Kernel:
    with COMPILING:
        key = wanted.key
        if _SURVEY.names_only:
            return _named(key, wanted)
        found = _KERNELS.get(key)
        if found is None:
            found = _kept(key, wanted.function_name)
            if found is None and _SURVEY.missing is not None:
                _SURVEY.missing[key] = wanted
                return NOT_THERE
            if found is None:
                with kernel_store().alone(entry_of(key)):
                    found = _made(wanted)
            _keep(key, wanted, found)
        return found


class _Survey(threading.local):
    """The kernels that this thread has missed, if it surveys what is missing."""

    missing: dict[str, WantedKernel] | None = None
    names_only = False


_SURVEY = _Survey()
_SHARED = "shared object\n"
"""Before the keys of objects, which are entries beside the machine code for this process."""
NOT_THERE = Kernel(0, 0)
"""Stands for kernels that are missing in a survey, or not compiled yet."""


@contextmanager
def missing_kernels() -> Generator[dict[str, WantedKernel]]:
    """Scope that collects kernels that no store has, by key, and gives empty ones for them."""
    missing: dict[str, WantedKernel] = {}
    former, _SURVEY.missing = _SURVEY.missing, missing
    try:
        yield missing
    finally:
        _SURVEY.missing = former


_NAMES: dict[str, Kernel] = {}
_FIRST_NAME = 1 << 46
"""An address between those of programs and those of libraries and the stack, where nothing lies."""


@contextmanager
def named_kernels() -> Generator[None]:
    """Scope in which kernels differ by their addresses, but not compiled or called: those
    of a program for other processors.
    """
    former, _SURVEY.names_only = _SURVEY.names_only, True
    try:
        yield
    finally:
        _SURVEY.names_only = former


def _named(key: str, wanted: WantedKernel) -> Kernel:
    """Return a stand-in for a kernel; the caller holds COMPILING."""
    if key not in _NAMES:
        _NAMES[key] = Kernel(_FIRST_NAME + 16 * len(_NAMES), 0)
        _WANTED[_NAMES[key].address] = wanted
    return _NAMES[key]


def is_stored(wanted: WantedKernel) -> bool:
    """Return whether a kernel was compiled, by this process or another."""
    key, pack = wanted.key, kernel_pack()
    if key in _KERNELS or (pack is not None and pack.has(key)):
        return True
    return kernel_store().has(entry_of(key))


def compile_if_free(wanted: WantedKernel) -> bool:
    """Compile a kernel and return True, unless it was compiled or another process is doing so."""
    with COMPILING:
        if is_stored(wanted):
            return False
        with kernel_store().alone_if_free(entry_of(wanted.key)) as free:
            if free:
                _keep(wanted.key, wanted, _made(wanted))
            return free


def link_stored(name: str, key: str, make: Callable[[], MachineCode]) -> Kernel:
    """Return the function `name` that no kernel is the source of: stored, else from `make`."""
    with COMPILING:
        kept = _kept(key, name)
        if kept is not None:
            return kept
        code = make()
        kernel_store().save(entry_of(key), code.encoded())
        return _LINKER.link(code)


def shared_object(wanted: WantedKernel) -> tuple[str, bytes]:
    """Return the name of a kernel's function and its object file for shared libraries, stored or
    compiled.
    """
    store, entry = kernel_store(), entry_of(f"{_SHARED}{wanted.key}")
    with COMPILING:
        body = store.load(entry)
        if body is None or b"\n" not in body:
            compiler = import_module("gptrs_backend_numba.codegen.numba_compiler")
            with span("compile kernel", wanted.name):
                made = cast(
                    "tuple[str, bytes]", compiler.shared_object(wanted.function(), wanted.fastmath)
                )
            body = made[0].encode() + b"\n" + made[1]
            store.save(entry, body)
        name, _, content = body.partition(b"\n")
        return name.decode(), content


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


def _kept(key: str, function: str) -> Kernel | None:
    """Return a kernel that was compiled before: it is in the pack, or else in the store."""
    pack = kernel_pack()
    body = None if pack is None else pack.load(key)
    if pack is None or body is None:
        return _stored(kernel_store(), entry_of(key), function)
    try:
        with span("load installed kernel", function):
            return _LINKER.link(decode(body, function))
    except (ValueError, OSError) as error:  # whole, and yet not what this process can call
        pack.discard(key, str(error))
        return _stored(kernel_store(), entry_of(key), function)


def _stored(store: KernelStore, name: str, function: str) -> Kernel | None:
    body = store.load(name)
    if body is None:
        return None
    try:
        with span("load kernel", function):
            return _LINKER.link(decode(body, function))
    except (ValueError, RuntimeError, OSError) as error:  # whole, and yet not what we save
        store.discard(name, str(error))
        return None


@cache
def kernel_store() -> KernelStore:
    """Return the store in which this process finds and keeps its kernels."""
    content = SOURCES_DIGEST + machine.description().encode()
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    return open_store(
        f"Python {platform.python_version()}, numba {_version_of('numba')},"
        f" llvmlite {llvmlite.__version__}, {host_name()}, kernels {digest}"
    )


def _version_of(distribution: str) -> str:
    """Return the version of a distribution; the library's function reads it with that for mail."""
    text = metadata.distribution(distribution).read_text("METADATA") or ""
    return next(line[9:] for line in text.splitlines() if line.startswith("Version: "))


@cache
def _announce(store: KernelStore) -> None:
    kept = f"kept in `{store.folder}`" if store.keeps else "not kept"
    logging.getLogger("gptrs").info("backend `numba`: compiling kernels for this machine, %s", kept)
