"""A plugin of pytest for Python of aarch64 under qemu: another process compiles the kernels.

    PYTHONPATH=tools/arm_emulator ARM_COMPILER="PYTHON tools/arm_emulator/cross_compiler.py" \
        qemu-aarch64 ... python3 -m pytest -n 0 -p arm_emulator ...

LLVM takes twenty times as long under emulation. `run_paths.py` does all of that.
"""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess

from gptrs_backend_numba.codegen import compiled
from gptrs_backend_numba.codegen.compiled import WantedKernel
from gptrs_backend_numba.codegen.machine_code import Kernel, decode
from gptrs_backend_numba.compiling.workers import spec_of

COMMAND = "ARM_COMPILER"
"""The variable with the command that starts the compiler, a program of this machine."""
LENGTH = struct.Struct("<q")
"""Before each answer: its bytes; below 0, those of what went wrong."""
_OURS = ("PYTHONHOME", "PYTHONPATH", "PYTHONPYCACHEPREFIX")
_made = compiled._made


def _compiler() -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    given = {name.removeprefix("HOST_"): value for name, value in kept.items()}
    command = shlex.split(os.environ[COMMAND])
    return subprocess.Popen(command, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


_RUNNING = _compiler()


def _made_elsewhere(wanted: WantedKernel) -> Kernel:
    """Return a kernel that the other process has compiled; here if it cannot be named to it."""
    try:
        spec = [spec_of(wanted.source), wanted.fastmath]
    except TypeError:
        return _made(wanted)
    assert _RUNNING.stdin is not None
    assert _RUNNING.stdout is not None
    _RUNNING.stdin.write(json.dumps(spec).encode() + b"\n")
    _RUNNING.stdin.flush()
    (length,) = LENGTH.unpack(_RUNNING.stdout.read(LENGTH.size))
    body = _RUNNING.stdout.read(abs(length))
    if length < 0:
        raise RuntimeError(body.decode())
    compiled.LISTENERS.kernel()
    return compiled._LINKER.link(decode(body, wanted.function_name))


compiled._made = _made_elsewhere
