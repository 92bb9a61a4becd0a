"""Measures whole runs of `gptrs generate`: from the start of the process, and its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gptrs.runtime.bench import Row

_PROMPT = ",".join(["7"] * 32)


@dataclass(frozen=True)
class Run:
    """Seconds from start to end of a process, and the most memory that it had, in MB."""

    seconds: float
    megabytes: float


def process_rows(model: Path, threads: int, rounds: int) -> list[Row]:
    """First run with an empty cache, first token with warm caches, memory while text is made."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _generate(model, threads, 2, cache)
        first = [_generate(model, threads, 1, cache).seconds for _ in range(rounds)]
        many = _generate(model, threads, 64, cache)
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e6
    return [
        Row("first run ever, empty cache", threads, cold.seconds, "s"),
        Row("process start to first token, warm", threads, sorted(first)[len(first) // 2], "s"),
        Row("resident memory in decode", threads, many.megabytes, "MB"),
        Row("weights on disk", threads, weights, "MB"),
    ]


def _generate(model: Path, threads: int, tokens: int, cache: str) -> Run:
    command = [sys.executable, "-m", "gptrs_cli", "generate", "--greedy", "--ignore-eos"]
    command += ["--model", str(model), "--prompt-ids", _PROMPT]
    command += ["--threads", str(threads), "--max-tokens", str(tokens)]
    environment = {**os.environ, "GPTRS_CACHE_DIR": cache}
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{said.decode()}")
    return Run(seconds, usage.ru_maxrss / 1000)
