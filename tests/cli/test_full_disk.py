"""A disk that takes no whole file: commands that write one say so, and leave nothing behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 700
"""Bytes of a file, less than any of these commands writes."""
PROGRAM = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}\n"
COMMANDS = (
    "convert {model} {out}.gptrschk",
    "quantize demo {out}.gguf --type q8",
    "trace --model {model} --tokens 1,2 --out {out}.safetensors",
    "forward --model {model} --tokens 1,2 --profile-out {out}",
    "inspect {program} --svg {out}.svg",
)


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of files there")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_said(tmp_path: Path, model_directory: Path, command: str):
    program = tmp_path / "x.ptir"
    program.write_text(PROGRAM, encoding="utf-8")
    words = command.format(model=model_directory, program=program, out=tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", "gptrs_cli", *words.split()],
        capture_output=True,
        text=True,
        preexec_fn=limit_files,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python's own files would be torn
        timeout=120,
    )
    assert done.returncode in (1, 2, 3), done
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "File too large" in line
    left = [path for path in tmp_path.rglob("out*") if path.is_file()]
    assert [path.name for path in left] == []


def test_unbuffered_output_keeps_nothing_back():
    code = (
        "import sys\nfrom gptrs_cli.terminal.stdout import make_stdout_reliable\n"
        "make_stdout_reliable()\nprint('result')\nprint('note', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        timeout=60,
        check=True,
    )
    assert done.stdout == "result\nnote\n"
