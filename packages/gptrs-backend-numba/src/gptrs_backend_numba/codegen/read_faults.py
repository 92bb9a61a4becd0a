"""A signal handler for reads of mapped files that were cut: see `gptrs.backend.mapped_files`."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import platform
import signal
from functools import cache
from typing import TYPE_CHECKING

from gptrs.backend.mapped_files import COUNT, EVER, FIRST, MAPPED_FILES, NEW, RUNNING, SLOT_WORDS
from gptrs.lazy_module import lazy_module
from gptrs_backend_numba.codegen.compiled import link_stored
from gptrs_backend_numba.codegen.machine_code import MachineCode

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = lazy_module("llvmlite.binding")

_NAME = "gptrs_read_fault"
_FIXED_ANONYMOUS = 2 | 16 | 32
"""Linux's `MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS`."""
_SIGINFO_ON_STACK = 4 | 0x08000000
"""Linux's flags `SA_SIGINFO | SA_ONSTACK`."""

_HANDLER = f"""
@table = internal global ptr null
@former = internal global ptr null
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, ptr, ptr)

define void @{_NAME}(i32 %signal, ptr %info, ptr %context) {{
start:
  %is_setup = icmp eq i32 %signal, 0
  br i1 %is_setup, label %setup, label %fault
setup:
  store ptr %info, ptr @table
  store ptr %context, ptr @former
  ret void
fault:
  %words = load ptr, ptr @table
  %address_at = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %address_at
  %running_at = getelementptr i64, ptr %words, i64 {RUNNING}
  %running = load atomic i64, ptr %running_at seq_cst, align 8
  %is_running = icmp ne i64 %running, 0
  %count_at = getelementptr i64, ptr %words, i64 {COUNT}
  %count = load atomic i64, ptr %count_at seq_cst, align 8
  br i1 %is_running, label %next, label %other
next:
  %slot = phi i64 [ 0, %fault ], [ %following, %step ]
  %is_slot = icmp slt i64 %slot, %count
  br i1 %is_slot, label %look, label %other
look:
  %words_before = mul i64 %slot, {SLOT_WORDS}
  %offset = add i64 %words_before, {FIRST}
  %begin_at = getelementptr i64, ptr %words, i64 %offset
  %end_at = getelementptr i64, ptr %begin_at, i64 1
  %begin = load atomic i64, ptr %begin_at seq_cst, align 8
  %end = load atomic i64, ptr %end_at seq_cst, align 8
  %from = icmp uge i64 %address, %begin
  %to = icmp ult i64 %address, %end
  %inside = and i1 %from, %to
  br i1 %inside, label %replace, label %step
step:
  %following = add i64 %slot, 1
  br label %next
replace:
  %page = and i64 %address, {-mmap.PAGESIZE}
  %length = sub i64 %end, %page
  %page_pointer = inttoptr i64 %page to ptr
  %got = call ptr @mmap(
    ptr %page_pointer, i64 %length, i32 1, i32 {_FIXED_ANONYMOUS}, i32 -1, i64 0)
  %got_number = ptrtoint ptr %got to i64
  %is_replaced = icmp eq i64 %got_number, %page
  br i1 %is_replaced, label %note, label %other
note:
  %faults_at = getelementptr i64, ptr %begin_at, i64 2
  %new_at = getelementptr i64, ptr %words, i64 {NEW}
  %ever_at = getelementptr i64, ptr %words, i64 {EVER}
  %old_faults = atomicrmw add ptr %faults_at, i64 1 seq_cst
  %old_new = atomicrmw add ptr %new_at, i64 1 seq_cst
  %old_ever = atomicrmw add ptr %ever_at, i64 1 seq_cst
  ret void
other:
  %action = load ptr, ptr @former
  %done = call i32 @sigaction(i32 {int(signal.SIGBUS)}, ptr %action, ptr null)
  ret void
}}
"""
"""The handler; with the signal 0 it takes the address of the table, and of the former action.

Past the first page that is gone no page of the file is left, so that one fault replaces them all.
Any other fault goes to the former action, when the instruction is repeated.
"""


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries on x86-64 and aarch64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_FORMER = _Action()


@cache
def handle_read_faults() -> None:
    """Install the handler, once in a process; nothing happens where it is not known how."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return
    digest = hashlib.blake2b(_HANDLER.encode()).hexdigest()
    _install(link_stored(_NAME, digest, _code).address)


def _install(address: int) -> None:
    convention = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    convention(address)(0, MAPPED_FILES.address, ctypes.addressof(_FORMER))
    action = _Action(handler=address, flags=_SIGINFO_ON_STACK)
    ctypes.CDLL(None).sigaction(int(signal.SIGBUS), ctypes.byref(action), ctypes.byref(_FORMER))


def _code() -> MachineCode:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return MachineCode.of_object(_NAME, 3, machine.emit_object(llvm.parse_assembly(_HANDLER)))
