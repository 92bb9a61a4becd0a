"""Intrinsics of the processor and of the system for threads: atomic words and waiting."""

from __future__ import annotations

import platform

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_LINUX = platform.machine() if platform.system() == "Linux" else ""
"""The kind of machine under Linux, whose calls have these numbers."""
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(_LINUX)
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
        if platform.machine() == "x86_64":
            call_llvm(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
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
        if _FUTEX is None:
            waits = builder.icmp_signed("==", arguments[1], ir.Constant(_I64, FUTEX_WAIT))
            with builder.if_then(waits):
                call_llvm(builder, "usleep", _I32, [ir.Constant(_I32, _NAP_US)])
            return context.get_dummy_value()
        zero = ir.Constant(_I64, 0)
        numbers = [ir.Constant(_I64, _FUTEX), *arguments, zero, zero, zero]
        call_llvm(builder, "syscall", _I64, numbers)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate
