"""The elements of constants of MLIR, those of types too that its bindings give to no buffer."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from gptrs.api import ModelError
from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.stablehlo.reading.module import ValueType, shown

_LITERAL: Final = re.compile(r"dense<(.*)> : tensor<.*>", re.DOTALL)
_DENSE: Final = re.compile(r"dense<[^>]*> : tensor<(?:[^<>]|<[^<>]*>)*>")
_WORD: Final = re.compile(r"[^\s\[\],()]+")
_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def elements(held: Any, type_: ValueType, shape: tuple[int, ...]) -> np.ndarray:
    """Return the elements of a dense attribute in the NumPy type of PTIR.

    A rank of 0 is for an attribute whose elements are all equal. UnsupportedError for element types
    that PTIR does not have, ModelError for elements that are not there.
    """
    dtype = type_.dtype
    try:
        found = np.asarray(held)
    except (TypeError, ValueError, BufferError):
        found = _written(str(held), dtype)
    if shape == () and found.size:
        found = found.reshape(-1)[:1]
    if found.dtype != dtype.numpy:
        found = found.view(dtype.numpy) if _same_bits(found, dtype) else found.astype(dtype.numpy)
    if found.size != int(np.prod(shape, dtype=np.int64)):
        raise ModelError(f"a constant of `{shown(type_)}` has {found.size} elements")
    return np.array(found.reshape(shape))


def written_elements(text: str, type_: ValueType) -> np.ndarray:
    """Return the elements of the first dense attribute in a text; of rank 0 if there is one."""
    found = _DENSE.search(text)
    if found is None:
        raise ModelError(f"an attribute of `{shown(type_)}` is not read")
    made = _written(found[0], type_.dtype)
    shape = tuple(dim or 0 for dim in type_.shape or ())
    count = int(np.prod(shape, dtype=np.int64))
    if made.size not in (1, count):
        raise ModelError(f"a constant of `{shown(type_)}` has {made.size} elements")
    return made.reshape(shape if made.size == count else ())


def _same_bits(found: np.ndarray, dtype: DType) -> bool:
    return found.dtype.itemsize == dtype.itemsize and found.dtype.kind in "iu" and dtype.is_float


def _written(text: str, dtype: DType) -> np.ndarray:
    """Return the elements that MLIR writes: numbers, their bits in hexadecimal, or all as bytes."""
    found = _LITERAL.fullmatch(text)
    if found is None:
        raise ModelError(f"a constant is written as `{shown(text)}`, which is not read")
    body = found[1]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), dtype.numpy)
    words = _WORD.findall(body)
    if dtype.is_complex:
        part = dtypes.f32 if dtype is dtypes.cf32 else dtypes.f64
        return np.array([_number(word, part) for word in words], part.numpy).view(dtype.numpy)
    return np.array([_number(word, dtype) for word in words], dtype.numpy)


def _number(word: str, dtype: DType) -> Any:
    if word.startswith("0x"):
        return np.array(int(word, 16), _BITS[dtype.itemsize]).view(dtype.numpy)[()]
    if word in ("true", "false"):
        return word == "true"
    return float(word) if dtype.is_float else int(word)
