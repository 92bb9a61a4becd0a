"""The machine code of the matrix product uses full vectors; `make paths` checks other widths."""

import re
from collections.abc import Callable
from typing import cast

import pytest
from numba import njit

from gptrs_backend_numba.codegen.vector_ir import FEATURES, WIDTH
from gptrs_backend_numba.kernels.matmul.gemm_ir import ROWS, VECTORS, tile

REGISTER = {16: "zmm", 8: "ymm", 4: "xmm"}


def assembly(dtype: str) -> str:
    namespace: dict[str, object] = {"tile": tile(ROWS, dtype)}
    exec("def kernel(a, b, c, k):\n    tile(a, b, 128, k, 0, 0, 0, 0, c, 32, b, 128)\n", namespace)
    kernel = cast("Callable[..., None]", namespace["kernel"])
    dispatcher = njit("void(int64, int64, int64, int64)")(kernel)
    return dispatcher.inspect_asm(dispatcher.signatures[0])


@pytest.mark.paths
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
