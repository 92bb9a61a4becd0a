"""Complete prompts of a file by `gptrs batch` on a cluster of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    rows = Path(folder, "in.jsonl")
    rows.write_text("".join(json.dumps({"prompt": f"def f{n}("}) + "\n" for n in range(4)))
    command = [*(sys.executable, "-m", "gptrs_cli", "batch"), str(rows), f"{folder}/out.jsonl"]
    subprocess.run([*command, "--option", "max_tokens=2", "--rows", "2"], check=True)
    found = [json.loads(line) for line in Path(folder, "out.jsonl").read_text().splitlines()]
assert [row["prompt"] for row in found] == [f"def f{n}(" for n in range(4)]
assert all(len(row["generated_token_ids"]) <= 2 for row in found)
