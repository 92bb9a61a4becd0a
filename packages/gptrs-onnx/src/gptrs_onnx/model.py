"""An ONNX model that runs: converted once for its free sizes, compiled and run by a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np
from msgspec.structs import replace
from typing_extensions import override

from gptrs.api import ExecutionError, GptrsError, ModelError, UnsupportedError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.importers import Closure, ConvertedGraph, ModelInput, Step, jitted
from gptrs.api.models import Params, Tensor
from gptrs.api.programs import dtypes
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.jit import Lowered
from gptrs.capture.parameter import Parameter
from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol
from gptrs.lazy_module import lazy_module
from gptrs.plugins.manager import backend_of
from gptrs_onnx.graph_file import FileStamp, Findings, GraphFile
from gptrs_onnx.search import (
    SMALL,
    STATIC,
    NeedsKnownError,
    Search,
    SymbolsRefusedError,
    UnmetNeedError,
    refused_values,
    shown,
)
from gptrs_onnx.size_facts import Facts, identifiers

# What reads ONNX is imported for a file that no earlier process kept: that takes longer than all
# else that a small model needs.
if TYPE_CHECKING:
    import onnx

    import gptrs_onnx.graph as graphs
    import gptrs_onnx.reading as reading
    from gptrs_onnx.stages import Cut, Part
else:
    graphs = lazy_module("gptrs_onnx.graph")
    reading = lazy_module("gptrs_onnx.reading")

Result = TypeVar("Result")
_NONE: Final = Facts()
_MOST_FACTS: Final = 64
"""Most facts that a model keeps, each for a kind of sizes."""


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
        file: GraphFile,
        backend: str | Backend | None,
        origin: str,
        params: Params | None = None,
    ) -> None:
        """Take a graph; `params` are its weights if they were opened before."""
        self._file = file
        super().__init__(origin, backend, {slot.name: slot for slot in file.inputs}, file.outputs)
        self._slots = {slot.name: slot for slot in file.slots}
        self._narrow = file.narrow
        self.weights = file.weights
        if params is None:
            params = Params(self.weights, backend=self.backend, dtype=None, origin=origin)
        self.params = params
        self.seed: int | None = None
        """The seed of random numbers; None refuses operators that make them."""
        shapes = [slot.shape or () for slot in file.slots]
        free = dict.fromkeys(each for shape in shapes for each in shape if isinstance(each, str))
        self._numbers = {name: number for number, name in enumerate(free)}
        found = file.findings or Findings()
        self._learnt = list(found.learnt)
        self._known_inputs = dict(found.known)
        """Inputs whose values are known, and what asks for them."""
        self._is_static = found.is_static
        self._is_kept = file.stamp is None or file.findings is not None
        self._stages: Cut | None = None
        """How the graph is cut, once a call has asked for that."""
        self._parts: dict[object, OnnxModel] = {}

    @override
    def _given(
        self, arrays: Sequence[object], named: Mapping[str, object]
    ) -> dict[str, np.ndarray]:
        given, border = super()._given(arrays, named), self._file.border
        return given if border is None else border.items(given)

    @override
    def argument(self, name: str, value: object) -> np.ndarray:
        """Return an input; one of a narrow type is an array of it, or holds only its numbers."""
        narrow = self._narrow.get(name)
        if narrow is None or narrow.is_strings:
            return super().argument(name, value)
        held, own = narrow.held, narrow.own
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
        border, others = self._file.border, list[str]()
        if border is not None:
            given, others = border.taken(given)
        with use_backend(self.backend):
            try:
                results = self._results(given)
                found = [_array_of(each) for each in results]
            except ExecutionError as error:
                raise self._unknown(given, others) or error from None
        for index, name in enumerate(self.outputs if self._narrow else ()):
            narrow = self._narrow.get(name)
            if narrow is not None and narrow.is_strings and border is not None:
                found[index] = border.decoded(found[index], others)
            elif narrow is not None:
                found[index] = found[index].astype(narrow.own)
        return found

    def _unknown(
        self, given: Mapping[str, np.ndarray], others: Sequence[str]
    ) -> ExecutionError | None:
        """Return the error for a category that no table has, if that is why a run failed."""
        known = {name: array for name, array in given.items() if name in self._known_inputs}
        free = {name: Tensor.of_array(each) for name, each in given.items() if name not in known}
        try:
            return self._file.graph.unknown(known, free, self._weight, self.seed, others)
        except (GptrsError, NeedsKnownError):  # what failed is something else
            return None

    @override
    def _program(self, given: Mapping[str, np.ndarray]) -> Program:
        border = self._file.border
        return super()._program(given if border is None else border.taken(given)[0])

    @override
    def captured(self, /, *arrays: object, **named: object) -> Lowered:
        if self._file.border is not None:
            raise UnsupportedError(
                f"`{shown(self.name)}` has strings or lists as inputs or outputs, and programs"
                " have only tensors of numbers",
                hint="cut them off the graph with `onnx.utils.extract_model`",
            )
        return super().captured(*arrays, **named)

    def _results(self, given: Mapping[str, np.ndarray]) -> Sequence[Tensor | np.ndarray]:
        """Return the outputs, computed in stages where sizes follow from much data."""
        if self._stages is None:
            try:
                search = partial(self._searched, given, in_stages=True)
                return self._called(given, self.seed, search)
            except UnmetNeedError as unmet:
                found = cast("graphs.Graph", self._file.graph).cut(unmet.need)
                if found is None:
                    raise unmet.error from None
                self._stages = found
        return self._in_stages(self._stages, given)

    def _in_stages(self, cut: Cut, given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        arrays = dict(given)
        if cut.first.outputs:
            arrays |= self._stage(cut.first, arrays)(**_taken(cut.first, arrays))
        if cut.between is not None:
            graph = cast("graphs.Graph", self._file.graph)
            arrays |= graph.between(cut.between, arrays, self._weight)
        second = self._stage(cut.second, arrays)
        if self.seed is not None:  # both stages count their draws from the start
            second.seed = (self.seed + 1) % 2**64
        found = second(**_taken(cut.second, arrays))
        return [found[name] for name in self.outputs]

    def _stage(self, part: Part, given: Mapping[str, np.ndarray]) -> OnnxModel:
        """Return a part of the graph as a model that takes arrays of these ranks."""
        taken = _taken(part, given)
        key = part.outputs, tuple((name, each.ndim) for name, each in taken.items())
        found = self._parts.get(key)
        if found is None:
            graph = cast("graphs.Graph", self._file.graph)
            own = {**self._slots, **self.inputs}
            inputs = [own.get(name) or _slot(name, each) for name, each in taken.items()]
            outputs = tuple([str(each.name) for each in part.outputs])
            staged = replace(graph, part=part)
            weights = self.weights
            file = GraphFile(
                tuple(inputs), outputs, lambda: weights, lambda: staged,
                stamp=self._file.stamp, part=part.name,
            )  # fmt: skip
            found = OnnxModel(file, self.backend, self.name, self.params)
            self._parts[key] = found
        found.seed = self.seed
        return found

    @override
    def _tried(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        return self._alone(given, call)

    @override
    def _for_all_values(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        return self._alone(given, call, in_stages=True)

    def _alone(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
        in_stages: bool = False,
    ) -> Result:
        """Return what `_searched` does; UnsupportedError for what calls compute in stages."""
        try:
            return self._searched(given, call, in_stages)
        except UnmetNeedError as unmet:
            error = unmet.error
            if cast("graphs.Graph", self._file.graph).cut(unmet.need) is None:
                raise error from None
            hint = "calls compute it in stages, which are not a single program" + (
                f"; for one, {error.hint}" if error.hint else ""
            )
            raise UnsupportedError(error.message, hint=hint) from error

    def _searched(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
        in_stages: bool = False,
    ) -> Result:
        """Return what `call` gives, with the facts about sizes and the values that it takes.

        Those that helped are kept for later calls. UnmetNeedError for values of too much data, and
        with `in_stages` for any at which the graph may be cut without compiling them in.
        """
        sizes = self._sizes(given)
        # Begins with what earlier calls have learnt: the usual call converts nothing and tries
        # nothing.
        # A large input is asked for once more: what asks says where to cut the graph.
        known = {
            name: need
            for name, need in self._known_inputs.items()
            if name not in given or given[name].size <= SMALL
        }
        search = Search(sizes, self._facts_for(sizes), known)
        while True:
            step, arguments = self._step(given, search.known, search.facts)
            try:
                result = call(step, arguments)
            except NeedsKnownError as need:
                if in_stages and self._is_staged(need):
                    raise UnmetNeedError(need, refused_values(need)) from need
                try:
                    search.ask(need, given)
                except GptrsError as error:
                    raise UnmetNeedError(need, error) from error
            except SymbolsRefusedError as refusal:
                search.refuse(refusal)
            except GptrsError as error:
                missed = self._missed(sizes)
                if missed and not error.hint:
                    error.hint = f"other calls had sizes where {missed}"
                raise
            else:
                self._keep(search)
                if not self._is_kept:
                    self._is_kept = True
                    self._keep_on_disk()
                return result

    def _is_staged(self, need: NeedsKnownError) -> bool:
        """Return whether calls compute the node that asks between two stages."""
        graph = cast("graphs.Graph", self._file.graph)
        found = graph.cut(need) if need.origins else None
        return found is not None and found.between is not None

    def _stated(self, name: str) -> tuple[int | str, ...]:
        """Return the sizes that the file states for an input; () for a tensor of a sequence."""
        # `inputs` first: a caller may have replaced them by ones with numbers for some sizes.
        slot = self.inputs.get(name, self._slots.get(name))
        return () if slot is None else slot.shape or ()

    def _sizes(self, given: Mapping[str, np.ndarray]) -> dict[int, int] | None:
        """Return the free sizes of a call; None if axes of one name differ, as files may."""
        sizes: dict[int, int] = {}
        for each, array in given.items():
            for name, size in zip(self._stated(each), array.shape, strict=False):
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

    def _keep(self, search: Search) -> None:
        """Keep facts with which a call succeeded, those first that hold for fewer sizes."""
        facts, sizes = search.facts, search.sizes
        for name, need in search.known.items():  # without what led to it: it has the graph
            if name not in self._known_inputs and not self._is_staged(need):
                self._known_inputs[name] = NeedsKnownError(need.origins, str(need))
                self._is_kept = self._file.stamp is None
        if facts.static and search.always and not self._is_static:
            self._is_static, self._is_kept = True, self._file.stamp is None
        if sizes is None or self._is_static or facts in self._learnt or facts == _NONE:
            return
        if facts.static:
            facts = replace(facts, pinned=sizes)
        made = [*self._learnt, facts][-_MOST_FACTS:]
        # The sort is stable: among facts alike, earlier ones stay first, and the same call takes
        # the same program.
        self._learnt = sorted(made, key=lambda each: list(each.pinned.values()).count(None))
        self._is_kept = self._file.stamp is None

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
                need = asked[name]
                raise UnmetNeedError(need, refused_values(need, name, array.size))
        free = [name for name in given if name not in known]
        # Bytes, not values: NaN equals itself here, and 0.0 differs from -0.0, as in a program.
        values = tuple(
            [(name, each.dtype.str, each.shape, each.tobytes()) for name, each in known.items()]
        )
        ranks = tuple([(name, given[name].ndim) for name in free])
        step = self._kept(
            (values, ranks, facts.key, self.seed), partial(self._made, known, free, given, facts)
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
        slots = [self._stated(name) or (None,) * given[name].ndim for name in free]
        numbers = [
            [self._numbers[each] if isinstance(each, str) else None for each in shape]
            for shape in slots
        ]
        axes = tuple(
            tuple(None if each is None else facts.name(each, names) for each in shape)
            for shape in numbers
        )
        seed = self.seed

        def convert(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            sources = dict(zip(free, arguments, strict=True))
            dims: dict[int, int] = {}
            for each, own in zip(arguments, numbers, strict=True):
                dims.update(
                    {n: dim for n, dim in zip(own, each.shape, strict=True) if n is not None}
                )
            # Reversed, so that of two sizes with one symbol the first one counts.
            symbols = {lone_symbol(dim): n for n, dim in reversed(dims.items())}
            found = {each: n for each, n in symbols.items() if each is not None}
            assume = partial(facts.assume, dims)
            graph = self._file.graph
            return graph.convert(known, sources, self._weight, found, assume, seed)

        values = [
            (name, each.dtype.str, each.shape, each.tobytes()) for name, each in known.items()
        ]
        describe = partial(self._described, repr((values, free, axes, facts.key, seed)))
        named = axes if any(map(any, axes)) else ()
        return jitted(convert, "onnx_model", named, describe)

    def _weight(self, name: str) -> Tensor:
        return self.params.tensor(name, floating=False)

    def _described(self, text: str) -> Closure | None:
        """Return the closure of a step, for other processes; None if they cannot identify it."""
        stamp, beside = self._file.stamp, self.weights.data_files
        if stamp is None or beside is None or self._file.border is not None:
            return None
        if not stamp.own.unchanged():
            return None
        leaves = [self._weight(name).source for name in self.weights.names()]
        parameters = [each for each in leaves if isinstance(each, Parameter)]
        if len(parameters) < len(leaves):
            return None
        types = [str(each.type) for each in parameters]
        known = f"{stamp.record.key} {sorted(beside.items())} {types} {text} {self._file.part}"
        return Closure(known, frozenset({"gptrs_onnx"}), tuple(parameters))

    def _keep_on_disk(self) -> None:
        """Keep the declaration of the file, and the findings of calls, for later processes."""
        stamp, places = self._file.stamp, self.weights.places()
        # A stage has no record of its own: its file begins with the whole graph.
        is_plain = self._file.border is None and not self._narrow and not self._file.part
        if stamp is not None and places is not None and is_plain:
            findings = Findings(tuple(self._learnt), dict(self._known_inputs), self._is_static)
            stamp.keep(self._file, places, findings)


def _taken(part: Part, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return those arrays that a part takes."""
    return {str(each.name): given[str(each.name)] for each in part.inputs if each.name in given}


