"""The compilation of kernels by numba; imported when the first kernel is in no store."""

from __future__ import annotations

import ctypes
import platform
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
from gptrs_backend_numba.codegen.processor import this_machine
from gptrs_backend_numba.codegen.system import system_functions
from gptrs_backend_numba.codegen.targets import Target, chosen_target

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
    """Compile a function that takes and returns int64s, for this process."""
    count = function.__code__.co_argcount
    with _whole_kernel(function, fastmath, None) as (library, name):
        return MachineCode.of_object(name, count, library.object_file())


def target_code(function: FunctionType, fastmath: tuple[str, ...]) -> MachineCode:
    """Do what `machine_code` does, for processes on the target of this one."""
    target = chosen_target()
    machine = None if target is None else _machine_of(target, shared=False)
    count = function.__code__.co_argcount
    with _whole_kernel(function, fastmath, machine) as (library, name):
        return MachineCode.of_object(name, count, library.object_file())


def shared_object(function: FunctionType, fastmath: tuple[str, ...]) -> tuple[str, bytes]:
    """Return the name of a function and its object file, as shared libraries take it.

    It is for the target of this process. The code model and relocations differ from `machine_code`,
    the instructions that compute do not.
    """
    target = chosen_target()
    machine = None if target is None else _machine_of(target, shared=True)
    with _whole_kernel(function, fastmath, machine) as (library, name):
        module = library._final_module
        for each in (*module.functions, *module.global_variables):
            # Several kernels define the same helpers; a library has each kernel once.
            if not each.is_declaration and each.name != name:
                each.linkage = "internal"
        if target is not None:  # a library may have the kernel for several targets
            module.get_function(name).name = f"{name}_{target.name}"
            name = f"{name}_{target.name}"
        return name, (machine or _sharing()).emit_object(module)


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


@cache
def _machine_of(target: Target, *, shared: bool) -> llvm.TargetMachine:
    """Return LLVM's machine for a target: for shared libraries, or to be linked by `Linker`."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.listed,
        opt=config.OPT,
        reloc="pic" if shared else "static",
        codemodel="default" if shared else "jitdefault",
        jit=not shared,
    )


@contextmanager
def _whole_kernel(
    function: FunctionType, fastmath: tuple[str, ...], machine: llvm.TargetMachine | None
) -> Generator[tuple[KernelLibrary, str]]:
    """Scope with the library of a compiled function, whose module has all of its LLVM code.

    `machine` is what it is compiled for, None: this process.
    """
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
        library.is_kernel, library.machine = True, machine
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
        # The last one: it is asked for what still lacks.
        library.add_linking_library(_runtime(this_machine() if machine is None else machine.triple))
        library.finalize()
        _require_known(library)
        yield library, result.fndesc.llvm_func_name


@cache
def _runtime(triple: str) -> KernelLibrary:
    """Return memory for arrays, and what threads call of the system that a triple names."""
    machine = triple.partition("-")[0]
    system = platform.system() if machine == triple else "Linux"
    library = TARGET.target_context.codegen().create_library(f"runtime {triple}")
    # Passes over functions would ask the processor of this process for pieces of another one's.
    text = _ARRAYS + system_functions(machine, system)
    library._final_module.link_in(llvm.parse_assembly(text))
    return library


def _require_known(library: KernelLibrary) -> None:
    """Raise AssertionError for an unknown symbol: linking it would end the process."""
    process = ctypes.CDLL(None)
    for function in library._final_module.functions:
        if function.is_declaration and not function.name.startswith("llvm."):
            assert hasattr(process, function.name), f"a kernel calls `{function.name}`"
