"""Training on a mesh of devices gives the losses of one device."""

from __future__ import annotations

import json
import os
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
