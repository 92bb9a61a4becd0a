"""Files kept on disk: a later process reads no ONNX, and no program of another file is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import numpy_helper, parser  # noqa: E402

GRAPHS = {
    "weights": "(float[n, 80] x) => (float y) { h = MatMul (x, w) y = Add (h, b) }",
    "beside": "(float[n, 80] x) => (float y) { h = MatMul (x, w) y = Relu (h) }",
    "facts": "(float[n, 3] x, float[m, 3] z) => (float y) { y = Add (x, z) }",
    "values": "(float[n, 6] x, int64[k] s) => (float y) { h = Reshape (x, s) y = Neg (h) }",
    "drawn": "(float[n, 80] x) => (float y) { h = RandomUniformLike (x) y = Mul (x, h) }",
    "staged": """(float[n, 80] x) => (float y) {
        places = NonZero (x) h = Cast <to = 1> (places) w2 = ReduceMean (w) y = Add (h, w2) }""",
    "named": """(float[n, 80] x, string[k] s) => (float y) {
        dog = Constant <value_string = "dog"> () same = Equal (s, dog) ones = Cast <to = 1> (same)
        count = ReduceSum <keepdims = 0> (ones) y = Add (x, count) }""",
}
SCRIPT = """
import json, os, sys, time
import numpy as np
import gptrs_onnx
from gptrs.backend import weight_identity
from gptrs.capture.caching import source_identity
from gptrs.capture.jitting.captured_function import CapturedFunction

weight_identity._SETTLED_NS = 0  # the files were written just now
source_identity.BEGAN_NS = time.time_ns() + 10**12
found, captured = {}, 0
begin = CapturedFunction.capture


def capture(*arguments):
    global captured
    captured += 1
    return begin(*arguments)


CapturedFunction.capture = capture
seed = int(os.environ.get("SEED", "1"))
for name in os.environ.get("NAMES", "weights beside facts values drawn").split():
    model = gptrs_onnx.load(f"{sys.argv[1]}/{name}.onnx", "ref", seed=seed)
    more = {"values": np.array([3, -1]), "named": ["ant", "dog"]}
    for rows in map(int, sys.argv[2:]):
        width = {"facts": 3, "values": 6}.get(name, 80)
        x = np.linspace(-1, 1, rows * width, dtype=np.float32).reshape(rows, width)
        given = [x, {"facts": x, **more}.get(name)][: len(model.inputs)]
        found[f"{name} {rows}"] = model(*given)["y"].tobytes().hex()
print(json.dumps({"read": "onnx" in sys.modules, "found": found, "captured": captured}))
"""


def write(folder: Path, seed: int) -> None:
    """Write the graphs with weights of a seed, into the files that are there."""
    rng = np.random.default_rng(seed)
    (folder / "beside.data").unlink(missing_ok=True)
    for name, text in GRAPHS.items():
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
        for each, shape in {"w": (80, 64), "b": (64,)}.items():
            if f"{each})" in text:
                array = rng.standard_normal(shape).astype(np.float32)
                model.graph.initializer.append(numpy_helper.from_array(array, each))
        data = {"save_as_external_data": True, "location": "beside.data", "size_threshold": 0}
        onnx.save(model, folder / f"{name}.onnx", **(data if name == "beside" else {}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder, 0)
    return folder


def said(folder: Path, *rows: int, **variables: str) -> dict[str, Any]:
    environment = {**os.environ, "GPTRS_CACHE_DIR": str(folder.parent / "cache"), **variables}
    command = [sys.executable, "-c", SCRIPT, str(folder), *map(str, rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(folder: Path, *rows: int, **variables: str) -> tuple[bool, dict[str, str]]:
    found = said(folder, *rows, **variables)
    return found["read"], found["found"]


@pytest.mark.long
def test_a_later_process_reads_no_onnx_until_it_must(folder: Path) -> None:
    read, found = run(folder, 6)
    assert read
    assert run(folder, 6) == (False, found)
    # The same names, shapes and sizes of files: only the bytes of the weights are others.
    write(folder, 1)
    read, other = run(folder, 6)
    assert read
    assert other["weights 6"] != found["weights 6"]
    assert other["beside 6"] != found["beside 6"]


def test_the_programs_of_stages_are_kept_as_well(folder: Path) -> None:
    first = said(folder, 6, NAMES="staged")
    again = said(folder, 6, NAMES="staged")
    assert again["found"] == first["found"]
    assert (first["captured"], again["captured"]) == (2, 1), "only the search for the cut"


@pytest.mark.exhaustive
def test_what_is_kept_is_of_one_seed_of_one_file_and_of_all_sizes(folder: Path) -> None:
    _, found = run(folder, 6)
    reseeded = run(folder, 6, SEED="2")[1]
    assert reseeded["drawn 6"] != found["drawn 6"]
    assert {**reseeded, "drawn 6": found["drawn 6"]} == found
    assert run(folder, 6, SEED="2") == (False, reseeded)
    more = run(folder, 6, 9, 3, GPTRS_CACHE_BYTES="0")[1]
    assert more["weights 6"] == found["weights 6"]
    assert run(folder, 6, 9, 3) == (False, more), "one program serves all sizes"
    named = run(folder, 6, NAMES="named")
    assert named == run(folder, 6, NAMES="named") == (True, named[1]), (
        "its strings are in the file alone"
    )
    write(folder, 1)
    read, other = run(folder, 6)
    assert (read, other) == (True, run(folder, 6, GPTRS_CACHE_BYTES="0")[1])
    (folder / "beside.data").write_bytes(bytes(80 * 64 * 4))
    assert run(folder, 6) == (True, {**other, "beside 6": bytes(6 * 64 * 4).hex()})


def test_operators_are_listed_by_a_process_that_reads_no_file() -> None:
    script = "import gptrs_onnx; print(*gptrs_onnx.supported_operators()['ai.onnx'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert {"Conv", "Loop", "Relu"} <= set(done.stdout.split())
