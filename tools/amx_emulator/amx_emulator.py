"""A plugin of pytest: kernels call an emulator where they would use AMX.

    cc -O2 -shared -fPIC -o DIR/instructions.so tools/amx_emulator/instructions.c -lm
    PYTHONPATH=tools/amx_emulator AMX_EMULATOR=DIR/instructions.so GPTRS_CACHE_DIR=DIR/cache \
        pytest -n 0 -p amx_emulator ...

Kernels hold addresses of this process: the cache must be a new one, and only one process may
compile. `run_paths.py --emulate` does all of that.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib import import_module

import pytest
from llvmlite import ir

from gptrs_backend_numba.codegen import machine

LIBRARY = "AMX_EMULATOR"
"""The variable with the path of the compiled `instructions.c`."""
_FUNCTIONS = {
    "llvm.x86.ldtilecfg": "emulated_ldtilecfg",
    "llvm.x86.tilerelease": "emulated_tilerelease",
    "llvm.x86.tilezero": "emulated_tilezero",
    "llvm.x86.tileloadd64": "emulated_tileload",
    "llvm.x86.tileloaddt164": "emulated_tileload",
    "llvm.x86.tilestored64": "emulated_tilestore",
    "llvm.x86.tdpbf16ps": "emulated_tdpbf16ps",
    "llvm.x86.tdpbssd": "emulated_tdpbssd",
    "llvm.x86.tdpbusd": "emulated_tdpbusd",
}

_library = ctypes.CDLL(os.environ[LIBRARY])
_addresses = {
    name: ctypes.cast(getattr(_library, function), ctypes.c_void_p).value
    for name, function in _FUNCTIONS.items()
}
_emitted: set[str] = set()
_call_llvm = machine.call_llvm


def _call_emulated(
    builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Sequence[ir.Value]
) -> ir.Value:
    """Do what `call_llvm` does, but call the emulator for an instruction of AMX."""
    if name not in _addresses:
        if name.startswith(("llvm.x86.tile", "llvm.x86.tdp", "llvm.x86.ldtile")):
            raise NotImplementedError(f"the emulator of AMX has no `{name}`")
        return _call_llvm(builder, name, result, arguments)
    _emitted.add(name)
    kind = ir.FunctionType(result, [argument.type for argument in arguments]).as_pointer()
    address = ir.Constant(ir.IntType(64), _addresses[name])
    return builder.call(builder.inttoptr(address, kind), arguments)


machine.call_llvm = _call_emulated
# Not before: what emits kernels takes `call_llvm` when it is imported.
import_module("gptrs_backend_numba.lowering.amx_matmul").is_there = lambda: True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that has emulated nothing: its tests did not take the path."""
    if session.testscollected and not _emitted and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which instructions were emulated."""
    terminalreporter.write_line(f"emulated: {', '.join(sorted(_emitted)) or 'nothing'}")
