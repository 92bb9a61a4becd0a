"""Machine code of kernels: as bytes that can be kept, linked into this process, and called."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec import Struct

from gptrs.lazy_module import lazy_module
from gptrs_backend_numba.codegen.code_image import MAGIC, image_of, load_image

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:  # 25 to 90 ms, and not needed to run what is kept on x86-64
    llvm = lazy_module("llvmlite.binding")

_HEAD = re.compile(rb"([\x21-\x7e]{1,4096}) ([0-9]{1,3})\n")
_ELF = b"\x7fELF"


class MachineCode(Struct, frozen=True):
    """A function as machine code that needs only the C library.

    The function is in numba's convention: it takes where to put its result, an int64, where to put
    an exception, and `arguments` times an int64; it returns 0 unless it has raised an exception.
    """

    name: str
    arguments: int
    content: bytes
    """An image of `code_image`, or an object file for a system that has no images."""

    @classmethod
    def of_object(cls, name: str, arguments: int, object_file: bytes) -> MachineCode:
        """Return the function `name` of an object file."""
        return cls(name, arguments, image_of(object_file, name) or object_file)

    def encoded(self) -> bytes:
        """Return the bytes that `decode` reads."""
        return f"{self.name} {self.arguments}\n".encode() + self.content


def decode(body: bytes, function: str) -> MachineCode:
    """Return the code of `function` in the bytes of `MachineCode.encoded`; else raise ValueError.

    The name of the linked function is that of `function`, mangled.
    """
    head = _HEAD.match(body)
    if head is None:
        raise ValueError("it does not begin with the name of a function")
    name, arguments = head.groups()
    if function.encode() not in name:
        raise ValueError("it is the code of another function")
    return MachineCode(name.decode(), int(arguments), body[head.end() :])


_Slots = ctypes.c_int64 * 2
"""Where a function puts its result, and an exception."""


class Kernel:
    """A function of machine integers (addresses and sizes) that returns 0 or a failure's number.

    Other threads of Python run meanwhile.
    """

    __slots__ = ("_call", "address")

    def __init__(self, address: int, arguments: int) -> None:
        self.address = address
        """The address of the machine code, for calls by other kernels."""
        integers = [ctypes.c_int64] * arguments
        convention = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *integers)
        self._call = convention(address)

    def __call__(self, *arguments: int) -> int:
        """Return the result of the function; raise MemoryError if it lacked memory for its work."""
        slots = _Slots()
        address = ctypes.addressof(slots)
        # A lack of memory is the only exception that kernels raise.
        if self._call(address, address + 8, *arguments):
            raise MemoryError
        return slots[0]

    def one_at_a_time(self, *first: int) -> Callable[..., int]:
        """Return the call with the `first` arguments for a caller whose calls never overlap.

        It takes 0.4 us less, and 0.06 for each of these: they are converted once.
        """
        slots = _Slots()
        address = ctypes.addressof(slots)
        places = map(ctypes.c_void_p, (address, address + 8))
        call = partial(self._call, *places, *map(ctypes.c_int64, first))

        def run(*arguments: int) -> int:
            if call(*arguments):
                raise MemoryError
            return slots[0]

        return run


class Linker:
    """The linker of machine code into this process, where it stays. Not thread-safe."""

    def link(self, code: MachineCode) -> Kernel:
        """Link the function of `code` and return it; ValueError if it is not machine code."""
        if code.content.startswith(MAGIC):
            return Kernel(load_image(code.content), code.arguments)
        if not code.content.startswith(_ELF):
            raise ValueError("it is not machine code")
        file = llvm.ObjectFileRef.from_data(code.content)
        self._engine.add_object_file(file)
        self._engine.finalize_object()
        address = self._engine.get_function_address(code.name)
        if not address:
            raise ValueError(f"it has no function `{code.name}`")
        return Kernel(address, code.arguments)

    @cached_property
    def _engine(self) -> llvm.ExecutionEngine:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly("")
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        return llvm.create_mcjit_compiler(module, machine)
