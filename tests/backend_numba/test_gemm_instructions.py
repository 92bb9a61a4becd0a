"""The machine code of the matrix product uses full vectors; `make paths` checks other widths."""

import re
from collections.abc import Callable
from typing import cast

import pytest
from numba import njit

from gptrs_backend_numba.codegen.vector_ir import FEATURES, WIDTH
from gptrs_backend_numba.kernels.matmul.dots import COLUMNS, MOST_ROWS, dot_block, dot_block_part
from gptrs_backend_numba.kernels.matmul.gemm_ir import ROWS, VECTORS, tile

Block = Callable[[str], object]
REGISTER = {16: "zmm", 8: "ymm", 4: "xmm"}


def assembly(intrinsic: object, call: str) -> str:
    namespace: dict[str, object] = {"tile": intrinsic}
    exec(f"def kernel(a, b, c, k):\n    tile({call})\n", namespace)
    kernel = cast("Callable[..., None]", namespace["kernel"])
    dispatcher = njit("void(int64, int64, int64, int64)")(kernel)
    return dispatcher.inspect_asm(dispatcher.signatures[0])


def require_sums_in_registers(text: str, products: int, spills: float = 0) -> None:
    """The loop has as many multiply-adds of whole vectors, and `spills` stack accesses for each."""
    full = re.findall(rf"vfmadd\d+ps\t.*%{REGISTER[WIDTH]}\d+", text)
    assert len(full) >= products
    assert not re.search(r"vfmadd\d+ss", text)
    loop = max(
        re.split(r"^\.LBB\w+:", text, flags=re.MULTILINE), key=lambda part: part.count("fma")
    )
    assert loop.count("(%rsp)") <= spills * loop.count("fma")


@pytest.mark.paths
@pytest.mark.skipif("fma" not in FEATURES, reason="needs an x86-64 host with FMA")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_tiles_keep_their_sums_in_registers(dtype: str) -> None:
    text = assembly(tile(ROWS, dtype), "a, b, 128, k, 0, 0, 0, 0, c, 32, b, b, 128")
    require_sums_in_registers(text, 3 * ROWS * VECTORS)


@pytest.mark.paths
@pytest.mark.skipif("fma" not in FEATURES, reason="needs an x86-64 host with FMA")
@pytest.mark.parametrize("block", [dot_block, dot_block_part], ids=["whole", "part"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_blocks_of_a_table_keep_their_sums_in_registers(dtype: str, block: Block) -> None:
    starts = "a, 64, " if block is dot_block_part else ""
    # Strides are values: with numbers LLVM may need fewer registers than in the kernel.
    call = f"{MOST_ROWS}, a, k, b, c, b, a, b, {starts}c, k, k"
    text = assembly(block(dtype), call)
    # Of 16 registers 12 are sums: LLVM, ordering the widening of f16 for Haswell, runs short.
    spills = 0.33 if WIDTH == 8 and dtype == "f16" else 0
    require_sums_in_registers(text, MOST_ROWS * COLUMNS, spills)
