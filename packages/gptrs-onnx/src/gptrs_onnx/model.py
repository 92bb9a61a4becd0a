"""An ONNX model that runs: converted once for its free sizes, compiled and run by a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import onnx
from msgspec.structs import replace
from typing_extensions import override

from gptrs.api import GptrsError, ModelError, UnsupportedError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.importers import ConvertedGraph, ModelInput, Step, jitted
from gptrs.api.models import Params, Tensor
from gptrs.backend.weight_identity import WeightFile
from gptrs.ir.specialize import lone_symbol
from gptrs_onnx import ops
from gptrs_onnx.block_weights import BlockSource, block_weights
from gptrs_onnx.conversion import (
    Conversion,
    NeedsKnownError,
    SymbolsRefusedError,
    symbols_may_be_refused,
)
from gptrs_onnx.element_types import HELD_IN, stored_dtype
from gptrs_onnx.node import (
    SMALL,
    Items,
    Known,
    Narrow,
    as_tensor,
    converts,
    is_weight,
    refuse_sequence,
    shown,
)
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import InitializerSource, model_of, read_model
from gptrs_onnx.size_facts import Facts, identifiers

assert ops  # its modules register the converters
Result = TypeVar("Result")
STATIC: Final = Facts(static=True)
_NONE: Final = Facts()
_MOST_FACTS: Final = 64
"""Most facts that a model keeps, each for a kind of sizes."""
_MOST_TRIES: Final = 32
"""Most conversions that look for facts, after which all sizes are numbers."""


class OnnxModel(ConvertedGraph):
    """A model from an ONNX file, called with NumPy arrays by name.

    Sizes that the file names, without a number, are free: one program serves all of them. Where the
    graph needs two of them to be equal, or one to be a number, that is learnt and looked at in each
    call; a size that must be known is specialized, and the others remain free.
    Where the graph computes sizes from the values of inputs (`Reshape` to a shape that is an
    input), or has to know them to choose a branch, those values are part of what is compiled, and
    other values compile again; at most 64 are kept.
    """

    def __init__(
        self,
        model: ir.Model,
        backend: str | Backend | None,
        origin: str,
        own: WeightFile | None = None,
        opened: tuple[InitializerSource, Params] | None = None,
    ) -> None:
        """Take a model, which `own` is the file of; None if it is in memory.

        `opened` are its weights, if they were opened before.
        """
        self._model = model
        graph = model.graph
        inner = set(graph.initializers)
        slots = [slot_of(each) for each in graph.inputs if each.name not in inner]
        outputs = [str(each.name) for each in graph.outputs]
        super().__init__(origin, backend, {slot.name: slot for slot in slots}, outputs)
        self._narrow = {
            str(each.name): each.dtype
            for each in (*graph.inputs, *graph.outputs)
            if each.dtype is not None and each.dtype in HELD_IN
        }
        if opened is None:
            weights = weights_of(model, own)
            opened = weights, Params(weights, backend=self.backend, dtype=None, origin=origin)
        self.weights, self.params = opened
        self._known_inputs: dict[str, NeedsKnownError] = {}  # and what asks for their values
        shapes = [slot.shape or () for slot in slots]
        free = dict.fromkeys(each for shape in shapes for each in shape if isinstance(each, str))
        self._numbers = {name: number for number, name in enumerate(free)}
        self._learnt: list[Facts] = []

    @override
    def argument(self, name: str, value: object) -> np.ndarray:
        """Return an input; one of a narrow type is an array of it, or holds only its numbers."""
        narrow = self._narrow.get(name)
        if narrow is None:
            return super().argument(name, value)
        held, own = HELD_IN[narrow].numpy, narrow.numpy()
        array = np.asarray(value)
        if array.dtype == own:
            return super().argument(name, array.astype(held))
        array = super().argument(name, value)
        with np.errstate(all="ignore"):
            if not np.array_equal(array.astype(own).astype(held), array, equal_nan=own.kind != "i"):
                raise UsageError(
                    f"the input `{shown(name)}` of type {narrow.name} got other numbers",
                    hint=f"give it an array of `ml_dtypes.{own}`",
                )
        return array

    @override
    def _run(self, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = super()._run(given)
        for index, name in enumerate(self.outputs if self._narrow else ()):
            if name in self._narrow:
                found[index] = found[index].astype(self._narrow[name].numpy())
        return found

    @override
    def _tried(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        """Return what `call` gives, with the facts about sizes and the values that it takes.

        Those that helped are kept for later calls.
        """
        sizes = self._sizes(given)
        # Begins with what earlier calls have learnt: the usual call converts nothing and tries
        # nothing.
        search = _Search(sizes, self._facts_for(sizes), dict(self._known_inputs))
        while True:
            step, arguments = self._step(given, search.known, search.facts)
            try:
                result = call(step, arguments)
            except NeedsKnownError as need:
                search.ask(need, given)
            except SymbolsRefusedError as refusal:
                search.refuse(refusal)
            except GptrsError as error:
                missed = self._missed(sizes)
                if missed and not error.hint:
                    error.hint = f"other calls had sizes where {missed}"
                raise
            else:
                for name, need in search.known.items():  # without what led to it: it has the graph
                    self._known_inputs.setdefault(name, NeedsKnownError(need.origins, str(need)))
                self._keep(search)
                return result

    def _sizes(self, given: Mapping[str, np.ndarray]) -> dict[int, int] | None:
        """Return the free sizes of a call; None if axes of one name differ, as files may."""
        sizes: dict[int, int] = {}
        for each, array in given.items():
            for name, size in zip(self.inputs[each].shape or (), array.shape, strict=False):
                if isinstance(name, str) and sizes.setdefault(self._numbers[name], size) != size:
                    return None
        return sizes

    def _facts_for(self, sizes: Mapping[int, int] | None) -> Facts:
        """Return the facts of an earlier call that hold for these sizes, else none."""
        if sizes is None or self._is_static:
            return STATIC
        holding = next((facts for facts in self._learnt if facts.hold(sizes)), None)
        if holding is not None or all(sizes.values()):
            return holding or _NONE
        # A size of 0 is a number in the program: no polynomial over symbols, which stand for 1 or
        # more, describes it.
        return _NONE.pin({number: 0 for number, size in sizes.items() if not size})

    def _missed(self, sizes: Mapping[int, int] | None) -> str:
        """Return the facts of other calls that do not hold for these sizes, in words."""
        found = [
            words
            for facts in self._learnt
            if sizes is not None and not facts.static and not facts.hold(sizes)
            for words in facts.in_words(list(self._numbers))
        ]
        return ", ".join(f"`{shown(each)}`" for each in dict.fromkeys(found[:4]))

    def _keep(self, search: _Search) -> None:
        """Keep facts with which a call succeeded, those first that hold for fewer sizes."""
        facts, sizes = search.facts, search.sizes
        self._is_static = self._is_static or (facts.static and search.always)
        if sizes is None or self._is_static or facts in self._learnt or facts == Facts():
            return
        if facts.static:
            facts = replace(facts, pinned=sizes)
        made = [*self._learnt, facts][-_MOST_FACTS:]
        # The sort is stable: among facts alike, earlier ones stay first, and the same call takes
        # the same program.
        self._learnt = sorted(made, key=lambda each: list(each.pinned.values()).count(None))

    def _step(
        self, given: Mapping[str, np.ndarray], asked: Mapping[str, NeedsKnownError], facts: Facts
    ) -> tuple[Step, tuple[Tensor, ...]]:
        """Return what computes the outputs, and the inputs that it takes as tensors.

        It is made for the values of the inputs `asked` for, and for sizes with these facts.
        """
        known = {name: array for name, array in given.items() if name in asked}
        for name, array in known.items():
            # Values that are compiled in are part of the cache key; a large input would fill the
            # cache with one program a call.
            if array.size > SMALL:
                raise _refused(asked[name], name, array.size)
        free = [name for name in given if name not in known]
        # Bytes, not values: NaN equals itself here, and 0.0 differs from -0.0, as in a program.
        values = tuple(
            [(name, each.dtype.str, each.shape, each.tobytes()) for name, each in known.items()]
        )
        ranks = tuple([(name, given[name].ndim) for name in free])
        step = self._kept(
            (values, ranks, facts.key), partial(self._made, known, free, given, facts)
        )
        return step, tuple([Tensor.of_array(given[name]) for name in free])

    def _made(
        self,
        known: Mapping[str, np.ndarray],
        free: Sequence[str],
        given: Mapping[str, np.ndarray],
        facts: Facts,
    ) -> Step:
        names = identifiers(self._numbers)
        slots = [self.inputs[name].shape or (None,) * given[name].ndim for name in free]
        numbers = [
            [self._numbers[each] if isinstance(each, str) else None for each in shape]
            for shape in slots
        ]
        axes = tuple(
            tuple(None if each is None else facts.name(each, names) for each in shape)
            for shape in numbers
        )

        def convert(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            sources = dict(zip(free, arguments, strict=True))
            conversion = self._conversion(known, sources)
            dims: dict[int, int] = {}
            for each, own in zip(arguments, numbers, strict=True):
                dims.update(
                    {n: dim for n, dim in zip(own, each.shape, strict=True) if n is not None}
                )
            # Reversed, so that of two sizes with one symbol the first one counts.
            symbols = {lone_symbol(dim): n for n, dim in reversed(dims.items())}
            if set(symbols) == {None} or not symbols:
                return _outputs(conversion, self._model)
            with symbols_may_be_refused(
                conversion, {each: n for each, n in symbols.items() if each is not None}
            ):
                facts.assume(dims)
                return _outputs(conversion, self._model)

        return jitted(convert, "onnx_model", axes if any(map(any, axes)) else ())

    def _conversion(self, known: Mapping[str, Known], free: Mapping[str, Tensor]) -> Conversion:
        """Return a conversion of the graph, with its inputs bound."""
        model = self._model
        conversion = Conversion(model.functions, dict(model.opset_imports), self._weight)
        for value in model.graph.inputs:
            name = str(value.name)
            if name in known:
                conversion.bind(value, known[name])
            elif name in free:
                narrow = self._narrow.get(name)
                found = free[name]
                conversion.bind(
                    value, found if narrow is None else Narrow(found, narrow), frozenset({name})
                )
            elif name in self.inputs:
                conversion.bind(value, None)
        return conversion

    def _weight(self, name: str, stored: ir.TensorProtocol) -> Tensor:
        del stored
        return self.params.tensor(name, floating=False)


def weights_of(model: ir.Model, own: WeightFile | None) -> InitializerSource:
    """Return the initializers of all graphs of a model, except small constants."""
    stored = {
        name: value.const_value
        for part in model.graphs()
        for name, value in part.initializers.items()
        if value.const_value is not None and is_weight(value.const_value)
    }
    blocks = block_weights(model)
    return BlockSource(stored, own, blocks) if blocks else InitializerSource(stored, own)


def _outputs(conversion: Conversion, model: ir.Model) -> tuple[Tensor, ...]:
    """Return the outputs, those of narrow types in the types that hold them."""
    results: list[Tensor] = []
    for output, found in zip(model.graph.outputs, conversion.run(model.graph), strict=True):
        if isinstance(found, Items):
            refuse_sequence(f"`{shown(output.name)}`, an output of the graph,")
        narrow = found.type if isinstance(found, Narrow) else None
        if narrow != (output.dtype if output.dtype in HELD_IN else None):
            stated, name = output.dtype.name if output.dtype else "nothing", shown(output.name)
            raise ModelError(
                f"the output `{name}` is stated to be {stated}, and is"
                f" {as_tensor(found).dtype if narrow is None else narrow.name}"
            )
        results.append(found.values if isinstance(found, Narrow) else as_tensor(found))
    return tuple(results)


class _Search:
    """The facts and values of a call, and others to try when the conversion is refused."""

    def __init__(
        self, sizes: Mapping[int, int] | None, facts: Facts, known: dict[str, NeedsKnownError]
    ) -> None:
        self.sizes = sizes
        self.facts = facts
        self.known = known
        self.always = False
        """Whether symbols were refused for all sizes."""
        self._others: Iterator[tuple[Facts, Mapping[str, NeedsKnownError]]] = iter(())
        self._reached = 0
        self._tries = 0

    def refuse(self, refusal: SymbolsRefusedError) -> None:
        """Take the next facts after a refusal under symbols."""
        self.always = refusal.always
        # New facts are asked for only where the conversion came further: otherwise the last guess
        # did not help.
        if refusal.refused.nodes > self._reached:
            self._others = _alone(refusal.refused.candidates(self.facts, self.sizes or {}))
        self._next(refusal.refused.nodes)

    def ask(self, need: NeedsKnownError, given: Mapping[str, np.ndarray]) -> None:
        """Take the values that are needed, or facts that make them unnecessary."""
        asked = {name: need for name in need.origins if name not in self.known}
        if self.facts.static and not asked:
            raise _refused(need) from None
        refused = need.refused
        if self.facts.static or (need.__cause__ is None and asked):
            self.known |= asked
        elif refused is None:
            self._next(self._reached)
        else:
            if refused.nodes > self._reached:
                small = asked if all(given[name].size <= SMALL for name in asked) else {}
                facts, sizes = self.facts, self.sizes or {}
                self._others = chain(
                    _alone(refused.equalities(facts, sizes)),
                    [(facts, small)] if small else [],
                    _alone(refused.candidates(facts, sizes)),
                )
            self._next(refused.nodes)

    def _next(self, reached: int) -> None:
        self._reached = max(self._reached, reached)
        self._tries += 1
        last = STATIC, dict[str, NeedsKnownError]()
        # All sizes as numbers always convert, at the price of a program for each size.
        self.facts, asked = next(self._others, last) if self._tries < _MOST_TRIES else last
        self.known |= asked


def _alone(several: Iterable[Facts]) -> Iterator[tuple[Facts, Mapping[str, NeedsKnownError]]]:
    """Yield facts that need no values."""
    return ((facts, {}) for facts in several)


def _refused(need: NeedsKnownError, name: str = "", size: int = 0) -> GptrsError:
    """Return the error for values that must be known, and are computed, or those of a large input.

    If they would only have helped, that is what went wrong without them.
    """
    if isinstance(need.__cause__, GptrsError):
        return need.__cause__
    if not name:
        return UnsupportedError(f"{need} depends on values that are computed from data")
    return UnsupportedError(
        f"{need} depends on the values of the input `{shown(name)}`, which has {size} elements",
        hint=f"sizes may depend on inputs of at most {SMALL} elements",
    )


def slot_of(value: ir.Value) -> ModelInput:
    """Return the declaration of an input; UnsupportedError for types that PTIR lacks."""
    name = str(value.name)
    held = value.type
    optional = isinstance(held, ir.OptionalType)
    if isinstance(held, ir.OptionalType):
        held = held.elem_type
    if not isinstance(held, ir.TensorType):
        kind = type(held).__name__.removesuffix("Type").lower() if held else "unknown"
        raise UnsupportedError(f"the input `{shown(name)}` is a {kind}, only tensors are supported")
    dtype = stored_dtype(held.dtype, f"the input `{shown(name)}`")
    if value.shape is None or optional:
        return ModelInput(name, dtype, None, optional)
    dims = [_size_of(size, f"{name}_{place}") for place, size in enumerate(value.shape)]
    return ModelInput(name, dtype, tuple(dims))


def _size_of(size: int | ir.SymbolicDim, place: str) -> int | str:
    """Return a size or the name of a free one, by default that of its place.

    Negative numbers, `?` and the like are what exporters write for "any".
    """
    if isinstance(size, int):
        return size if size >= 0 else place
    stated = str(size.value or "")
    return stated if any(map(str.isalpha, stated)) else place


# Models out of files and out of protobuf messages, and which operators are converted.


def load(path: str | os.PathLike[str], backend: str | Backend | None = None) -> OnnxModel:
    """Return the model in an .onnx file, ready to be called.

    `backend` is a name, a backend, or None for the default. External data must lie in the folder
    of the file. ModelError for an invalid file, UnsupportedError for an operator set or a type of
    input that is not supported.
    """
    model, own = read_model(path)
    return OnnxModel(model, backend, os.fspath(path), own)


def from_proto(model: onnx.ModelProto, backend: str | Backend | None = None) -> OnnxModel:
    """Return a model that is in memory; errors as `load`, and external data is refused."""
    return OnnxModel(model_of(model, None), backend, model.graph.name or "the model")


def supported_operators() -> dict[str, list[str]]:
    """Return the operators that have their own converters, in order, by domain.

    Those that the standard defines by others (`NegativeLogLikelihoodLoss`) are converted as well.
    """
    found: dict[str, list[str]] = {}
    for operator in sorted(converts):
        domain, _, name = operator.rpartition(".")
        found.setdefault(domain or "ai.onnx", []).append(name)
    return found
