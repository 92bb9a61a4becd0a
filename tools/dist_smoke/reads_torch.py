"""A program of torch.export runs from Python and on the command line, a module by torch.compile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import torch

import gptrs_torch

layer = torch.nn.Linear(2, 1).eval()
x = torch.ones(3, 2)
path = Path("layer.pt2")
torch.export.save(torch.export.export(layer, (x,)), path)
with torch.no_grad():
    compiled = cast("Any", torch).compile(layer, backend="gptrs")
    wanted = layer(x)
    torch.testing.assert_close(compiled(x), wanted)
torch.testing.assert_close(gptrs_torch.load(path).module(x), wanted)
run = ["gptrs", "run", str(path), "--random-seed", "1", "--json"]
done = subprocess.run(run, capture_output=True, text=True, check=True)
assert json.loads(done.stdout)["results"][0]["shape"] == [3, 1], done.stdout
path.unlink()
