"""The module in the bytes of a file: StableHLO, or an artifact of `jax.export`."""

from __future__ import annotations

from typing import Any, Final, cast

from jax import export as _export

from gptrs.api import ModelError, UnsupportedError
from gptrs_backend_jax.stablehlo.reading.mlir_module import parsed
from gptrs_backend_jax.stablehlo.reading.module import StableHlo, shown

_BYTECODE: Final = b"ML\xefR"
_TEXT: Final = (b"module", b"#", b"//", b"func.func", b'"builtin.module"', b"{")


def read_artifact(data: bytes) -> StableHlo:
    """Return the module in bytecode, text, or an artifact of `jax.export`, told by how it begins.

    ModelError for what is none of them or is damaged, UnsupportedError for what is not converted.
    """
    if data.startswith(_BYTECODE) or data.lstrip()[:20].startswith(_TEXT):
        return parsed(data)
    exported = _exported(data)
    if exported.nr_devices != 1:
        raise UnsupportedError(f"it is for {exported.nr_devices} devices, one is taken")
    module = parsed(exported.mlir_module_serialized, free_sizes(exported))
    if len(module.inputs) != len(exported.module_kept_var_idx):
        raise UnsupportedError("it is for several platforms", hint="export it for one of them")
    return module


def _exported(data: bytes) -> Any:
    try:
        return cast("Any", _export).deserialize(bytearray(data))
    except ImportError as error:
        raise UnsupportedError(
            "it is no text or bytecode of MLIR; files of jax.export need `flatbuffers`",
            hint="pip install flatbuffers",
        ) from error
    except Exception as error:
        raise ModelError(
            f"it is no module of StableHLO and no file of jax.export: {shown(error) or 'damaged'}"
        ) from error


def free_sizes(exported: Any) -> dict[tuple[int, int], str]:
    """Return the names of free sizes by (input of the module, axis)."""
    found: dict[tuple[int, int], str] = {}
    for place, number in enumerate(exported.module_kept_var_idx):
        for axis, dim in enumerate(exported.in_avals[number].shape):
            if not isinstance(dim, int):
                found[place, axis] = str(dim)
    return found
