"""Base classes of imported models: named inputs and outputs, steps captured on first use."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar
from zlib import crc32

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.captured_function import Describe
from gptrs.capture.jitting.jit import Jitted, Lowered, PinnedCall
from gptrs.capture.tensor import Tensor
from gptrs.errors import UnsupportedError
from gptrs.ir.program import Program
from gptrs.memory_cache import MemoryCache
from gptrs.plugins.exporters import ModelInput, named_arguments, shown_inputs
from gptrs.plugins.manager import backend_of
from gptrs.quoting import clipped, quoted

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)

MAX_KEPT: Final = 64
"""Captured steps that a graph keeps; the least recently used one is evicted."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Results = TypeVar("Results")


class ImportedGraph(ABC, Generic[Argument]):
    """An `ImportedModel`: a graph of another format on a backend.

    `inputs` and `outputs` have the order of the graph. Subclasses convert arguments and run the
    graph.
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
        takes = shown_inputs(self.inputs)
        gives = ", ".join(map(clipped, self.outputs))
        return f"<{type(self).__name__} {clipped(self.name)}({takes}) -> ({gives})>"

    def __call__(self, /, *arrays: object, **named: object) -> dict[str, np.ndarray]:
        """Return the outputs by name for inputs in order or by name.

        Raises UsageError for inputs that are missing, unknown, or of another type or shape;
        UnsupportedError, before anything runs, for operators without a converter.
        """
        found = zip(self.outputs, self._run(self._given(arrays, named)), strict=True)
        return {name: value for name, value in found if value is not None}

    def program(self, /, *arrays: object, **named: object) -> Program:
        """Return the program for inputs like these, before optimization.

        Its parameters are the tensor inputs in order, followed by the weights.
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
        """Return the outputs in order; None for omitted ones."""

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

    def captured(self, arguments: tuple[Tensor, ...]) -> Lowered:
        """Return that program with its weights, and the conditions on its free sizes."""
        ...

    def pin(self, arguments: tuple[Tensor, ...]) -> PinnedCall | None:
        """Return calls like an earlier one as a function of arrays, None if there was none."""
        ...


class ConvertedGraph(ImportedGraph[np.ndarray]):
    """A graph that converters capture, called with arrays.

    One step serves all free sizes of the graph. Subclasses choose it in `_tried`, falling back to a
    step for the given sizes if symbols are refused.
    """

    def __init__(
        self,
        name: str,
        backend: str | Backend | None,
        inputs: Mapping[str, ModelInput],
        outputs: Sequence[str],
    ) -> None:
        super().__init__(name, backend, inputs, outputs)
        self._is_static = False  # whether symbols were refused, once and for all
        self._steps = MemoryCache[Hashable, Step](MAX_KEPT)
        self._pinned: dict[Hashable, PinnedCall] = {}
        """Calls by the shapes of their arrays, where no value of one is compiled in."""

    @override
    def argument(self, name: str, value: object) -> np.ndarray:
        return self.inputs[name].array(value)

    @override
    def _run(self, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with use_backend(self.backend):  # a graph without weights has no backend of its own
            results = self._called(given, (), partial(self._tried, given))
            return [each if isinstance(each, np.ndarray) else each.numpy() for each in results]

    @override
    def _program(self, given: Mapping[str, np.ndarray]) -> Program:
        with use_backend(self.backend):
            return self._tried(given, lambda step, arguments: step.lower(arguments))

    def captured(self, /, *arrays: object, **named: object) -> Lowered:
        """Return the program for inputs like these with its weights, and what its sizes must be.

        UnsupportedError where the values of an input decide sizes, so that it is no parameter.
        """
        given = self._given(arrays, named)

        def capture(step: Step, arguments: tuple[Tensor, ...]) -> Lowered:
            if len(arguments) != len(given):
                raise UnsupportedError(
                    f"{quoted(self.name)} has sizes that the values of an input decide",
                    hint="make that input a constant of the file",
                )
            return step.captured(arguments)

        with use_backend(self.backend):
            return self._for_all_values(given, capture)

    def _called(
        self,
        given: Mapping[str, np.ndarray],
        other: Hashable,
        tried: Callable[[Callable[[Step, tuple[Tensor, ...]], tuple[Tensor, ...]]], Results],
    ) -> Results | list[np.ndarray]:
        """Return the outputs of a call, which `tried` gives for a function that runs a step.

        A call like an earlier one runs its program at once, without a search for it. `other` is
        what the step depends on besides the shapes of inputs.
        """
        key = other, *[(name, each.shape) for name, each in given.items()]
        pinned = self._pinned.get(key)
        found = None if pinned is None else pinned(list(given.values()))
        if found is not None:
            for each in found:
                each.flags.writeable = False  # as in the first call: one may be there twice
            return found

        def call(step: Step, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            results = step(arguments)
            # With fewer arguments, values are compiled in; other results are lists of tensors.
            if len(arguments) == len(given) and all(type(each) is Tensor for each in results):
                pinned = step.pin(arguments)
                # Cleared, not evicted one by one: with so many shapes, little is gained.
                if len(self._pinned) == MAX_KEPT:
                    self._pinned.clear()
                if pinned is not None:
                    self._pinned[key] = pinned
            return results

        return tried(call)

    def _for_all_values(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        """Return what `_tried` does; subclasses refuse where only the values of a call allow it."""
        return self._tried(given, call)

    @abstractmethod
    def _tried(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        """Return the result of `call` for a step and its tensor inputs."""

    def _kept(self, key: Hashable, made: Callable[[], Step]) -> Step:
        """Return the cached step of a key; `made` creates a new one."""
        return self._steps.find_or_make(key, lambda _: made()).value


def jitted(
    convert: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    name: str,
    axes: Sequence[tuple[str | None, ...]] = (),
    describe: Describe | None = None,
) -> Step:
    """Return `convert` jitted under a name, with symbols for the sizes named in `axes`.

    With `describe`, captures are kept on disk, see `Jitted`.
    """

    def converted(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return convert(arguments)

    converted.__name__ = name
    dynamic = {"arguments": tuple(axes)} if any(map(any, axes)) else {}
    return Jitted(converted, dynamic=dynamic, describe=describe)


def free_axes(slot: ModelInput, rank: int) -> tuple[str | None, ...]:
    """Return the names of free sizes for `jit`; None for fixed sizes."""
    if slot.shape is None:
        return (None,) * rank
    return tuple(None if isinstance(each, int) else _identifier(each) for each in slot.shape)


def _identifier(name: str) -> str:
    """Return a name as `jit` takes it: with other characters, its words and a number of its own."""
    if _NAME.fullmatch(name):
        return name
    words = "_".join(re.findall(r"[A-Za-z0-9]+", name))[:60]
    return f"size_{words}_{crc32(name.encode()):x}"
