"""The compilation of kernels by numba; imported when the first kernel is in no store."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from types import FunctionType

import llvmlite.binding as llvm
from numba import types
from numba.core import config
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.target_extension import target_override

from gptrs.lazy_module import collector_paused
from gptrs_backend_numba.codegen.inlining import register_waiting
from gptrs_backend_numba.codegen.kernel_target import NAME, TARGET, KernelCompiler, KernelLibrary
from gptrs_backend_numba.codegen.machine_code import MachineCode

_ARRAYS = """
declare ptr @malloc(i64)
declare void @free(ptr)

define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %room = add i64 %wide, 48
  %all = add i64 %size, %room
  %memory = call ptr @malloc(i64 %all)
  %none = icmp eq ptr %memory, null
  br i1 %none, label %end, label %fill
fill:
  %address = ptrtoint ptr %memory to i64
  %past = add i64 %address, %room
  %over = urem i64 %past, %wide
  %data = sub i64 %past, %over
  %field = getelementptr i64, ptr %memory, i64 3
  store i64 1, ptr %memory
  store i64 %data, ptr %field
  br label %end
end:
  ret ptr %memory
}

define void @NRT_MemInfo_call_dtor(ptr %memory) {
  call void @free(ptr %memory)
  ret void
}
"""
"""Memory for arrays that kernels make: 48 bytes; generated code uses the number of users
in the first word and the address of the elements in the fourth, then the elements. numba's own
functions live in an extension module that would have to be imported to run stored kernels."""


def machine_code(function: FunctionType, fastmath: tuple[str, ...]) -> MachineCode:
    """Compile a function that takes and returns int64s."""
    count = function.__code__.co_argcount
    with _whole_kernel(function, fastmath) as (library, name):
        return MachineCode.of_object(name, count, library.object_file())


def shared_object(function: FunctionType, fastmath: tuple[str, ...]) -> tuple[str, bytes]:
    """Return the name of a function and its object file, as shared libraries take it.

    The code model and relocations differ from `machine_code`, the instructions that compute do not.
    """
    with _whole_kernel(function, fastmath) as (library, name):
        module = library._final_module
        for each in (*module.functions, *module.global_variables):
            # Several kernels define the same helpers; a library has each kernel once.
            if not each.is_declaration and each.name != name:
                each.linkage = "internal"
        return name, _sharing().emit_object(module)


@cache
def _sharing() -> llvm.TargetMachine:
    codegen = TARGET.target_context.codegen()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=codegen._get_host_cpu_name(),
        features=codegen._tm_features,
        opt=config.OPT,
        reloc="pic",
        codemodel="default",
    )


@contextmanager
def _whole_kernel(
    function: FunctionType, fastmath: tuple[str, ...]
) -> Generator[tuple[KernelLibrary, str]]:
    """Scope with the library of a compiled function, whose module has all of its LLVM code."""
    register_waiting()
    TARGET.refresh()
    flags = Flags()
    options = {"nopython": True, "error_model": "numpy", "fastmath": set(fastmath)}
    TARGET.options.parse_as_flags(flags, options)
    flags.no_compile = True
    count = function.__code__.co_argcount
    # The collector took a tenth of the time: numba keeps what it makes.
    with global_compiler_lock, target_override(NAME), collector_paused():
        library = TARGET.target_context.codegen().create_library(function.__name__)
        library.is_kernel = True
        result = compile_extra(
            TARGET.typing_context,
            TARGET.target_context,
            function,
            (types.int64,) * count,
            types.int64,
            flags,
            {},
            library,
            KernelCompiler,
        )
        library.add_linking_library(_arrays())  # the last one: it is asked for what still lacks
        library.finalize()
        _require_known(library)
        yield library, result.fndesc.llvm_func_name


@cache
def _arrays() -> KernelLibrary:
    library = TARGET.target_context.codegen().create_library("arrays")
    library.add_llvm_module(llvm.parse_assembly(_ARRAYS))
    return library


def _require_known(library: KernelLibrary) -> None:
    """Raise AssertionError for an unknown symbol: linking it would end the process."""
    process = ctypes.CDLL(None)
    for function in library._final_module.functions:
        if function.is_declaration and not function.name.startswith("llvm."):
            assert hasattr(process, function.name), f"a kernel calls `{function.name}`"
