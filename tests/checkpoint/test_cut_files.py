"""A file of weights that becomes shorter while it is in use is an error, whoever reads it then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from checkpoint import cut_in_a_step
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.converting.convert import convert
from runtime.tiny_gpt2 import save_tiny_gpt2


@pytest.mark.sample(1)
@pytest.mark.long
@pytest.mark.parametrize(("name", "budget"), [("m", "off"), ("m", "60%"), ("m.gptrschk", "off")])
def test_a_file_that_is_cut_in_the_middle_of_a_step(tmp_path: Path, name: str, budget: str):
    """`ref` is NumPy: no signal handler can help it, so it reads no mapped file."""
    model, streaming = tmp_path / name, {"weight_streaming": {"pin_below": 300}}
    folder = save_tiny_gpt2(tmp_path / "m", n_embd=64, runtime=streaming)
    if model != folder:
        convert(folder, model)
    file = model if model.is_file() else folder / "model.safetensors"
    command = [sys.executable, cut_in_a_step.__file__, str(model), str(file), budget]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == 2 * len(cut_in_a_step.MOMENTS)
    assert all(file.name in each and "load the model again" in each for each in outcomes), outcomes


def test_what_users_read_is_no_view_of_a_file(tmp_path: Path, backend):
    folder = save_tiny_gpt2(tmp_path / "model", n_embd=64)
    model = gptrs.load_model(folder, backend.name)
    stored = model.weights.load("transformer.wte.weight")
    os.truncate(folder / "model.safetensors", 4096)
    assert float(np.abs(stored).sum()) > 0
    with pytest.raises(CheckpointError, match="when it was opened, now 4096"):
        model.weights.load("transformer.wpe.weight")
    with pytest.raises(CheckpointError, match="now 4096"):
        weights_digest(model.weights)


def test_only_backends_that_say_so_get_views(tmp_path: Path, backend):
    weight = np.arange(4096, dtype=np.float32).reshape(2, 2048)
    save_file({"w": weight}, tmp_path / "w.safetensors")
    with SafetensorsFile.open(tmp_path / "w.safetensors") as file:
        assert isinstance(file.view("w").base, np.ndarray)
        assert file.read("w").tobytes() == file.view("w").tobytes() == weight.tobytes()
    assert backend.reads_mapped_files == (backend.name == "numba")
