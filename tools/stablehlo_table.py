"""Writes `docs/stablehlo_operations.md`: which operations of StableHLO are converted.

python tools/stablehlo_table.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from jax.extend.mlir.dialects import stablehlo

import gptrs_backend_jax

PAGE = Path(__file__).parents[1] / "docs" / "stablehlo_operations.md"
_DEVICES = "several devices"
_STREAMS = "tokens, and what goes to and from devices meanwhile"
_RANDOM = "random numbers, which StableHLO leaves to each runtime"
_OLD = "deprecated, JAX writes it no longer"
_GRADIENT = "gradients"
REFUSED: Mapping[str, str] = {
    "after_all": _STREAMS,
    "all_gather": _DEVICES,
    "all_reduce": _DEVICES,
    "all_to_all": _DEVICES,
    "async_done": _STREAMS,
    "async_start": _STREAMS,
    "batch_norm_grad": _GRADIENT,
    "batch_norm_training": _GRADIENT,
    "collective_broadcast": _DEVICES,
    "collective_permute": _DEVICES,
    "create_token": _STREAMS,
    "cross-replica-sum": _DEVICES,
    "dynamic_conv": "padding that is computed",
    "einsum": _OLD,
    "get_tuple_element": "tuples",
    "infeed": _STREAMS,
    "outfeed": _STREAMS,
    "partition_id": _DEVICES,
    "recv": _STREAMS,
    "reduce_scatter": _DEVICES,
    "replica_id": _DEVICES,
    "rng": _RANDOM,
    "send": _STREAMS,
    "set_dimension_size": "a size that depends on data",
    "torch_index_select": _OLD,
    "tuple": "tuples",
    "unary_einsum": _OLD,
    "uniform_dequantize": "quantized types of MLIR",
    "uniform_quantize": "quantized types of MLIR",
}
"""Operations that are refused by name, and why; this may only shrink."""
HEAD = """# Operations of StableHLO

This table says what [gptrs-backend-jax](jax.md) does with each operation of StableHLO. Refused, and
why: an error names it before anything runs. Whatever is converted may still refuse some element
types and forms, by name.

This page is written by tools/stablehlo_table.py.
"""


def operations() -> list[str]:
    """Return the names of all operations, without the dialect, in order."""
    classes = [held for name, held in vars(stablehlo).items() if name.endswith("Op")]
    names = {str(cast("Any", each).OPERATION_NAME) for each in classes}
    return sorted(name.removeprefix("stablehlo.") for name in names - {"stablehlo.return"})


def page_text() -> str:
    """Return the whole page."""
    converted = {
        name.removeprefix("stablehlo.")
        for name in gptrs_backend_jax.supported_operations()
        if name.startswith("stablehlo.")
    }
    names = operations()
    count = sum(name in converted for name in names)
    lines = [HEAD, f"Of {len(names)} operations {count} are converted.", ""]
    lines += ["| operation | |", "|---|---|"]
    for name in names:
        lines.append(f"| `{name}` | {'converted' if name in converted else REFUSED[name]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
