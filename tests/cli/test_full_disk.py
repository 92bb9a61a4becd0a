"""A disk that takes no whole file: commands that write one say so, and leave nothing behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Run

LIMIT = 700
"""Bytes of a file, less than any of these commands writes."""
LITTLE = 10
"""Less than what marks a folder as a dump."""
PROGRAM = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}\n"
COMMANDS = (
    "convert {model} {out}.gptrschk",
    "quantize demo {out}.gguf --type q8",
    "trace --model {model} --tokens 1,2 --out {out}.safetensors",
    "forward --model {model} --tokens 1,2 --profile-out {out}",
    "inspect {program} --svg {out}.svg",
)


def limit_files(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def run_limited(words: list[str], most: int) -> subprocess.CompletedProcess[str]:
    """Run the command with files of `most` bytes at most."""
    return subprocess.run(
        [sys.executable, "-m", "gptrs_cli", *words],
        capture_output=True,
        text=True,
        preexec_fn=lambda: limit_files(most),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python's own files would be torn
        timeout=120,
    )


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="no limit of files there")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_said(tmp_path: Path, model_directory: Path, command: str):
    program = tmp_path / "x.ptir"
    program.write_text(PROGRAM, encoding="utf-8")
    words = command.format(model=model_directory, program=program, out=tmp_path / "out")
    done = run_limited(words.split(), LIMIT)
    assert done.returncode in (1, 2, 3), done
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "File too large" in line
    assert not list(tmp_path.rglob("out*"))


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="no limit of files there")
@pytest.mark.parametrize("most", [LITTLE, 60, 300, LIMIT])
def test_a_dump_has_whole_files_only(tmp_path: Path, most: int):
    (tmp_path / "x.ptir").write_text(PROGRAM, encoding="utf-8")
    out = tmp_path / "out"
    words = f"run {tmp_path}/x.ptir --random-seed 0 --backend ref --dump-dir {out}"
    done = run_limited(words.split(), most)
    assert (done.returncode, "cannot write the dump" in done.stderr) == (3, True), done
    assert "File too large" in done.stderr
    for path in out.rglob("*"):
        assert not path.is_file() or path.read_bytes().endswith(b"\n"), path
        assert not path.is_dir() or any(path.iterdir()), path
    assert out.exists() == (most > LITTLE)


def test_a_profile_of_nothing_leaves_no_folder(tmp_path: Path, gptrs: Run):
    out = tmp_path / "new" / "out"
    assert gptrs("forward", "--model", "/nowhere", "--profile-out", str(out)).code == 3
    assert not list(tmp_path.iterdir())
    out.mkdir(parents=True)
    assert gptrs("forward", "--model", "/nowhere", "--profile-out", str(out)).code == 3
    assert out.is_dir()


def test_unbuffered_output_keeps_nothing_back():
    code = (
        "import sys\nfrom gptrs_cli.terminal.streams import make_stdout_reliable\n"
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
