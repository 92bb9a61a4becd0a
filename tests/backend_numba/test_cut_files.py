"""A mapped file that is cut while kernels read it: an error of the run, no signal, no result."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.tiny_gpt2 import save_tiny_gpt2

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the handler is for Linux")

READ = """
import os, sys
import numpy as np
import gptrs
from gptrs.backend.contract import InputRole
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import ModelError
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create

path = sys.argv[1]
file = SafetensorsFile.open(path)
weights, other = file.view("w"), np.ones((64, 8192), np.float32)
program = parse_program(
    '''ptir.v0.5
    func @main(%x: f32[9, 64], %w: f32[64, 8192]) -> f32[9, 8192] {
      %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[9, 8192]
      return %0
    }
    '''
)
run = create(2).compile(program, [InputRole.ARGUMENT] * 2).run
x = np.ones((9, 64), np.float32)
assert float(run([x, other])[0].sum()) == 9 * 64 * 8192
assert float(run([x, weights])[0].sum()) == 9 * 64 * 8192
os.truncate(path, os.path.getsize(path) // 2)
for _ in range(2):  # then what was replaced by zeros is refused
    try:
        run([x, weights])
        print("a result")
    except ModelError as error:
        print(error)
assert float(run([x, other])[0].sum()) == 9 * 64 * 8192  # other weights are none the worse for it
del weights, file
assert float(run([x, other])[0].sum()) == 9 * 64 * 8192
"""

PACKED = """
import os, sys
from pathlib import Path
import numpy as np
from gptrs.backend.contract import InputRole
from gptrs.backend.weight_identity import WeightFile, WeightIdentity
from gptrs.errors import ModelError
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kept_weights.weight_store import weight_array
from gptrs_backend_numba.kept_weights.weight_store import kept_files
from gptrs_backend_numba.kept_weights.weight_store import weight_store

program = parse_program(
    '''ptir.v0.5
    func @main(%x: f32[9, 256], %w: f32[256, 1024]) -> f32[9, 1024] {
      %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[9, 1024]
      return %0
    }
    '''
)
identity = WeightIdentity.of(b"w", WeightFile(bytes(16), "/made/up", lambda: True))
type = program.main.body.params[1].type
ones = lambda: np.ones((256, 1024), np.float32)
made, found = (weight_array(identity, type, ones, "mapped") for _ in range(2))
run = create(2).compile(program, [InputRole.ARGUMENT, InputRole.PARAMETER]).run
x = np.ones((9, 256), np.float32)
right = 9 * 256 * 1024
assert float(run([x, made])[0].sum()) == right
weight_store().writer.finish()
assert float(run([x, found])[0].sum()) == right  # of the packed weight on disk
(kept,) = kept_files(weight_store().root)
kept.path.chmod(0o600)
os.truncate(kept.path, 1 << 19)
for _ in range(2):  # then what was replaced by zeros is refused
    try:
        run([x, found])
        print("a result")
    except ModelError as error:
        print(error)
assert float(run([x, made])[0].sum()) == right  # the copy in memory is none the worse for it
"""

OUTSIDE = """
import os, sys
import gptrs
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
file = SafetensorsFile.open(sys.argv[1])
weights = file.view("w")
(gptrs.tensor([1.0]) * 2).numpy()  # the backend has installed its handler
os.truncate(sys.argv[1], 4096)
print(weights.sum())
"""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    numpy = pytest.importorskip("safetensors.numpy")
    ones = pytest.importorskip("numpy").ones((64, 8192), "float32")
    path = tmp_path / "weights.safetensors"
    numpy.save_file({"w": ones}, path)
    return path


def test_a_run_that_reads_what_is_gone_is_refused(weights: Path) -> None:
    command = [sys.executable, "-c", READ, str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("weights.safetensors` became shorter" in line for line in lines), lines


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_run_that_reads_a_packed_weight_that_is_gone_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PACKED],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "GPTRS_CACHE_DIR": str(tmp_path), "GPTRS_WEIGHT_CACHE_BYTES": "9000000"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("` became shorter" in line for line in lines), lines


def test_what_reads_it_outside_of_a_run_gets_no_zeros(weights: Path) -> None:
    command = [sys.executable, "-c", OUTSIDE, str(weights)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, b"")


@pytest.mark.exhaustive
@pytest.mark.parametrize("keeps", [0, 4096, 0.5, 0.97])
def test_a_file_that_is_cut_while_generating(tmp_path: Path, keeps: float) -> None:
    """Cut at 5 moments each: the exit code is 3 with a line, or the text is the right one."""
    original = save_tiny_gpt2(tmp_path / "model", n_positions=1024, n_embd=256)
    (name,) = [path.name for path in original.glob("*.safetensors")]
    data = (original / name).read_bytes()
    asked = [sys.executable, "-m", "gptrs_cli", "generate", "--model", str(original), "--greedy"]
    asked += ["--ignore-eos", "--max-tokens", "600", "--prompt-ids", "1,2,3", "--backend", "numba"]
    right = subprocess.run(asked, capture_output=True, check=True).stdout
    dice = random.Random(int(keeps * 1000))
    refused = 0
    for _ in range(5):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # Unbuffered: `communicate` does not see what a buffer has read ahead.
        with subprocess.Popen(asked, bufsize=0, **pipes) as process:
            assert process.stdout is not None
            begun, moment = b"", dice.randrange(len(right) // 2)
            while len(begun) < moment:
                begun += process.stdout.read(moment - len(begun))
            os.truncate(original / name, int(keeps * len(data)) if keeps < 1 else int(keeps))
            out, err = process.communicate(timeout=120)
        out = begun + out
        (original / name).write_bytes(data)
        if process.returncode == 0:
            assert out == right
        else:
            refused += 1
            assert process.returncode == 3, (signal.Signals(-process.returncode), err)
            assert err.count(b"\n") == 1
            assert b"Traceback" not in err
            assert right.startswith(out.removesuffix(b"\n"))
    assert refused, "it was cut too late, each time"
