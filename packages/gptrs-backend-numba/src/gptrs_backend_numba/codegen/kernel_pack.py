"""Packs: kernels that were compiled in advance, and are installed with this package.

A pack is one read-only file for a kind of processor: a head, an index, and compressed machine code
under the digests of the keys of kernels. It is trusted as the modules beside it are, and looked
into before the cache of the user. `tools/kernel_pack.py` writes packs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from gptrs.disk_cache import CachePart, Entries
from gptrs_backend_numba.codegen.kernel_store import SOURCES_DIGEST
from gptrs_backend_numba.codegen.machine import features, usable_features
from gptrs_backend_numba.codegen.processor import host_features, this_machine
from gptrs_backend_numba.codegen.targets import chosen_target

VARIABLE = "GPTRS_NUMBA_PACK"
"""The folder with packs, instead of the one that is installed; 0: none is used."""
FOLDER = Path(__file__).parent.parent / "pack"
"""The folder with packs that is installed with this package."""
SUFFIX = ".kernels"
_LOG = logging.getLogger("gptrs")
_MAGIC = b"gptrs kernels 1\n"
_LENGTHS = struct.Struct("<2I")
_ENTRY = struct.Struct("<20s2I8s")
_SEAL_BYTES = 20
_LARGEST_HEAD = 1 << 24


class DamagedPackError(Exception):
    """An error for a file that is not a whole pack; the text says why."""


class PackHead(Struct, frozen=True, forbid_unknown_fields=True):
    """All that decides whether a process may use the kernels of a pack."""

    target: str
    """The kind of processors, in words."""
    system: str
    """Their instruction set and the operating system, as `this_system` has them."""
    sources: str
    """The digest of the sources of the kernels."""
    deciding: tuple[str, ...]
    """Features that kernels were chosen for: a process with others would choose otherwise."""
    needs: tuple[str, ...]
    """Features whose instructions may occur."""
    made_by: str
    """The compiler."""

    def refusal(self) -> str | None:
        """Return why this process cannot use the pack, None if it can."""
        if self.sources != SOURCES_DIGEST.hex():
            return "it was made from other sources of the kernels"
        if self.system != this_system():
            return f"it is for {self.system}, this is {this_system()}"
        lacking = sorted(set(self.needs) - host_features() | set(self.deciding) - features())
        if lacking:
            return f"it is for processors with {', '.join(lacking)}"
        unused = sorted(features() - set(self.deciding))
        if unused:
            return f"it makes no use of {', '.join(unused)}"
        return None

    def encoded(self) -> bytes:
        """Return the head as JSON, for `head_of`."""
        return msgspec.json.encode(self)


def this_system() -> str:
    """Return the instruction set and the operating system of this process."""
    return f"{this_machine()} {platform.system()}"


def head_for_target(made_by: str) -> PackHead:
    """Return the head of a pack with what this process compiles, for its target or this machine."""
    deciding, needs = (tuple(sorted(each)) for each in (features(), usable_features()))
    target = chosen_target()
    words, system = "this machine", this_system()
    if target is not None:
        words, system = target.words, f"{target.machine} {platform.system()}"
    return PackHead(words, system, SOURCES_DIGEST.hex(), deciding, needs, made_by)


class KernelPack:
    """The kernels in one file; what is damaged counts as absent, and the log says so once."""

    def __init__(self, path: Path) -> None:
        """Read head and index; DamagedPackError, or OSError where the file cannot be read."""
        self.path = path
        with path.open("rb") as file:
            start = file.read(len(_MAGIC) + _LENGTHS.size)
            if len(start) < len(_MAGIC) + _LENGTHS.size or not start.startswith(_MAGIC):
                raise DamagedPackError("it is not a pack of kernels")
            head_size, index_size = _LENGTHS.unpack_from(start, len(_MAGIC))
            if max(head_size, index_size) > _LARGEST_HEAD or index_size % _ENTRY.size:
                raise DamagedPackError("its beginning is damaged")
            head, index = file.read(head_size), file.read(index_size)
            if file.read(_SEAL_BYTES) != _seal(start + head + index):
                raise DamagedPackError("its beginning is damaged")
            self._begin = file.tell()
            self.nbytes = os.fstat(file.fileno()).st_size
        self.head = head_of(head)
        self._index = {key: rest for key, *rest in _ENTRY.iter_unpack(index)}
        self._is_damaged = False

    def __len__(self) -> int:
        return len(self._index)

    def has(self, key: str) -> bool:
        """Return whether there is a kernel with this key."""
        return _digest(key) in self._index

    def load(self, key: str) -> bytes | None:
        """Return the encoded machine code of the kernel with this key, None without it."""
        entry = self._index.get(_digest(key))
        if entry is None:
            return None
        offset, nbytes, seal = cast("tuple[int, int, bytes]", entry)
        try:
            with self.path.open("rb") as file:
                content = os.pread(file.fileno(), nbytes, self._begin + offset)
            if _seal(content)[: len(seal)] != seal:
                raise DamagedPackError("a kernel is damaged")
            return zlib.decompress(content)
        except (OSError, zlib.error, DamagedPackError) as error:
            self.discard(key, str(error))
            return None

    def discard(self, key: str, reason: str) -> None:
        """Use the kernel with this key no more, which turned out to be of no use."""
        self._index.pop(_digest(key), None)
        if not self._is_damaged:
            self._is_damaged = True
            _LOG.warning("kernels of `%s` are compiled again: %s", self.path, reason)


def write_pack(path: Path, head: PackHead, kernels: Mapping[str, bytes]) -> None:
    """Write a pack with the encoded machine code of kernels, by the digests of their keys in hex.

    Equal code is stored once.
    """
    bodies: dict[bytes, int] = {}
    index = b""
    end = 0
    for digest, code in sorted(kernels.items()):
        body = zlib.compress(code, 9)
        if body not in bodies:
            bodies[body], end = end, end + len(body)
        index += _ENTRY.pack(bytes.fromhex(digest), bodies[body], len(body), _seal(body)[:8])
    text = head.encoded()
    start = _MAGIC + _LENGTHS.pack(len(text), len(index)) + text + index
    path.write_bytes(start + _seal(start) + b"".join(bodies))


def digest_of(key: str) -> str:
    """Return the name of a kernel in packs."""
    return _digest(key).hex()


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=20).digest()


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SEAL_BYTES).digest()


def head_of(text: bytes) -> PackHead:
    """Return the head that JSON states; DamagedPackError for any other text."""
    try:
        return msgspec.json.decode(text, type=PackHead)
    except msgspec.MsgspecError as error:
        raise DamagedPackError("its head is of another version") from error


# The packs that are installed, and the one that this process uses.


class _Packs(Struct, frozen=True):
    used: KernelPack | None
    refused: Mapping[Path, tuple[str, int, str]]
    """By their files: the target, the number of kernels, and why they are not used."""


@cache
def _packs() -> _Packs:
    given = os.environ.get(VARIABLE, "")
    folder = Path(given) if given else FOLDER
    refused: dict[Path, tuple[str, int, str]] = {}
    fitting: list[KernelPack] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")) if given != "0" else ():
        try:
            pack = KernelPack(path)
        except (OSError, DamagedPackError) as error:
            refused[path] = (path.stem, 0, str(error))
            continue
        reason = pack.head.refusal()
        if reason is None:
            fitting.append(pack)
        else:
            refused[path] = (pack.head.target, len(pack), reason)
    fitting.sort(key=lambda pack: len(pack.head.needs))
    used = fitting.pop() if fitting else None
    for pack in fitting:
        refused[pack.path] = (pack.head.target, len(pack), "another fits better")
    return _Packs(used, refused)


def kernel_pack() -> KernelPack | None:
    """Return the pack that this process uses, None if none fits."""
    return _packs().used


def pack_parts() -> list[CachePart]:
    """Return the packs that are installed for `gptrs cache`, the one in use first."""
    packs = _packs()
    parts: list[CachePart] = []
    if packs.used is not None:
        name = f"{packs.used.head.target}, installed in `{packs.used.path}`"
        parts.append(CachePart(name, True, Entries(len(packs.used), packs.used.nbytes)))
    for path, (target, count, reason) in packs.refused.items():
        nbytes = path.stat().st_size if path.exists() else 0
        parts.append(CachePart(f"{target}: {reason}", False, Entries(count, nbytes)))
    return parts
