"""Training on a mesh of devices gives the losses of one device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from train.runs_support import save_lm, stream


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [("--lora", "4"), ("--full",)])
def test_losses_on_eight_devices_are_those_of_one(options, tmp_path):
    """The backward part is split as the forward part is: heads and rows over two axes."""
    pytest.importorskip("gptrs_backend_jax", reason="meshes are JAX's")
    save_lm(tmp_path / "model", "llama")
    np.asarray(stream(600), "<u2").tofile(tmp_path / "data.bin")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    losses = []
    for mesh in ([], ["--mesh", "data=8"], ["--mesh", "data=2,tensor=4"]):
        out = tmp_path / f"out{len(losses)}"
        command = [
            *(sys.executable, "-m", "gptrs", "finetune", tmp_path / "model", "--out", out),
            *("--data", tmp_path / "data.bin", "--steps", "4", "--batch", "8", "--length", "8"),
            *("--backend", "jax", "--device", "cpu", *options, *mesh),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        rows = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses.append([json.loads(row).get("loss", 0) for row in rows])
    for split in losses[1:]:
        np.testing.assert_allclose(split, losses[0], rtol=1e-5)


@pytest.mark.exhaustive
def test_losses_of_two_processes_are_those_of_one(tmp_path):
    """Each has four of eight devices; the first one writes, also the state to resume from."""
    pytest.importorskip("gptrs_backend_jax", reason="meshes are JAX's")
    save_lm(tmp_path / "model", "llama")
    np.asarray(stream(600), "<u2").tofile(tmp_path / "data.bin")
    one = _losses(tmp_path, "one", [[]])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    group = ["--mesh", "data=2,tensor=4", "--coordinator", address, "--processes", "2"]
    both = [[*group, "--process-id", str(number)] for number in range(2)]
    np.testing.assert_allclose(_losses(tmp_path, "both", both), one, rtol=1e-5)
    again = [[*options, "--resume"] for options in both]
    np.testing.assert_allclose(_losses(tmp_path, "both", again), one, rtol=1e-5)
    refused = _processes(tmp_path, "both", both)
    assert all(code == 2 for code, _ in refused)
    assert "exists" in refused[0][1]
    assert "process 1 has another folder or machine than process 0" in refused[1][1]


def _losses(folder, out, commands):
    for code, error in _processes(folder, out, commands):
        assert code == 0, error[-2000:]
    rows = (folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(row).get("loss", 0) for row in rows]


def _processes(folder, out, commands):
    """Run one command in several processes; return their exit codes and errors."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    command = [
        *(sys.executable, "-m", "gptrs", "finetune", folder / "model", "--out", folder / out),
        *("--data", folder / "data.bin", "--steps", "4", "--batch", "8", "--length", "8"),
        *("--backend", "jax", "--device", "cpu", "--lora", "4"),
    ]
    begun = [
        subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)
        for options in commands
    ]
    try:
        errors = [each.communicate(timeout=300)[1] for each in begun]
    finally:
        for each in begun:
            each.kill()
    return [(each.returncode, error) for each, error in zip(begun, errors, strict=True)]
