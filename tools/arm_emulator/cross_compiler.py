"""Compiles kernels for the target that `GPTRS_NUMBA_TARGET` names, for `arm_emulator`."""

from __future__ import annotations

import json
import struct
import sys

from gptrs_backend_numba.codegen import numba_compiler
from gptrs_backend_numba.codegen.compiled import WantedKernel, entry_of, kernel_store
from gptrs_backend_numba.compiling.workers import kernel_of

_LENGTH = struct.Struct("<q")


def main() -> None:
    """Answer each line of standard input with machine code, until it ends."""
    for line in sys.stdin.buffer:
        source, fastmath = json.loads(line)
        try:
            body, sign = _code(WantedKernel(kernel_of(source), tuple(fastmath))), 1
        except Exception as error:
            body, sign = f"{type(error).__name__}: {error}".encode(), -1
        sys.stdout.buffer.write(_LENGTH.pack(sign * len(body)) + body)
        sys.stdout.buffer.flush()


def _code(wanted: WantedKernel) -> bytes:
    store, entry = kernel_store(), entry_of(f"for the target\n{wanted.key}")
    body = store.load(entry)
    if body is None:
        code = numba_compiler.target_code(wanted.function(), wanted.fastmath)
        body = code.encoded()
        store.save(entry, body)
    return body


if __name__ == "__main__":
    main()
