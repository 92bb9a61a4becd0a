"""Entry points of installed distributions, read defensively: any file may be damaged."""

from __future__ import annotations

import importlib
import importlib.resources
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from pathlib import Path

from msgspec import Struct

from gptrs.errors import PluginError
from gptrs.metadata_library import metadata
from gptrs.plugins.selection import canonical

ENTRY_POINTS_FILE = "entry_points.txt"
LARGEST_FILE = 1 << 20
"""In bytes; the largest files of large packages have about 50 KB."""
MOST_ENTRIES = 1000
"""Most entry points for gptrs in one distribution."""
_METADATA_FILES = ("METADATA", "PKG-INFO")
_METADATA_BYTES = 1 << 16
"""Bytes read from METADATA: name and version come first, before the description."""
_OURS = "gptrs"
_MEANT_FOR_US = re.compile(r"gptrs(\..*|[_-][\w-]*)?")
"""Groups of entry points that only gptrs would read; other packages may have `gptrs_x.y`."""


class Installed(Struct, frozen=True):
    """A distribution with entry points for us, or with the `error` of reading them."""

    distribution: str
    version: str
    entry_points: tuple[metadata.EntryPoint, ...] = ()
    error: Exception | None = None


class Metadata(Struct, frozen=True):
    """Version and requirements of a distribution; empty if METADATA cannot be read."""

    version: str
    requires: tuple[str, ...]


def metadata_of(distribution: str) -> Metadata | None:
    """Return the metadata of a distribution, read defensively; None if it is not installed."""
    for found in metadata.Distribution.discover(name=distribution):
        folder = _folder(found)
        try:
            if folder is None:
                return Metadata(str(found.version), tuple(found.requires or ()))
            headers = _headers(folder)
        except Exception:  # in a damaged zip file
            return Metadata("", ())
        return Metadata(headers.get("version", [""])[0], tuple(headers.get("requires-dist", ())))
    return None


def installed(groups: Collection[str]) -> Iterator[Installed]:
    """Yield the distributions that have entry points in `groups`, or files that cannot be read.

    Groups that are almost those of gptrs, such as `gptrs.backend`, come along: they are mistakes.
    Of two distributions with one name, the first on `sys.path` counts, as for imports.
    """
    return installed_in(metadata.distributions(), groups)


def installed_in(
    distributions: Iterable[metadata.Distribution], groups: Collection[str]
) -> Iterator[Installed]:
    """Yield the given distributions, as `installed` does."""
    seen: set[str] = set()
    for distribution in distributions:
        found = _read(distribution, groups)
        if found is not None and canonical(found.distribution) not in seen:
            seen.add(canonical(found.distribution))
            yield found


def _read(distribution: metadata.Distribution, groups: Collection[str]) -> Installed | None:
    try:
        text = _text(distribution)
        if text is None:  # without entry points for us, its name and version do not matter
            return None
        entries = tuple(_entries(text, groups))
    except Exception as error:
        return Installed(*_identify(distribution), error=error)
    return Installed(*_identify(distribution), entries)


def _text(distribution: metadata.Distribution) -> str | None:
    """Return the text of the file if it has one of our groups; PluginError if it is unreadable."""
    folder = _folder(distribution)
    if folder is None:  # in a zip file, or from a finder without files
        text = distribution.read_text(ENTRY_POINTS_FILE) or ""
        return text if _OURS in text else None
    data = _head(folder / ENTRY_POINTS_FILE, LARGEST_FILE + 1)
    if data is None:
        return None
    if len(data) > LARGEST_FILE:
        raise PluginError(f"it is larger than {LARGEST_FILE} bytes")
    return data.decode() if _OURS.encode() in data else None


def _entries(text: str, groups: Collection[str]) -> Iterator[metadata.EntryPoint]:
    """Yield the entry points for gptrs; PluginError for a malformed line, or too many."""
    group, count = "", 0
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
            continue
        if group and group not in groups and not _MEANT_FOR_US.fullmatch(group):
            continue
        name, equals, value = line.partition("=")
        if not group or not equals:
            raise PluginError(f"line {number} is not `name = value` in a `[group]`")
        count += 1
        if count > MOST_ENTRIES:
            raise PluginError(f"it has more than {MOST_ENTRIES} entry points for gptrs")
        yield metadata.EntryPoint(name.strip(), value.strip(), group)


def _identify(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return name and version, from the folder's name if the metadata is damaged."""
    folder = _folder(distribution)
    try:
        if folder is None:
            return str(distribution.metadata["Name"] or "unknown"), str(distribution.version)
        stem, _, version = folder.stem.partition("-")
        headers = _headers(folder)
        [name, *_], [version, *_] = (
            headers.get("name", [stem]),
            headers.get("version", [version or "unknown"]),
        )
        return name, version
    except Exception:
        return "unknown", "unknown"


def _headers(folder: Path) -> dict[str, list[str]]:
    """Return the headers of METADATA by lower-case name; none if it is unreadable."""
    found: dict[str, list[str]] = {}
    for name in _METADATA_FILES:
        try:
            data = _head(folder / name, _METADATA_BYTES) or b""
        except (PluginError, OSError):
            continue
        head = data.partition(b"\n\n")[0]  # the description follows, which may be long
        for line in head.decode(errors="replace").splitlines():
            if not line:
                break
            key, _, value = line.partition(":")
            if value.strip():
                found.setdefault(key.lower(), []).append(value.strip())
    return found


def _folder(distribution: metadata.Distribution) -> Path | None:
    """Return the folder `NAME-VERSION.dist-info`; None if the distribution has no such folder."""
    folder = getattr(distribution, "_path", None)
    return folder if isinstance(folder, Path) else None


def _head(path: Path, size: int) -> bytes | None:
    """Return the first `size` bytes; None for a missing file, PluginError for no regular file."""
    try:
        # A pipe is not even opened, since its writer would notice. Links are fine: installers make
        # them.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PluginError("it is not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PluginError("it changed while it was opened")
        return file.read(size)


# Resolution of the strings in descriptions: objects of modules, folders of packages.


def load_reference(reference: str) -> object:
    """Import `module` or `module:attribute`; the attribute may be dotted.

    Raises the errors of the import, and AttributeError if the module lacks the attribute.
    """
    module, _, attribute = reference.partition(":")
    loaded: object = importlib.import_module(module)
    return reduce(getattr, attribute.split("."), loaded) if attribute else loaded


def require_callable(found: object, reference: str) -> Callable[..., object]:
    """Return `found`, the object of `reference`; PluginError unless it is callable."""
    if not callable(found):
        kind = type(found).__name__
        raise PluginError(f"`{reference}` must be callable, it is a `{kind}`")
    return found


def resource_directory(reference: str) -> Path:
    """Return the folder "package:relative/dir"; PluginError if it does not exist."""
    package, _, folder = reference.partition(":")
    found = importlib.resources.files(package).joinpath(folder)
    if not isinstance(found, Path) or not found.is_dir():
        raise PluginError(f"`{reference}` is not a directory of an installed package")
    return found
