"""Images of machine code: an object file laid out in advance, so that loading it needs no LLVM.

LLVM compiles kernels for its large code model: nothing in them depends on where they lie but whole
addresses, of their own constants and of functions of the C library. An image is the sections in
their final order with the list of these addresses. To load it is to copy it and to add them up:
LLVM's library, which takes 25 to 90 ms to load, is then only needed to compile.

Sections, symbols and relocations are those of the System V ABI and its supplement for AMD64.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator, Sequence
from functools import cache

from msgspec import Struct

MAGIC = b"gptrs image 1\n"
_PAGE = 4096
"""Bytes of a page on x86-64."""
_X86_64, _RELOCATABLE = 62, 1
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _LEAST_RESERVED = 0, 0xFF00
_ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 1, 2, 4, 24
_HEAD = struct.Struct("<6I")
_SECTION = struct.Struct("<2I4Q2I2Q")
_SYMBOL = struct.Struct("<I2BH2Q")
_RELOCATION = struct.Struct("<QIIq")
_OWN, _FOREIGN = struct.Struct("<2I"), struct.Struct("<IHq")
_READ_WRITE, _READ_EXECUTE = mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_EXEC
_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class _UnknownFormError(Exception):
    """An object file with something that images do not have; LLVM links it."""


class _Section(Struct, frozen=True):
    name: bytes
    type: int
    flags: int
    content: bytes
    size: int
    link: int
    info: int
    align: int


def image_of(object_file: bytes, function: str) -> bytes | None:
    """Return the image of a relocatable ELF file for x86-64 that begins with `function`.

    None if the file is for another system, or has what images cannot tell.
    """
    try:
        return _Layout(object_file, function.encode()).encoded()
    except (_UnknownFormError, struct.error):
        return None


class _Layout:
    """The sections that are kept, at their offsets, and the addresses in them."""

    def __init__(self, file: bytes, function: bytes) -> None:
        if file[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<2H", file, 16) != (
            _RELOCATABLE,
            _X86_64,
        ):
            raise _UnknownFormError
        self._sections = list(_sections(file))
        relocations = [
            (section.info, found)
            for section in self._sections
            if section.type == _RELA and self._is_kept(section.info)
            for found in _RELOCATION.iter_unpack(section.content)
        ]
        self._symbols = self._read_symbols()
        used = {self._symbols[symbol][1] for _, (_, _, symbol, _) in relocations}
        self._offsets: dict[int, int] = {}
        code = [i for i in range(len(self._sections)) if self._is_kept(i)]
        data = [i for i in sorted(used) if i < len(self._sections) and self._is_data(i)]
        self._writable = -(-self._place(code, 0) // _PAGE) * _PAGE
        self._end = self._place(data, self._writable)
        self._image = bytearray(self._end)
        for index, offset in self._offsets.items():
            content = self._sections[index].content
            self._image[offset : offset + len(content)] = content
        self._own: list[tuple[int, int]] = []
        self._foreign: list[tuple[int, bytes, int]] = []
        for index, relocation in relocations:
            self._resolve(self._offsets[index], *relocation)
        entries = [
            self._offsets[index] + value
            for name, index, value in self._symbols
            if name == function and index in self._offsets
        ]
        if len(entries) != 1:
            raise _UnknownFormError
        self._entry = entries[0]

    def encoded(self) -> bytes:
        """Return the bytes that `load_image` takes."""
        content = self._image.rstrip(b"\0")  # the rest are zeros, which need not be kept
        sizes = (self._writable, self._end, self._entry)
        head = _HEAD.pack(*sizes, len(self._own), len(self._foreign), len(content))
        own = b"".join(_OWN.pack(*each) for each in self._own)
        foreign = b"".join(
            _FOREIGN.pack(at, len(name), addend) + name for at, name, addend in self._foreign
        )
        return MAGIC + head + own + foreign + bytes(content)

    def _is_kept(self, index: int) -> bool:
        """Return whether a section has instructions or constants; frames are for exceptions."""
        section = self._sections[index]
        return (
            section.type == _PROGBITS
            and section.flags & _ALLOC != 0
            and section.flags & _WRITE == 0
            and not section.name.startswith((b".eh_frame", b".note"))
        )

    def _is_data(self, index: int) -> bool:
        section = self._sections[index]
        return section.type in (_PROGBITS, _NOBITS) and section.flags & _WRITE != 0

    def _place(self, indices: Sequence[int], end: int) -> int:
        for index in indices:
            section = self._sections[index]
            align = max(section.align, 16)
            if align > _PAGE:
                raise _UnknownFormError
            self._offsets[index] = -(-end // align) * align
            end = self._offsets[index] + section.size
        return end

    def _read_symbols(self) -> list[tuple[bytes, int, int]]:
        """Return name, section and value of each symbol."""
        table = next(each for each in self._sections if each.type == _SYMTAB)
        names = self._sections[table.link].content
        return [
            (_name(names, name), index, value)
            for name, _, _, index, value, _ in _SYMBOL.iter_unpack(table.content)
        ]

    def _resolve(self, base: int, at: int, kind: int, symbol: int, addend: int) -> None:
        name, index, value = self._symbols[symbol]
        position = base + at
        if index == _UNDEFINED and kind == _ABSOLUTE_64 and name:
            self._foreign.append((position, name, addend))
            return
        if index >= _LEAST_RESERVED or index not in self._offsets:
            raise _UnknownFormError
        target = self._offsets[index] + value + addend
        if kind == _ABSOLUTE_64 and target >= 0:
            self._own.append((position, target))
        elif kind in (_RELATIVE_32, _CALL_32):
            struct.pack_into("<i", self._image, position, target - position)
        elif kind == _RELATIVE_64:
            struct.pack_into("<q", self._image, position, target - position)
        else:
            raise _UnknownFormError


def _sections(file: bytes) -> Iterator[_Section]:
    begin, size, count, names_at = (
        *struct.unpack_from("<Q", file, 40),
        *struct.unpack_from("<3H", file, 58),
    )
    if size != _SECTION.size:
        raise _UnknownFormError
    heads = [_SECTION.unpack_from(file, begin + size * index) for index in range(count)]
    names_from, names_size = heads[names_at][4], heads[names_at][5]
    names = file[names_from : names_from + names_size]
    for name, type_, flags, _, offset, nbytes, link, info, align, _ in heads:
        content = b"" if type_ == _NOBITS else file[offset : offset + nbytes]
        yield _Section(_name(names, name), type_, flags, content, nbytes, link, info, align)


def _name(names: bytes, at: int) -> bytes:
    return names[at : names.index(b"\0", at)]


def load_image(data: bytes) -> int:
    """Copy an image into new memory that is never freed; return the address of its function.

    ValueError for an incomplete image, or one that calls a function that is not here. OSError
    where the system gives no memory for code.
    """
    if not data.startswith(MAGIC):
        raise ValueError("it is not an image of machine code")
    try:
        at = len(MAGIC) + _HEAD.size
        writable, end, entry, own, foreign, length = _HEAD.unpack_from(data, len(MAGIC))
        positions = list(_OWN.iter_unpack(data[at : at + own * _OWN.size]))
        at += own * _OWN.size
        calls: list[tuple[int, int]] = []
        for _ in range(foreign):
            position, letters, addend = _FOREIGN.unpack_from(data, at)
            at += _FOREIGN.size
            calls.append((position, _address_of(data[at : at + letters].decode()) + addend))
            at += letters
        if len(data) - at != length or not entry < length <= end:
            raise ValueError("it is not a whole image of machine code")
        image = bytearray(data[at:])
        image.extend(bytes(end - length))
        base = _mapped(end)
        for position, target in positions:
            struct.pack_into("<q", image, position, base + target)
        for position, address in calls:
            struct.pack_into("<q", image, position, address)
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError("it is not a whole image of machine code") from error
    ctypes.memmove(base, bytes(image), len(image))
    # Nothing can be written to memory that is executed, and nothing executed that can be written.
    if _process().mprotect(base, writable, _READ_EXECUTE):
        raise OSError(ctypes.get_errno(), "the system runs no code that is made at run time")
    return base + entry


def _mapped(nbytes: int) -> int:
    address = _process().mmap(None, nbytes, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "there is no memory for code")
    return address


@cache
def _address_of(name: str) -> int:
    """Return the address of a function of the C library or its mathematical part."""
    for library in (_process(), _mathematics()):
        function = getattr(library, name, None)
        if function is not None:
            address = ctypes.cast(function, ctypes.c_void_p).value
            assert address is not None
            return address
    raise ValueError(f"it calls `{name}`, which this process lacks")


@cache
def _process() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


@cache
def _mathematics() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return None
