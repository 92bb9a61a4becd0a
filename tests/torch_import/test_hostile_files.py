"""Mutated `.pt2` and `.onnx` files: a one-line error of ours, or a result; nothing is unpickled."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")
pytest.importorskip("onnx", reason="these tests read ONNX models")

import gptrs_torch  # noqa: E402
from fuzzing import file_judge  # noqa: E402
from fuzzing.file_judge import Watch, judge  # noqa: E402
from fuzzing.import_formats import import_formats  # noqa: E402
from gptrs import get_backend  # noqa: E402
from gptrs.errors import UnsupportedError  # noqa: E402
from gptrs_conformance.program_generator.dice import Dice  # noqa: E402

pytestmark = pytest.mark.long
TOOL = Path(file_judge.__file__).parents[1] / "fuzz_files.py"
COUNTS = {"onnx": (800, 10), "pt2": (200, 50)}
"""How many files, and how many times fewer than `--count` the tool makes: torch reads slowly."""


@pytest.mark.parametrize("name", COUNTS)
def test_mutated_files(tmp_path: Path, name: str) -> None:
    """In a process of its own; the tool also fails for a program started, a file opened outside."""
    count, fewer = COUNTS[name]
    command = [sys.executable, str(TOOL), name, "--count", str(count * fewer), "--seed", "2026",
               "--out", str(tmp_path / "failures")]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, (run.stdout, run.stderr)
    assert not run.stderr, "torch logs nothing about what it refuses"
    (line,) = [line for line in run.stdout.splitlines() if line.startswith(name)]
    found = [part.split() for part in line.split(", in ")[0].removeprefix(name).split(",")]
    counts = {outcome: int(number) for number, outcome in found}
    assert counts.keys() == {"read", "refused"}
    assert sum(counts.values()) == count
    assert counts["read"] > count // 40, "some files should stay sound"


class Unpickled(BaseException):
    """What no handler of a reader takes for a damaged file."""


def unpickle(*args: object, **kwargs: object) -> NoReturn:
    raise Unpickled


class Opens:
    """What unpickling would do."""

    def __reduce__(self) -> Any:
        return (open, ("/proc/version",))


def with_pickles(data: bytes) -> bytes:
    """Return an archive whose sample inputs and weights are pickles, and say so."""
    stream, made = io.BytesIO(), io.BytesIO()
    torch.save(Opens(), stream)
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.namelist():
            text = old.read(entry)
            pickled = "sample_inputs" in entry or "/weight_" in entry
            changed = text.replace(b'"use_pickle": false', b'"use_pickle": true')
            new.writestr(entry, stream.getvalue() if pickled else changed)
    return made.getvalue()


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form, watch = import_formats(["pt2"])["pt2"], Watch(tmp_path)
    contents = form.prepare(tmp_path, get_backend("ref"))
    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, unpickle)
    with pytest.raises(Unpickled):
        torch.load(tmp_path / "sound.pt2")
    path = tmp_path / form.name
    path.write_bytes(with_pickles(contents[0]))
    with pytest.raises(UnsupportedError, match="is pickled, which can run any code"):
        gptrs_torch.load(path, "ref")
    for number in range(60):
        dice = Dice(number)
        data = dice.pick(contents)
        path.write_bytes(form.mutate(dice, with_pickles(data) if number % 2 else data, data))
        judge(form, path, dice, watch)
