"""Commands that compute nothing with weights on `numba` read them, and never through a mapping."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors

COMMANDS = (
    "inspect {model}",
    "convert {model} {out}.gptrschk",
    "convert {model} {out} --dtype bf16",
    "forward --model {model} --tokens 1 --backend ref",
    "forward --model {model} --tokens 1 --backend ref --weights q8",
    "generate the --model {model} --backend ref",
    "tokenize the --model {model}",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_read_no_mapped_file(
    gptrs: Run,
    model_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
):
    monkeypatch.setattr(MappedTensors, "view", lambda *_: pytest.fail("a mapped file is read"))
    done = gptrs(*command.format(model=model_directory, out=tmp_path / "out").split())
    assert done.code == 0, done.err
