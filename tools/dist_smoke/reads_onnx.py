"""A model in an ONNX file runs from Python and on the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
from onnx import parser

import gptrs_onnx

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
m (float[n, 2] x) => (float[n, 1] y) <float[2, 1] w = {2, 3}> { y = MatMul (x, w) }
"""

path = Path("model.onnx")
path.write_bytes(parser.parse_model(MODEL).SerializeToString())
found = gptrs_onnx.load(path)(np.asarray([[1, 1], [1, 2]], np.float32))
assert found["y"].tolist() == [[5], [8]], found
run = ["gptrs", "run", str(path), "--random-seed", "1", "--symbol", "n=3", "--json"]
done = subprocess.run(run, capture_output=True, text=True, check=True)
assert json.loads(done.stdout)["results"][0]["shape"] == [3, 1], done.stdout
path.unlink()
