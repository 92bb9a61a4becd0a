"""Faults are survived: a few of each kind here, thousands in `make fuzz`; and flaws are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fuzz_faults
from fuzzing import fault_writers
from fuzzing.fault_writers import Writer

TOOL = Path(fuzz_faults.__file__)
COUNTS = {"kill": 5, "full-disk": 5, "swapped": 1, "threads": 10, "fork": 20}


@pytest.mark.slow
@pytest.mark.parametrize("fault", COUNTS)
def test_faults_are_survived(fault: str):
    command = [sys.executable, str(TOOL), fault, "--count", str(COUNTS[fault]), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (line for line in done.stdout.splitlines() if line.startswith(fault))
    assert "flaw" not in summary


def test_every_fault_has_a_short_run():
    assert COUNTS.keys() == fuzz_faults.FAULTS.keys()


def test_a_flaw_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def torn(folder: Path, number: int) -> None:
        (folder / "x").write_bytes(bytes([number]) * 10 + b"?")

    def read(folder: Path) -> int | None:
        raise AssertionError("a torn file")

    monkeypatch.setattr(fuzz_faults, "WRITERS", {"npz": Writer(torn, read)})
    assert fuzz_faults.main(["full-disk", "--count", "1", "--seed", "1"]) == 1
    assert "full-disk    1 flaw" in capsys.readouterr().out


@pytest.mark.parametrize("name", fault_writers.WRITERS)
def test_writers_say_which_content_is_there(tmp_path: Path, name: str):
    writer = fault_writers.WRITERS[name]
    assert writer.read(tmp_path) is None
    for number in (0, 1) if name != "program" else (1,):
        writer.write(tmp_path, number)
        assert writer.read(tmp_path) == number
