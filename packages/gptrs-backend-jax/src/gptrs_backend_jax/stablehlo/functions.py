"""Functions of JAX on any backend: exported to StableHLO, converted, called as before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import jax
import numpy as np
from jax import export as _export

from gptrs.api import UnsupportedError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.importers import ModelInput
from gptrs.api.programs import Program
from gptrs_backend_jax.stablehlo.model import StableHloModel
from gptrs_backend_jax.stablehlo.reading.document import free_sizes
from gptrs_backend_jax.stablehlo.reading.mlir_module import parsed

export = cast("Any", _export)
_jax = cast("Any", jax)


_GENERATORS: Final = {
    "key<fry>": "threefry2x32",
    "key<rbg>": "rbg",
    "key<urbg>": "unsafe_rbg",
}
"""The types of random keys, and JAX's generators for them."""


class JaxFunction:
    """A function of JAX on a backend; takes and returns trees of arrays as the function does.

    `model` is the same by name: arrays in, arrays out.
    """

    def __init__(self, exported: Any, backend: str | Backend | None, name: str) -> None:
        self._exported = exported
        self._kept = [int(each) for each in exported.module_kept_var_idx]
        self._keys = [_key_kind(each) for each in exported.out_avals]
        module = parsed(exported.mlir_module_serialized, free_sizes(exported))
        self.model = StableHloModel(module, backend, name)

    def __repr__(self) -> str:
        return repr(self.model).replace("StableHloModel", "JaxFunction")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return the result of the function, as NumPy arrays.

        Raises UsageError for arguments with another nesting, type or size than the examples.
        """
        found = self.model.run(self._leaves(args, kwargs))
        results = [
            array if kind is None else _jax.random.wrap_key_data(array, impl=kind)
            for array, kind in zip(found, self._keys, strict=True)
        ]
        return _jax.tree_util.tree_unflatten(self._exported.out_tree, results)

    def program(self, *args: object, **kwargs: object) -> Program:
        """Return the program for arguments like these, before optimization."""
        return self.model.program(*self._leaves(args, kwargs))

    def _leaves(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[np.ndarray]:
        leaves, tree = _jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
        if tree != self._exported.in_tree:
            raise UsageError(
                f"`{self.model.name}` got arguments of the structure {tree}",
                hint=f"its examples have {self._exported.in_tree}",
            )
        slots = list(self.model.inputs.values())
        return [
            slot.array(_narrowed(_array(leaves[n]), slot))
            for slot, n in zip(slots, self._kept, strict=True)
        ]


def _array(leaf: object) -> object:
    """Return an array of JAX as one of NumPy; a random key as its data."""
    if isinstance(leaf, jax.Array):
        return np.asarray(_jax.random.key_data(leaf) if _key_kind(leaf) is not None else leaf)
    return leaf


def _key_kind(leaf: object) -> str | None:
    """Return the generator of a random key; None for other arrays."""
    dtype: Any = getattr(leaf, "dtype", None)
    if dtype is None or not _jax.dtypes.issubdtype(dtype, _jax.dtypes.prng_key):
        return None
    kind = _GENERATORS.get(str(dtype))
    if kind is None:
        raise UnsupportedError(f"keys of the type `{dtype}` are not those of a generator of JAX")
    return kind


def _narrowed(leaf: object, slot: ModelInput) -> object:
    """Return an array of 64 bits in 32, as JAX does unless 64-bit types are enabled.

    Raises UsageError for integers that do not fit, which JAX would truncate.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    given, wanted = cast("np.ndarray", leaf), slot.dtype.numpy
    if given.dtype == wanted or _jax.dtypes.canonicalize_dtype(given.dtype) != wanted:
        return given
    made = given.astype(wanted)
    if given.dtype.kind in "iu" and not np.array_equal(made, given):
        raise UsageError(
            f"the input {slot.name} is {slot.dtype}, and got integers that do not fit",
            hint="enable 64-bit types: `jax.config.update('jax_enable_x64', True)`",
        )
    return made


def from_jax(
    function: Callable[..., Any],
    *examples: object,
    backend: str | Backend | None = None,
    **named: object,
) -> JaxFunction:
    """Return a function of JAX on a backend of gptrs, for arguments like the examples.

    Examples are arrays, numbers, `jax.ShapeDtypeStruct` (symbols of `jax.export.symbolic_shape`
    stay free), or trees of them. `backend` is a name, a backend, or None for the default. Arrays
    that the function closes over become weights. Raises UnsupportedError for operations that are
    not converted; errors of JAX pass through.
    """
    given, kwargs = _jax.tree_util.tree_map(_structure, (examples, named))
    jitted = function if hasattr(function, "lower") else _jax.jit(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exported = export.export(jitted, platforms=("cpu",))(*given, **kwargs)
    name = getattr(function, "__name__", type(function).__name__)
    return JaxFunction(exported, backend, str(name))


def _structure(leaf: Any) -> Any:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        is_array = not isinstance(leaf, _jax.ShapeDtypeStruct) and _key_kind(leaf) is None
        return np.asarray(leaf) if is_array else leaf
    return leaf
