"""A StableHLO module that runs: converted once for its free sizes, compiled by a backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import numpy as np

from gptrs import use_backend
from gptrs.api import (
    Backend,
    ModelInput,
    Params,
    Program,
    ProgramError,
    Tensor,
    UnsupportedError,
    UsageError,
    jit,
    named_arguments,
    tensor,
)
from gptrs.plugins.manager import backend_of
from gptrs_backend_jax.stablehlo import ops
from gptrs_backend_jax.stablehlo.conversion import Conversion, require_converted
from gptrs_backend_jax.stablehlo.reading.module import ConstantArray, StableHlo, shown
from gptrs_backend_jax.stablehlo.weights import ConstantSource, name_of

assert ops  # its modules register the converters
Result = TypeVar("Result")


class JittedGraph(Protocol):
    """The conversion of a module, jitted."""

    def __call__(self, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs in order."""
        ...

    def lower(self, arguments: tuple[Tensor, ...]) -> Program:
        """Return the program that computes them."""
        ...


class StableHloModel:
    """A module of StableHLO on a backend: called with arrays by name, gives arrays by name.

    One program serves all sizes that the module leaves free, where these are polynomials;
    otherwise each set of sizes is compiled by itself.
    """

    def __init__(self, module: StableHlo, backend: str | Backend | None, origin: str) -> None:
        self.name = origin
        require_converted(module)
        self._module = module
        main = module.main
        self.inputs: dict[str, ModelInput] = {}
        for place, (name, type_) in enumerate(zip(module.inputs, main.types, strict=True)):
            dims = tuple(
                module.sizes.get((place, axis), f"{name}_{axis}") if dim is None else dim
                for axis, dim in enumerate(type_.shape or ())
            )
            self.inputs[name] = ModelInput(name, type_.dtype, dims)
        self.outputs = module.outputs
        self.backend = backend_of(backend)
        self._params = Params(
            ConstantSource(module), backend=self.backend, dtype=None, origin=origin
        )
        self._steps: dict[bool, JittedGraph] = {}
        self._is_static = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        takes = ", ".join(map(str, self.inputs.values()))
        gives = ", ".join(map(shown, self.outputs))
        return f"<StableHloModel {shown(self.name)}({takes}) -> ({gives})>"

    def __call__(self, *arrays: object, **named: object) -> dict[str, np.ndarray]:
        """Return the outputs by name for inputs in order or by name.

        UsageError for an input that is missing, unknown, or of another type or shape;
        UnsupportedError, before anything runs, for operations that are not converted.
        """
        given = self._given(arrays, named)
        found = self.run(given)
        return dict(zip(self.outputs, found, strict=True))

    def run(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order for inputs in order."""
        with use_backend(self.backend):
            arguments = tuple(tensor(each) for each in given)
            return [each.numpy() for each in self._tried(lambda step: step(arguments))]

    def program(self, *arrays: object, **named: object) -> Program:
        """Return the program, before it is optimized, for inputs like these.

        Its parameters are the inputs, in order, and then the large constants.
        """
        given = self._given(arrays, named)
        with use_backend(self.backend):
            arguments = tuple(tensor(each) for each in given)
            return self._tried(lambda step: step.lower(arguments))

    def _tried(self, use: Callable[[JittedGraph], Result]) -> Result:
        """Return what a use of the step gives, with sizes as numbers where symbols do not do."""
        with self._lock:
            is_static = self._is_static or not self._has_free_sizes()
        if not is_static:
            with suppress(UsageError, UnsupportedError, ProgramError):
                return use(self._made(is_static=False))
        made = use(self._made(is_static=True))
        self._is_static = True
        return made

    def _has_free_sizes(self) -> bool:
        return any(
            not isinstance(x, int) for each in self.inputs.values() for x in each.shape or ()
        )

    def _made(self, *, is_static: bool) -> JittedGraph:
        with self._lock:
            if is_static not in self._steps:
                self._steps[is_static] = self._jitted(is_static)
            return self._steps[is_static]

    def _jitted(self, is_static: bool) -> JittedGraph:
        axes = tuple(
            tuple(None if isinstance(dim, int) else _identifier(dim) for dim in each.shape or ())
            for each in self.inputs.values()
        )

        def convert(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(Conversion(self._module, self._weight).run(arguments))

        convert.__name__ = "stablehlo_module"
        return jit(convert) if is_static else jit(convert, dynamic={"arguments": axes})

    def _weight(self, number: int, constant: ConstantArray) -> Tensor:
        del constant
        return self._params.tensor(name_of(number), floating=False)

    def _given(self, arrays: Sequence[object], named: Mapping[str, object]) -> list[np.ndarray]:
        given = named_arguments(self.name, self.inputs, arrays, named)
        return [self.inputs[name].array(value) for name, value in given.items()]


def _identifier(name: str) -> str:
    """Return the name of a free size as `jit` takes it: letters and digits."""
    return name if name.isidentifier() else "size_" + name.encode().hex()
