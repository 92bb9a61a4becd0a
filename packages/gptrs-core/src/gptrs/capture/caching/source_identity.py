"""The source code that this process runs, in digests: what other code made is not found by them."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import cast

from gptrs.lazy_names import SOURCES

SETTLED_NS = 2_000_000_000
"""Clocks of file systems are coarse, and what a process imports first it may read before it."""
_MOST_FILES = 4000
"""Number of files in a package from which checking all of them takes too long."""


def _process_start() -> int:
    """Return when this process began, in nanoseconds since the epoch; now if unknown."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # After the last `)`: the name of the process, in parentheses, may hold spaces and
            # parentheses itself.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return booted + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time_ns()


BEGAN_NS = _process_start()
"""When this process began: a file that is younger may not be the code that was imported."""


def package_of(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


def packages_digest(packages: Iterable[str]) -> str | None:
    """Return a digest of all source files of imported packages, by path, size and times.

    None if that does not identify the running code: for a package without source files, with a file
    that changed after this process began, or with thousands of files.
    """
    digests = [_package_digest(name) for name in sorted(set(packages))]
    known = [digest for digest in digests if digest is not None]
    return sys.version + " ".join(known) if len(known) == len(digests) else None


@cache
def _package_digest(name: str) -> str | None:
    module = sys.modules.get(name)
    digest, count = hashlib.blake2b(name.encode(), digest_size=16), 0
    for path in () if module is None else _sources(module):
        found, count = _file_digest(path), count + 1
        if found is None or count > _MOST_FILES:
            return None
        digest.update(f"{path}\0{found}\0".encode())
    return digest.hexdigest() if count else None


def _sources(package: ModuleType) -> Iterator[str]:
    folders = list(cast("Sequence[str]", getattr(package, "__path__", ())))
    file = cast("str | None", getattr(package, "__file__", None))
    if not folders and file is not None:
        yield file
    for folder in folders:
        yield from _below(folder)


def _below(folder: str) -> Iterator[str]:
    """Yield the Python files of a folder and those below it, sorted."""
    with os.scandir(folder) as found:
        # Sorted: scandir's order differs between file systems, and the digest depends on it.
        entries = sorted((entry.name, entry.is_dir(), entry.path) for entry in found)
    for name, is_folder, path in entries:
        if is_folder and name != "__pycache__":
            yield from _below(path)
        elif name.endswith(".py"):
            yield path


def _file_digest(path: str) -> str | None:
    """Return a digest that changes with the file; None if it may have changed since import.

    The time of the last change of the inode cannot be set: not even `touch -d` hides a change.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    changed = max(found.st_mtime_ns, found.st_ctime_ns)
    if changed > BEGAN_NS - SETTLED_NS:
        return None
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


Sources = tuple[tuple[str, str], ...]
"""Files with their digests."""


_imported: dict[str, tuple[str, object, str]] = {}
"""By file: the module, the spec by which it was imported, and the digest of the file then."""


def other_sources(packages: Iterable[str]) -> Sources | None:
    """Return the files of all imported modules except those of `packages` and of Python itself.

    None if one of them changed after this process began.
    """
    left_out = frozenset(packages)
    modules, files = _files_beside(left_out)
    known: list[tuple[str, str]] = []
    for path, name in files:
        digest = _digest_of_import(path, name)
        if digest is None:
            _unknown.add(path)
            _listed[:] = [(modules, left_out, sorted(files, key=_unknown_first))]
            return None
        known.append((path, digest))
    return tuple(known)


_unknown: set[str] = set()
"""Files without a digest. They stay so: looked at first, they spare the look at all others."""


def _unknown_first(file: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
    return file[0] not in _unknown, file


_Listed = tuple[list[ModuleType], frozenset[str], list[tuple[str, str]]]
_listed: list[_Listed] = []
"""The modules that were listed last, without which packages, and their files."""


def _files_beside(packages: frozenset[str]) -> tuple[list[ModuleType], list[tuple[str, str]]]:
    """Return all modules, and the files and names of those not of `packages` or of Python."""
    modules = list(sys.modules.values())
    for of_modules, left_out, files in _listed:
        # Equal at once where each is the same object: a hundredth of what listing them takes.
        if of_modules == modules and left_out == packages:
            return modules, files
    python = sys.stdlib_module_names
    found = {
        file: name
        for name, module in list(sys.modules.items())
        if (package := package_of(name)) not in packages
        and package not in python
        and isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str)
    }
    files = sorted(found.items(), key=_unknown_first)
    _listed[:] = [(modules, packages, files)]
    return modules, files


def unchanged(sources: Sources) -> bool:
    """Return whether this process runs, or would import, what these files were."""
    return all((_known(path) or _file_digest(path)) == digest for path, digest in sources)


def _digest_of_import(path: str, name: str) -> str | None:
    """Return the digest of the file that a module was imported from; None if it is unknown."""
    digest = _known(path)
    if digest is None:
        digest = _file_digest(path)
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if digest is not None and spec is not None:
            _imported[path] = (name, spec, digest)
    return digest


def _known(path: str) -> str | None:
    """Return the digest of a file whose import was looked at; None if there was none.

    With torch and transformers there are 5,000 modules, and a capture would look at the files of
    all. One that changes on disk does not change here until a reload, which makes a new spec.
    """
    found = _imported.get(path)
    if found is None or getattr(sys.modules.get(found[0]), "__spec__", None) is not found[1]:
        return None
    return found[2]


_UNUSED = (
    "gptrs.capture.caching", "gptrs.checkpoint", "gptrs.ir", "gptrs.plugins", "gptrs_observe",
    "gptrs_runtime",
)  # fmt: skip
"""Modules that no capture calls, or that define what programs are; looking at them takes long."""
Names = dict[str, str]
"""A digest for each module: of its constants, and of where its functions and classes are from."""


def foreign_names(packages: Iterable[str]) -> Names:
    """Return which functions and classes the imported modules of `packages` have from elsewhere.

    A monkey-patched function or class makes a difference, and so does a changed constant.
    """
    wanted = frozenset(packages)
    return {
        name: _foreign(vars(module))
        for name, module in list(sys.modules.items())
        if package_of(name) in wanted and not name.startswith(_UNUSED)
    }


def same_names(known: Names, packages: Iterable[str]) -> bool:
    """Return whether the modules that are imported here and were there have the same names."""
    return all(known.get(name, found) == found for name, found in foreign_names(packages).items())


def _foreign(namespace: dict[str, object]) -> str:
    """Return a digest of an object that differs from the function or class of its name in the
    source.
    """
    found: list[str] = []
    own = namespace.get("__name__")
    names = _read_eagerly(namespace, SOURCES[str(own)]) if own in SOURCES else namespace.items()
    for name, value in names:
        if type(value) is FunctionType:
            if value.__globals__ is not namespace or value.__name__ != name:
                found.append(f"{name} {_code_name(value)}")
        elif type(value) in _VALUES:
            if name.isupper():
                found.append(f"{name} {value!r}")
        elif isinstance(value, type):
            if value.__module__ != own:
                found.append(f"{name} {value.__module__}.{value.__qualname__}")
                continue
            for attribute, inner in vars(cast("type[object]", value)).items():
                function = _function_in(inner) if type(inner) in _WRAPPERS else inner
                if type(function) is FunctionType and function.__globals__ is not namespace:
                    found.append(f"{name}.{attribute} {_code_name(function)}")
    found.sort()
    return hashlib.blake2b("\n".join(found).encode(), digest_size=8).hexdigest()


def _read_eagerly(
    namespace: dict[str, object], lazy: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    """Yield the names of a module, except those of `lazy`, which it imports on first use.

    Which of these were read so far depends on the program around, and not on the code.
    """
    for name, value in namespace.items():
        source = sys.modules.get(lazy.get(name, ""))
        if source is None or vars(source).get(name) is not value:
            yield name, value


_VALUES = (bool, int, float, str)
_WRAPPERS = (classmethod, staticmethod, property)


def _function_in(wrapped: object) -> object:
    return wrapped.fget if isinstance(wrapped, property) else getattr(wrapped, "__func__", None)


def _code_name(function: FunctionType) -> str:
    """Return where the code of a function is from, independent of its name."""
    return f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}"
