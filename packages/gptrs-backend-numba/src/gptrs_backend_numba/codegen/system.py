"""Intrinsics of the processor and of the system for threads: atomic words and waiting."""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_PAUSE, _FUTEX = "gptrs_pause", "gptrs_futex"
"""Functions of `system_functions`, which is linked into kernels for one machine or another."""
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
"""Linux's numbers of the call."""
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
"""The hints to a processor that it runs a waiting loop: `pause`, and `yield`."""
FUTEX_WAIT, FUTEX_WAKE = 128, 129
_NAP_US = 200
"""How long an idle worker sleeps where it cannot be woken; 4 to 9 % of a processor are lost."""


def _pointer(builder, address):
    return builder.inttoptr(address, ir.PointerType(_I64))


@intrinsic
def atomic_load(typing_context, address):
    """Return the int64 at `address`, in the one order that all threads see."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(builder, arguments[0]), "seq_cst", 8, typ=_I64)

    return types.int64(types.int64), generate


@intrinsic
def atomic_store(typing_context, address, value):
    """Store `value` as the int64 at `address`."""

    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[1], _pointer(builder, arguments[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def atomic_add(typing_context, address, value):
    """Add to the int64 at `address`; what was there before."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, arguments[0])
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def exchange_if(typing_context, address, expected, value):
    """Store `value` if `expected` is there; whether it was."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, arguments[0])
        pair = builder.cmpxchg(pointer, arguments[1], arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def pause(typing_context):
    """Tell the processor that this is a waiting loop."""

    def generate(context, builder, signature, arguments):
        call_llvm(builder, _PAUSE, ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing_context):
    """Let the operating system run somebody else on this processor."""

    def generate(context, builder, signature, arguments):
        call_llvm(builder, "sched_yield", _I32, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def futex(typing_context, address, operation, value):
    """Sleep while the 32 bits at `address` are `value`, or wake `value` sleepers.

    Systems other than Linux have no such call: a waiter sleeps for a moment, then looks again.
    """

    def generate(context, builder, signature, arguments):
        call_llvm(builder, _FUTEX, ir.VoidType(), arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def system_functions(machine: str, system: str) -> str:
    """Return the LLVM code of what `pause` and `futex` do on a machine and a system."""
    declaration, pause_ = _PAUSES.get(machine, ("", ""))
    number = _FUTEX_NUMBERS.get(machine) if system == "Linux" else None
    if number is None:
        sleep = f"""
  %waits = icmp eq i64 %operation, {FUTEX_WAIT}
  br i1 %waits, label %nap, label %end
nap:
  %slept = call i32 @usleep(i32 {_NAP_US})
  br label %end
end:"""
    else:
        sleep = f"""
  %done = call i64 (i64, ...) @syscall(
    i64 {number}, i64 %address, i64 %operation, i64 %value, i64 0, i64 0, i64 0)"""
    return f"""
{declaration}
declare i32 @usleep(i32)
declare i64 @syscall(i64, ...)

define void @{_PAUSE}() alwaysinline {{
  {pause_}
  ret void
}}

define void @{_FUTEX}(i64 %address, i64 %operation, i64 %value) alwaysinline {{{sleep}
  ret void
}}
"""
