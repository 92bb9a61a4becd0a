"""Faults are survived: a few of each kind here, thousands in `make fuzz`; and flaws are found."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fuzz_faults
import soak
from fuzzing import fault_writers
from fuzzing.cache_damage import damage
from fuzzing.patience import Patience

TOOL = Path(fuzz_faults.__file__)
COUNTS = {"kill": 20, "full-disk": 20, "damaged": 1, "threads": 4, "fork": 10}


@pytest.mark.exhaustive
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
    def wrong(dice: random.Random, folder: Path) -> str:
        raise AssertionError("a torn file")

    monkeypatch.setattr(fuzz_faults, "FAULTS", {"kill": wrong})
    assert fuzz_faults.main(["kill", "--count", "2", "--seed", "1"]) == 1
    out = capsys.readouterr().out
    assert "AssertionError: a torn file" in out
    assert "kill         2 flaw" in out


def damaged(folder: Path, seed: int) -> str:
    for name in ("a/x", "a/y", "b/z"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(name.encode() * 100)
    return damage(random.Random(seed), folder)


@pytest.mark.parametrize("seed", range(8))
def test_damage_changes_a_cache(tmp_path: Path, seed: int):
    assert damaged(tmp_path, seed) != "nothing"


def test_a_second_damage_meets_what_the_first_one_left(tmp_path: Path):
    said = [damaged(tmp_path / str(seed), seed) for seed in range(100)]
    assert sum(what == "nothing" for what in said) < 20  # contents that were dealt as they were
    assert any("," in what for what in said)


def test_a_child_that_gets_no_time_hangs_and_a_slow_one_does_not():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as asleep:
        waiting = Patience(asleep.pid, 0.3)
        while not waiting.is_over():
            time.sleep(0.05)
        busy = Patience(os.getpid(), 1e9)
        for _ in range(3):
            sum(range(100_000))
            assert not busy.is_over()
        assert Patience(os.getpid(), 0.001).is_over()  # more than that of CPU time
        asleep.kill()


def test_a_soak_tells_what_grows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    kept: list[mmap.mmap] = []

    def grow() -> None:  # not by what an allocator may have kept of earlier tests
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(os.urandom(1 << 20))

    turns = {
        "load": lambda dice: grow,
        "generate": lambda dice: list,
    }
    monkeypatch.setattr(soak, "KINDS", turns)
    assert soak.main(["--load", "40", "--generate", "40"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if "turns" in line] == [
        "load      40 turns, grew",
        "generate  40 turns, flat",
    ]


@pytest.mark.parametrize("name", fault_writers.WRITERS)
def test_writers_say_which_content_is_there(tmp_path: Path, name: str):
    writer = fault_writers.WRITERS[name]
    assert writer.read(tmp_path) is None
    for number in (0, 1) if name != "program" else (1,):
        writer.write(tmp_path, number)
        assert writer.read(tmp_path) == number
