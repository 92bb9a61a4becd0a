"""Train the demo model on with a file by `gptrs finetune`, and generate with the adapter."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    rows = Path(folder, "rows.txt")
    rows.write_text("".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(400)))
    command = [sys.executable, "-m", "gptrs_cli"]
    options = ["--steps", "2", "--length", "64", "--batch", "1"]
    out = f"{folder}/adapter"
    subprocess.run(
        [*command, "finetune", "demo", "--data", str(rows), "--out", out, *options], check=True
    )
    assert Path(out, "adapter_model.safetensors").is_file()
    made = [*command, "generate", "--adapter", out, "--max-tokens", "2", "--greedy"]
    subprocess.run([*made, "--prompt", "def f"], check=True)
