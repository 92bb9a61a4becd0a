"""Mutated files of every format: read as they say or refused, in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing import file_judge
from fuzzing.file_formats import FORMATS, FileFormat
from fuzzing.file_judge import Watch, judge
from fuzzing.input_formats import OTHER_FORMATS
from fuzzing.judge import Flaw
from gptrs.errors import CheckpointError
from gptrs_conformance.program_generator.dice import Dice

SLOW = {"chat-template": 50}
"""As in the tool: each of these has a process that renders it."""
TOOL = Path(file_judge.__file__).parents[1] / "fuzz_files.py"
GROUPS = {
    "GGUF": (1000, ["gguf"]),
    "weights": (400, ["safetensors", "shard-index", "gptrschk", "gptrsten"]),
    "settings": (150, ["config", "tokenizer"]),
    "others": (250, list(OTHER_FORMATS)),
}
"""How many of each format; all of them take some 10 s of CPU."""


def test_every_format_has_a_short_run() -> None:
    named = [name for _, names in GROUPS.values() for name in names]
    assert sorted(named) == sorted({**FORMATS, **OTHER_FORMATS})


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_mutated_files(tmp_path: Path, group: str) -> None:
    """In a process of its own, so that a death by a signal is a failure of one test."""
    total, names = GROUPS[group]
    command = [sys.executable, str(TOOL), *names, "--count", str(total), "--seed", "20240",
               "--out", str(tmp_path / "failures")]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, (run.stdout, run.stderr)
    summaries = {line.split()[0]: line for line in run.stdout.splitlines() if "at most" in line}
    assert summaries.keys() == set(names)
    for name, line in summaries.items():
        found = [part.split() for part in line.split(", in ")[0].removeprefix(name).split(",")]
        counts = {outcome: int(number) for number, outcome in found}
        assert sum(counts.values()) == total // SLOW.get(name, 1)
        assert counts["read"] > total // SLOW.get(name, 1) // 40, "some files should stay sound"
        assert counts["refused"] > total // SLOW.get(name, 1) // 4


def _format(read) -> FileFormat:
    return FileFormat("x", lambda folder, backend: [b""], lambda dice, data, other: data, read)


def _other_error(path: Path, dice: Dice) -> None:
    raise KeyError("x")


def _open_outside(path: Path, dice: Dice) -> None:
    (path.parent.parent / "secret").read_bytes()


def _open_outside_and_refuse(path: Path, dice: Dice) -> None:
    _open_outside(path, dice)
    raise CheckpointError("damaged")


def _endless_message(path: Path, dice: Dice) -> None:
    raise CheckpointError("x" * 5000)


def _start_a_program(path: Path, dice: Dice) -> None:
    subprocess.run(["true"], check=True)


def _never_end(path: Path, dice: Dice) -> None:
    while True:
        pass


FLAWS = {
    _other_error: (KeyError, "x"),
    _open_outside: (Flaw, "outside of the folder: open .*secret"),
    _open_outside_and_refuse: (Flaw, "outside of the folder: open .*secret"),
    _endless_message: (Flaw, "a message of 5000 characters"),
    _start_a_program: (Flaw, "outside of the folder: subprocess.Popen"),
    _never_end: (Flaw, "reading took more than"),
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watch]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "secret").write_bytes(b"")
    (folder / "model").mkdir()
    return folder / "model", Watch(folder / "model")


@pytest.mark.parametrize("read", FLAWS, ids=lambda read: read.__name__)
def test_what_is_not_handled_well_is_found(watched, monkeypatch, read) -> None:
    monkeypatch.setattr(file_judge, "SECONDS", 0.2)
    folder, watch = watched
    error, message = FLAWS[read]
    with pytest.raises(error, match=message):
        judge(_format(read), folder / "x", Dice(0), watch)


def test_what_is_handled_well_is_not(watched) -> None:
    folder, watch = watched
    (folder / "x").write_bytes(b"")

    def refuse(path: Path, dice: Dice) -> None:
        path.read_bytes()
        raise CheckpointError("damaged")

    assert judge(_format(refuse), folder / "x", Dice(0), watch) == "refused"
    assert judge(_format(lambda path, dice: None), folder / "x", Dice(0), watch) == "read"
