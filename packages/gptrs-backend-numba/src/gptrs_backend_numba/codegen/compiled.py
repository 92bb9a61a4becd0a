"""Turns the source of a kernel into machine code, from the store when it was compiled before."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
import re
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import llvmlite

from gptrs_backend_numba.codegen import (
    complex_numbers,
    conversion,
    interpreter,
    machine,
    scalar,
    target,
    tasks,
)
from gptrs_backend_numba.codegen.compile_listeners import LISTENERS
from gptrs_backend_numba.codegen.kernel_store import KernelStore, open_store
from gptrs_backend_numba.codegen.machine_code import Kernel, Linker, MachineCode, decode


def sources_digest(package: Path) -> bytes:
    """Return a digest of the kernels below `package` and of the functions that kernels call.

    It covers `codegen` and `kernels` with all their subfolders: a kernel on disk that was compiled
    from other sources must never be taken.
    """
    sources = (path for folder in _SOURCES for path in (package / folder).rglob("*.py"))
    content = b"".join(path.read_bytes() for path in sorted(sources))
    return hashlib.blake2b(content, digest_size=20).digest()


_SOURCES = ("codegen", "kernels")
# Taken at import, together with the code that it stands for.
_SOURCES_DIGEST = sources_digest(Path(__file__).parent.parent)
_NAMESPACE = {
    name: value
    for module in (
        machine,
        conversion,
        scalar,
        complex_numbers,
        tasks,
        interpreter,
    )
    for name, value in module.EXPORTS.items()
}
_KERNELS: dict[str, Kernel] = {}
_LINKER = Linker()
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
    key = f"{fastmath}\n{source}"
    with _LOCK:
        found = _KERNELS.get(key)
        if found is None:
            found = _KERNELS[key] = _made(key, source, fastmath, constants or {})
        return found


def provide(functions: Mapping[str, object]) -> None:
    """Let the sources of all kernels use these names, besides those of `codegen`."""
    _NAMESPACE.update(functions)


def address_of_kernel(kernel: Kernel) -> int:
    """Where the machine code of a compiled kernel begins, for calls by other kernels."""
    return kernel.address


def compiled_task(source: str, constants: Mapping[str, object] | None = None) -> int:
    """The address of the compiled function `kernel`, for `call_task` in other kernels."""
    return compiled(source, constants=constants).address


def _made(
    key: str, source: str, fastmath: tuple[str, ...], constants: Mapping[str, object]
) -> Kernel:
    store = kernel_store()
    name = hashlib.blake2b(f"{store.version}\n{key}".encode(), digest_size=20).hexdigest()
    stored = _stored(store, name)
    if stored is not None:
        return stored
    with store.alone(name):
        stored = _stored(store, name)  # another process may have compiled it meanwhile
        if stored is not None:
            return stored
        _announce(store)
        LISTENERS.kernel()
        code = _compile(key, source, fastmath, constants)
        store.save(name, code.encoded())
    return _LINKER.link(code)


def _stored(store: KernelStore, name: str) -> Kernel | None:
    body = store.load(name)
    if body is None:
        return None
    try:
        return _LINKER.link(decode(body))
    except (ValueError, RuntimeError) as error:  # whole, and yet not what we save
        store.discard(name, str(error))
        return None


def _compile(
    key: str, source: str, fastmath: tuple[str, ...], constants: Mapping[str, object]
) -> MachineCode:
    _require_kept(source)
    namespace = {"__name__": __name__, **_NAMESPACE, **constants}
    exec(compile(source, "<gptrs kernel>", "exec"), namespace)
    function = namespace["kernel"]
    # The linker knows functions by name only, and numba numbers them anew in each process:
    # kernels that different processes have stored would take each other's place.
    name = f"kernel_{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"
    function.__name__ = function.__qualname__ = name
    compiler = import_module("gptrs_backend_numba.codegen.numba_compiler")
    return compiler.machine_code(function, fastmath)


def _require_kept(source: str) -> None:
    """numba frees an array after its last mention, even if its address is used afterwards."""
    for name in set(re.findall(r"\b(\w+)\.ctypes\b", source)):
        rest = re.split(rf"\b{name}\b", source)[-1]
        assert not rest.startswith(".ctypes"), f"`{name}` is mentioned last to take its address"


@cache
def kernel_store() -> KernelStore:
    """Where this process finds and keeps its kernels."""
    content = _SOURCES_DIGEST + target.description().encode()
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    return open_store(
        f"Python {platform.python_version()}, numba {importlib.metadata.version('numba')},"
        f" llvmlite {llvmlite.__version__}, {target.cpu_name()}, kernels {digest}"
    )


@cache
def _announce(store: KernelStore) -> None:
    kept = f"kept in `{store.folder}`" if store.keeps else "not kept"
    logging.getLogger("gptrs").info("backend `numba`: compiling kernels for this machine, %s", kept)
