"""The machine code of the matrix product: full vectors, and on other machines."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from numba import njit

from gptrs_backend_numba.codegen.vector_ir import FEATURES, WIDTH
from gptrs_backend_numba.kernels.matmul.gemm_ir import ROWS, VECTORS, tile

REGISTER = {16: "zmm", 8: "ymm", 4: "xmm"}
_MACHINE_CODE = (
    "test_the_machine_code_has_multiply_adds_on_full_vectors_and_keeps_sums_in_registers"
)
ON_OTHER_MACHINES = (
    "test_gemm.py::test_every_tail_in_rows_columns_and_depth",
    "test_gemm.py::test_random_shapes_large_enough_for_blocks",
    "test_gemm.py::test_a_large_table_is_read_in_place",
    "test_gemm.py::test_batches",
    "test_gemm_epilogues.py::test_epilogues",
    f"test_gemm_instructions.py::{_MACHINE_CODE}",
)


def assembly(dtype: str) -> str:
    namespace: dict[str, object] = {"tile": tile(ROWS, dtype)}
    exec("def kernel(a, b, c, k):\n    tile(a, b, 128, k, 0, 0, 0, 0, c, 32, b, 128)\n", namespace)
    kernel = cast("Callable[..., None]", namespace["kernel"])
    dispatcher = njit("void(int64, int64, int64, int64)")(kernel)
    return dispatcher.inspect_asm(dispatcher.signatures[0])


@pytest.mark.skipif("fma" not in FEATURES, reason="needs an x86-64 host with FMA")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_the_machine_code_has_multiply_adds_on_full_vectors_and_keeps_sums_in_registers(
    dtype: str,
) -> None:
    text = assembly(dtype)
    full = re.findall(rf"vfmadd\d+ps\t.*%{REGISTER[WIDTH]}\d+", text)
    assert len(full) >= 3 * ROWS * VECTORS
    assert not re.search(r"vfmadd\d+ss", text)
    loop = max(
        re.split(r"^\.LBB\w+:", text, flags=re.MULTILINE), key=lambda part: part.count("fma")
    )
    assert "(%rsp)" not in loop


@pytest.mark.parametrize(("cpu", "width"), [("haswell", 8), ("generic", 4)])
def test_other_machines(cpu: str, width: int) -> None:
    """The same tests on the code for narrower registers."""
    if width > WIDTH or "NUMBA_CPU_NAME" in os.environ:
        pytest.skip("the host has no such registers")
    code = f"from gptrs_backend_numba.kernels import emitter; assert emitter.WIDTH == {width}"
    environment = {**os.environ, "NUMBA_CPU_NAME": cpu}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    folder = Path(__file__).parent
    tests = [str(folder / test) for test in ON_OTHER_MACHINES]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--backends", "numba"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *tests],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