def _slot(name: str, array: np.ndarray) -> ModelInput:
    """Return the declaration of an input like this array, with free sizes."""
    sizes = tuple([f"{name}_{axis}" for axis in range(array.ndim)])
    return ModelInput(name, dtypes.from_numpy(array.dtype), sizes)


def _array_of(result: Tensor | np.ndarray | tuple[Tensor, ...]) -> np.ndarray:
    """Return a result as an array; a sequence as a list of them."""
    if isinstance(result, np.ndarray):
        return result
    if isinstance(result, tuple):
        return cast("np.ndarray", [each.numpy() for each in result])
    return result.numpy()


# Models out of files and out of protobuf messages.


def load(
    path: str | os.PathLike[str], backend: str | Backend | None = None, *, seed: int | None = None
) -> OnnxModel:
    """Return the model in an .onnx file, ready to be called.

    `backend` is a name, a backend, or None for the default. External data must lie in the folder
    of the file. ModelError for an invalid file, UnsupportedError for an operator set or a type of
    input that is not supported.

    Operators that make random numbers need a `seed`: the same one gives the same numbers in each
    call. They are not those of other runtimes.

    The declaration of a file and its programs are kept on disk: while it does not change, later
    processes read no ONNX.
    """
    engine = backend_of(backend)
    stamp = FileStamp.of(path, engine)
    file = stamp and stamp.find(partial(_read_again, stamp))
    if file is None:
        model, own = reading.read_model(path)
        # Of another moment, the stamp would say what other bytes declare.
        stamp = stamp if stamp is not None and own == stamp.own else None
        file = replace(graphs.Graph(model, own).declared(), stamp=stamp)
    made = OnnxModel(file, engine, os.fspath(path))
    made.seed = seed
    return made


def _read_again(stamp: FileStamp) -> graphs.Graph:
    """Return the graph of a file that an earlier process kept; ModelError if it changed."""
    model, own = reading.read_model(stamp.path)
    if own != stamp.own:
        raise ModelError(
            f"`{shown(stamp.path)}` was changed since the model was loaded",
            hint="load the model again",
        )
    return graphs.Graph(model, own)


def from_proto(
    model: onnx.ModelProto, backend: str | Backend | None = None, *, seed: int | None = None
) -> OnnxModel:
    """Return a model that is in memory; as `load`, but external data is refused."""
    graph = graphs.Graph(reading.model_of(model, None))
    made = OnnxModel(graph.declared(), backend, model.graph.name or "the model")
    made.seed = seed
    return made
