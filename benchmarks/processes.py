"""Measures whole runs of `gptrs generate` from outside: time to the first token, and memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gptrs_backend_numba.codegen.kernel_pack import kernel_pack
from gptrs_observe.measure.step_work import Row

_PROMPT = ",".join(["7"] * 32)
_DECODED = 64
_LAST = 8
"""Tokens left to make when the memory is read."""


@dataclass(frozen=True)
class Memory:
    """What a process holds now, and the most that it has held, in MB of 10^6 bytes."""

    resident: float
    peak: float


@dataclass(frozen=True)
class Run:
    """Seconds from the start of a process to its first token, and its memory while it decodes.

    The memory is None where the system has no /proc, or when the process was too quick.
    """

    first_token_s: float
    memory: Memory | None


def process_rows(model: Path, threads: int, rounds: int) -> list[Row]:
    """First token with empty and with warm caches; memory while text is made, and at most.

    A pack of kernels, see `make kernels`, has a row of its own where this process would use one.
    """
    installed: list[float] = []
    with tempfile.TemporaryDirectory() as cache:
        cold = _generate(model, threads, 2, cache, GPTRS_NUMBA_PACK="0")
        first = [_generate(model, threads, 1, cache).first_token_s for _ in range(rounds)]
        for _ in range(rounds if kernel_pack() is not None else 0):
            with tempfile.TemporaryDirectory() as empty:
                made = _generate(model, threads, 1, cache, GPTRS_CACHE_DIR=empty)
            installed.append(made.first_token_s)
        memory = _generate(model, threads, _DECODED, cache).memory
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e6
    rows = [
        Row("first run ever, empty cache, to first token", threads, cold.first_token_s, "s"),
        Row("process start to first token, warm", threads, statistics.median(first), "s"),
        Row("weights on disk", threads, weights, "MB"),
    ]
    if installed:
        took = statistics.median(installed)
        rows.insert(1, Row("first run, kernels installed, to first token", threads, took, "s"))
    if memory is not None:
        rows.append(Row("resident memory in decode", threads, memory.resident, "MB"))
        rows.append(Row("most resident memory until then", threads, memory.peak, "MB"))
    return rows


def _generate(model: Path, threads: int, tokens: int, cache: str, **variables: str) -> Run:
    command = [sys.executable, "-m", "gptrs_cli", "generate", "--greedy", "--ignore-eos"]
    command += ["--model", str(model), "--prompt-ids", _PROMPT]
    command += ["--threads", str(threads), "--max-tokens", str(tokens)]
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, env=_environment(cache) | variables
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            first = time.perf_counter() - started
            memory = _memory_near_end(process.pid, process.stdout, tokens)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}\n{said.read().decode()}")
    return Run(first, memory)


def _environment(cache: str) -> dict[str, str]:
    """With caches of its own: kernels, and the bytecode of modules, which belongs to warm ones."""
    given = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**given, "GPTRS_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": str(Path(cache) / "python")}


def _memory_near_end(process: int, output: BinaryIO, tokens: int) -> Memory | None:
    """Read all that a process prints, a word a token; its memory just before the last ones."""
    printed, memory = 0, None
    while piece := os.read(output.fileno(), 1 << 16):
        printed += piece.count(b" ")
        if memory is None and printed >= tokens - _LAST:
            memory = memory_of(process)
    return memory


def memory_of(process: int) -> Memory | None:
    """The memory of a running process; None where /proc does not tell.

    Not what `wait4` says: that is never less than the parent had when it started the process.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    if not {"VmRSS", "VmHWM"} <= fields.keys():  # it has ended
        return None
    resident, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return Memory(resident, peak)
