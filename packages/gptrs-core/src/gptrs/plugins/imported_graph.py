"""Base classes of imported models: named arrays in and out, steps captured when first needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor
from gptrs.ir.program import Program
from gptrs.memory_cache import MemoryCache
from gptrs.plugins.exporters import ModelInput, named_arguments
from gptrs.plugins.manager import backend_of
from gptrs.quoting import clipped

MAX_KEPT: Final = 64
"""Captured steps that a graph keeps; the one that was used least recently goes first."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class ImportedGraph(ABC, Generic[Argument]):
    """An `ImportedModel`: a graph of another format on a backend.

    `inputs` and `outputs` have the order of the graph. A subclass says how an argument becomes one
    of the graph, and runs it.
    """

    def __init__(
        self,
        name: str,
        backend: str | Backend | None,
        inputs: Mapping[str, ModelInput],
        outputs: Sequence[str],
    ) -> None:
        self.name = name
        self.backend = backend_of(backend)
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)

    def __repr__(self) -> str:
        takes = ", ".join(map(str, self.inputs.values()))
        gives = ", ".join(map(clipped, self.outputs))
        return f"<{type(self).__name__} {clipped(self.name)}({takes}) -> ({gives})>"

    def __call__(self, *arrays: object, **named: object) -> dict[str, np.ndarray]:
        """Return the outputs by name for inputs in order or by name.

        UsageError for an input that is missing, unknown, or of another type or shape;
        UnsupportedError, before anything runs, for operators that are not converted.
        """
        found = zip(self.outputs, self._run(self._given(arrays, named)), strict=True)
        return {name: value for name, value in found if value is not None}

    def program(self, *arrays: object, **named: object) -> Program:
        """Return the program, before it is optimized, for inputs like these.

        Its parameters are the inputs that are tensors, in order, and then the weights.
        """
        return self._program(self._given(arrays, named))

    def _given(self, arrays: Sequence[object], named: Mapping[str, object]) -> dict[str, Argument]:
        given = named_arguments(self.name, self.inputs, arrays, named)
        return {name: self.argument(name, value) for name, value in given.items()}

    @abstractmethod
    def argument(self, name: str, value: object) -> Argument:
        """Return a value for an input; UsageError for another type or shape."""

    @abstractmethod
    def _run(self, given: Mapping[str, Argument]) -> Sequence[np.ndarray | None]:
        """Return the outputs in order, None for one that the graph leaves out."""

    @abstractmethod
    def _program(self, given: Mapping[str, Argument]) -> Program:
        """Return the program for these inputs."""


class Step(Protocol):
    """The jitted conversion of a graph."""

    def __call__(self, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs in order."""
        ...

    def lower(self, arguments: tuple[Tensor, ...]) -> Program:
        """Return the program that computes them."""
        ...


class ConvertedGraph(ImportedGraph[np.ndarray]):
    """A graph that converters capture, called with arrays.

    One step serves all sizes that the graph leaves free. A subclass says in `_tried` which one: for
    these sizes alone where symbols do not do.
    """

    def __init__(
        self,
        name: str,
        backend: str | Backend | None,
        inputs: Mapping[str, ModelInput],
        outputs: Sequence[str],
    ) -> None:
        super().__init__(name, backend, inputs, outputs)
        self._is_static = False  # whether symbols were refused once for all sizes
        self._steps = MemoryCache[Hashable, Step](MAX_KEPT)

    @override
    def argument(self, name: str, value: object) -> np.ndarray:
        return self.inputs[name].array(value)

    @override
    def _run(self, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with use_backend(self.backend):  # a graph without weights does not say where it runs
            results = self._tried(given, lambda step, arguments: step(arguments))
            return [each.numpy() for each in results]

    @override
    def _program(self, given: Mapping[str, np.ndarray]) -> Program:
        with use_backend(self.backend):
            return self._tried(given, lambda step, arguments: step.lower(arguments))

    @abstractmethod
    def _tried(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        """Return what `call` gives for a step and the inputs that it takes as tensors."""

    def _kept(self, key: Hashable, made: Callable[[], Step]) -> Step:
        """Return the step of a key, `made` if it is new."""
        return self._steps.find_or_make(key, lambda _: made()).value


def jitted(
    convert: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    name: str,
    axes: Sequence[tuple[str | None, ...]] = (),
) -> Step:
    """Return `convert` jitted under a name, the sizes that `axes` names symbols."""

    def converted(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return convert(arguments)

    converted.__name__ = name
    is_free = any(map(any, axes))
    return jit(converted, dynamic={"arguments": tuple(axes)}) if is_free else jit(converted)


def free_axes(slot: ModelInput, rank: int) -> tuple[str | None, ...]:
    """Return the names of free sizes as `jit` takes them, None for a size that is a number."""
    if slot.shape is None:
        return (None,) * rank
    return tuple(None if isinstance(each, int) else _identifier(each) for each in slot.shape)


def _identifier(name: str) -> str:
    """Return a name of letters and digits."""
    return name if name.isidentifier() else "size_" + name.encode().hex()
