"""Runnable StableHLO modules: converted once for all free sizes, compiled by a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
from typing_extensions import override

from gptrs.api import ProgramError, UnsupportedError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.importers import ConvertedGraph, ModelInput, Step, free_axes, jitted
from gptrs.api.models import Params, Tensor, tensor
from gptrs_backend_jax.stablehlo import ops
from gptrs_backend_jax.stablehlo.conversion import (
    Conversion,
    converts,
    elementwise,
    require_converted,
)
from gptrs_backend_jax.stablehlo.reading.document import read_file
from gptrs_backend_jax.stablehlo.reading.module import ConstantArray, StableHlo
from gptrs_backend_jax.stablehlo.weights import ConstantSource, name_of

assert ops  # its modules register the converters
Result = TypeVar("Result")


class StableHloModel(ConvertedGraph):
    """A StableHLO module on a backend, called with arrays by name; returns arrays by name.

    One program serves all free sizes if they are polynomials; otherwise each set of sizes is
    compiled on its own.
    """

    def __init__(self, module: StableHlo, backend: str | Backend | None, origin: str) -> None:
        require_converted(module)
        self._module = module
        inputs: dict[str, ModelInput] = {}
        for position, (name, type_) in enumerate(
            zip(module.inputs, module.main.types, strict=True)
        ):
            dims = tuple(
                module.sizes.get((position, axis), f"{name}_{axis}") if dim is None else dim
                for axis, dim in enumerate(type_.shape or ())
            )
            inputs[name] = ModelInput(name, type_.dtype, dims)
        super().__init__(origin, backend, inputs, module.outputs)
        self._params = Params(
            ConstantSource(module), backend=self.backend, dtype=None, origin=origin
        )

    def run(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order for inputs in order."""
        return self._run(dict(zip(self.inputs, given, strict=True)))

    @override
    def _tried(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        """Return the result of a use of the step, with numbers as sizes if symbols do not work."""
        arguments = tuple(map(tensor, given.values()))
        if not self._is_static and self._has_free_sizes():
            with suppress(UsageError, UnsupportedError, ProgramError):
                return call(self._step(is_static=False), arguments)
        result = call(self._step(is_static=True), arguments)
        self._is_static = True
        return result

    def _has_free_sizes(self) -> bool:
        return any(
            not isinstance(x, int) for each in self.inputs.values() for x in each.shape or ()
        )

    def _step(self, *, is_static: bool) -> Step:
        axes = [free_axes(each, len(each.shape or ())) for each in self.inputs.values()]
        return self._kept(
            is_static, lambda: jitted(self._convert, "stablehlo_module", () if is_static else axes)
        )

    def _convert(self, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(Conversion(self._module, self._weight).run(arguments))

    def _weight(self, number: int, constant: ConstantArray) -> Tensor:
        del constant
        return self._params.tensor(name_of(number), floating=False)


# Loading of StableHLO files, and the list of converted operations.


assert ops  # its modules register the converters


def load(path: str | os.PathLike[str], backend: str | Backend | None = None) -> StableHloModel:
    """Load the module in a file.

    The file is StableHLO text or bytecode, or an artifact of `jax.export`. `backend` is a name, a
    backend, or None for the default. Raises ModelError if it is damaged or none of these;
    UnsupportedError, which lists the operations without a converter.
    """
    return StableHloModel(read_file(path), backend, os.fspath(path))


def supported_operations() -> list[str]:
    """Return the operations that are converted, with their dialects, in order."""
    known = {*converts, *elementwise} - {"call"}  # older text calls it `func.call`
    return sorted(name if "." in name else f"stablehlo.{name}" for name in known)
