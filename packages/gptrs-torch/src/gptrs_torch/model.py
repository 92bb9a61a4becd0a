"""Programs of torch.export, run on arrays by name or as a torch module."""

from __future__ import annotations

import copy
import logging
import os
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import fx
from torch._export.serde import schema, serialize
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree
from typing_extensions import override

from gptrs.api import GptrsError, ModelError, UnsupportedError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.importers import ImportedGraph, ModelInput
from gptrs.api.programs import Program
from gptrs_torch import ops
from gptrs_torch.archive import Archive, array_of, dtype_of, read_archive, tensor_of
from gptrs_torch.conversion import converts, of_complex
from gptrs_torch.dynamo import table
from gptrs_torch.graph import GraphFunction
from gptrs_torch.ops.matrices import checked_rules
from gptrs_torch.partition import loops_of, separate_operands
from gptrs_torch.program_check import ExportedSizes, expression_of
from gptrs_torch.size_conditions import SizeConditions
from gptrs_torch.weights import WeightWatch

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_STATES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


class TorchModel(ImportedGraph[torch.Tensor]):
    """An exported program on a backend, called with arrays by name; returns arrays by name.

    One program serves all sizes that the export left free. Buffers that the program changes keep
    their values between calls; inputs that it changes are written to. `module` takes and returns
    torch tensors, nested as in the export. `shared`: others hold the weights, too, so each call
    checks whether they have changed.
    """

    def __init__(
        self,
        exported: ExportedProgram,
        backend: str | Backend | None,
        origin: str,
        *,
        conditions: Sequence[str] | None = None,
        shared: bool = False,
    ) -> None:
        whole = _decomposed(exported)
        self._exported = whole
        self._signature = whole.graph_signature
        self._state = _state_of(whole)
        self._nodes = [node for node in whole.graph.nodes if node.op == "placeholder"]
        # Buffers that a run changes are inputs: as weights they would be read once.
        changed = {spec.target for spec in self._signature.output_specs if spec.kind in _STATES}
        self._sources = [
            spec.target if spec.kind in _WEIGHTS else None for spec in self._signature.input_specs
        ]
        static = [
            i for i, name in enumerate(self._sources) if name is not None and name not in changed
        ]
        inputs, self._constants = _inputs_of(self._signature.input_specs, self._nodes)
        self.module = TorchModule(self, exported)
        outputs = _output_names(self._user_outputs(), self.module.nesting)
        super().__init__(origin, backend, inputs, outputs)
        self._sizes = ExportedSizes(whole)
        noted: Sequence[str] = getattr(exported, "_guards_code", ())
        self._conditions = SizeConditions(exported, noted if conditions is None else conditions)
        self._lock = threading.RLock()  # held during runs that change the state of the program
        watch = partial(WeightWatch, contents=shared, layouts=shared)
        self._function = GraphFunction(
            whole.graph_module, self.backend, static, watch=watch, aliases=False
        )

    @override
    def _run(self, given: Mapping[str, torch.Tensor]) -> list[np.ndarray | None]:
        found = self.run([given[name] for name in self.inputs])
        return [None if value is None else _as_array(value) for value in found]

    @override
    def _program(self, given: Mapping[str, torch.Tensor]) -> Program:
        return self._function.program(*self._values([given[name] for name in self.inputs]))

    def run(self, tensors: Sequence[object]) -> list[object]:
        """Return the outputs for inputs in the order of `inputs`; updates the state."""
        with self._lock if self._has_state() else nullcontext():
            values = self._values(tensors)
            results = self._function(*values)
            return self._settled(results, tensors)

    def _has_state(self) -> bool:
        return any(spec.kind is not OutputKind.USER_OUTPUT for spec in self._signature.output_specs)

    def _settled(self, results: Sequence[object], tensors: Sequence[object]) -> list[object]:
        """Write back changed state and inputs; return the user outputs."""
        found: list[object] = []
        names = list(self.inputs)
        for spec, value in zip(self._signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                found.append(value)
            elif spec.kind in _STATES:
                self._state[str(spec.target)] = cast("torch.Tensor", value)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                target = cast("torch.Tensor", tensors[names.index(str(spec.target))])
                # Torch refuses to write in place to a leaf that requires gradients.
                with torch.no_grad():
                    target.copy_(cast("torch.Tensor", value))
            else:
                raise UnsupportedError(f"the program gives a {spec.kind.name.lower()}")
        return found

    def _values(self, tensors: Sequence[object]) -> list[object]:
        given = dict(zip(self.inputs, tensors, strict=True))
        self._sizes.check(self.inputs, cast("Mapping[str, torch.Tensor]", given))
        self._conditions.check(cast("Mapping[str, torch.Tensor]", given))
        values: list[object] = []
        for node, source in zip(self._nodes, self._sources, strict=True):
            if source is not None:
                values.append(self._state[source])
            else:
                values.append(given.get(node.name, self._constants.get(node.name)))
        return values

    def _user_outputs(self) -> list[Any]:
        return [
            spec for spec in self._signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
        ]

    def _user_nodes(self) -> list[str]:
        kinds = zip(self._signature.input_specs, self._nodes, strict=True)
        return [node.name for spec, node in kinds if spec.kind is InputKind.USER_INPUT]

    @override
    def argument(self, name: str, value: object) -> torch.Tensor:
        slot = self.inputs[name]
        tensor = value if isinstance(value, torch.Tensor) else _as_tensor(value, slot)
        # Before the device and the type: a sparse tensor has no memory that could be shared.
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise UsageError(
                f"the input {slot} got a tensor of the layout {layout}",
                hint="programs take dense tensors: call `.to_dense()` first",
            )
        if tensor.device.type != "cpu":
            raise UsageError(
                f"the input {slot} got a tensor on {tensor.device}", hint="call `.cpu()` first"
            )
        if dtype_of(tensor.dtype, f"the input {slot}") != slot.dtype:
            raise UsageError(f"the input {slot} got a tensor of {tensor.dtype}")
        if not slot.fits(tensor.shape):
            raise UsageError(f"the input {slot} got a tensor of shape {list(tensor.shape)}")
        return tensor


def _inputs_of(
    specs: Sequence[Any], nodes: Sequence[fx.Node]
) -> tuple[dict[str, ModelInput], dict[str, object]]:
    """Return the inputs that users pass, by name, and the values that the export fixed."""
    inputs: dict[str, ModelInput] = {}
    constants: dict[str, object] = {}
    for spec, node in zip(specs, nodes, strict=True):
        held, name = node.meta.get("val"), node.name
        if spec.kind in _WEIGHTS:
            continue
        if spec.kind is InputKind.TOKEN:
            raise UnsupportedError(
                f"the program runs `{_effect(node)}` for its effect, which is not converted",
                hint="under `torch.compile`, this part of a model runs in torch, and the rest here",
            )
        if spec.kind is not InputKind.USER_INPUT:
            raise UnsupportedError(f"the program takes a {spec.kind.name.lower()}")
        if isinstance(held, torch.Tensor):
            sizes = tuple(_size_name(size) for size in held.shape)
            inputs[name] = ModelInput(name, dtype_of(held.dtype, f"the input `{name}`"), sizes)
        elif isinstance(held, torch.SymInt):
            raise UnsupportedError(f"the input `{name}` is a number that the export left free")
        else:
            constants[name] = held
    return inputs, constants


def _effect(token: fx.Node) -> object:
    """Return the operator that a token puts in its order, such as the check of an inverse."""
    return next((user.args[1] for user in token.users if len(user.args) > 1), "an operator")


def _decomposed(exported: ExportedProgram) -> ExportedProgram:
    """Return the program decomposed to converted operators, without mutations inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own trees
        rules = {**table(), **checked_rules()}
        return cast("Any", _with_loops_apart(exported)).run_decompositions(rules)


def _with_loops_apart(exported: ExportedProgram) -> ExportedProgram:
    """Return the program with loops that take no tensor twice; the given one stays as it is."""
    if not loops_of(exported.graph):
        return exported
    copied = fx.GraphModule(exported.graph_module, copy.deepcopy(exported.graph))
    separate_operands(copied.graph)
    return cast("Any", exported)._update(copied, exported.graph_signature)


def _state_of(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return weights, buffers and constants by name."""
    found = {**exported.state_dict, **exported.constants}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _size_name(size: object) -> int | str:
    expression = expression_of(size)
    return int(cast("int", size)) if expression is None else str(expression)


def _output_names(specs: Sequence[Any], nesting: pytree.TreeSpec) -> tuple[str, ...]:
    """Return the name of each output: its keys in dicts, joined by dots, or its node's name."""
    nodes: list[str] = []
    for number, spec in enumerate(specs):
        # A constant has no node, and an output that is returned twice is one node.
        name = str(spec.arg.name or "")
        nodes.append(name if name and name not in nodes else f"output_{number}")
    try:
        paths = pytree.tree_flatten_with_path(pytree.tree_unflatten(nodes, nesting))[0]
    except ValueError:  # a class without keys for its fields
        return tuple(nodes)
    names = [
        ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        if any(isinstance(key, pytree.MappingKey) for key in path)
        else node
        for (path, _), node in zip(paths, nodes, strict=True)
    ]
    # Keys of different dicts may be equal: then the names of nodes, which are not.
    return tuple(names if len(set(names)) == len(names) else nodes)


def _as_tensor(value: object, slot: ModelInput) -> torch.Tensor:
    array = slot.array(value)
    # Torch warns about read-only memory, and would let the program write to it.
    return tensor_of(array if array.flags.writeable else array.copy())


def _as_array(value: object) -> np.ndarray:
    return array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def _ordered(spec: pytree.TreeSpec, kwargs: Mapping[str, object]) -> list[str]:
    """Return the names of keyword arguments in the order of the export."""
    order: list[str] = list(cast("Any", spec.child(1).context or []))
    # Python keeps the order of the call, the export has its own.
    return sorted(kwargs, key=lambda name: order.index(name) if name in order else len(order))


class TorchModule(torch.nn.Module):
    """An exported program as a torch module; tensors are nested as in the export."""

    def __init__(self, model: TorchModel, exported: ExportedProgram) -> None:
        super().__init__()
        self._model = model
        self._call = exported.module_call_graph[0].signature

    @property
    def nesting(self) -> pytree.TreeSpec:
        """How the outputs are nested."""
        assert self._call is not None
        return self._call.out_spec

    def forward(self, *args: object, **kwargs: object) -> object:
        """Return the outputs; UsageError for arguments with another nesting."""
        signature = self._call
        assert signature is not None
        given = (args, {name: kwargs[name] for name in _ordered(signature.in_spec, kwargs)})
        leaves, spec = pytree.tree_flatten(given)
        if spec != signature.in_spec:
            raise UsageError("the arguments are not nested as in the export")
        nodes = self._model._user_nodes()  # pyright: ignore[reportPrivateUsage]
        tensors = [
            self._model.argument(name, leaf)
            for name, leaf in zip(nodes, leaves, strict=True)
            if name in self._model.inputs
        ]
        return pytree.tree_unflatten(self._model.run(tensors), signature.out_spec)


# Loading of programs of torch.export from files and memory, and the list of converted operators.


_torch_logger = logging.getLogger("torch._subclasses.fake_tensor")
assert ops  # its modules register the converters


def load(
    program: ExportedProgram | str | os.PathLike[str], backend: str | Backend | None = None
) -> TorchModel:
    """Load an exported program, or the one in a `.pt2` file.

    `backend` is a name, a backend, or None for the default. Nothing in a file is unpickled or
    evaluated. Raises ModelError for files that are damaged or no such program; UnsupportedError for
    operators, types and conditions on sizes that are not converted.
    """
    if isinstance(program, ExportedProgram):
        return TorchModel(program, backend, "the exported program", shared=True)
    with _one_line(program):
        archive = read_archive(program)
        name, conditions = Path(program).name, archive.conditions
        return TorchModel(_deserialized(archive), backend, name, conditions=conditions)


def read_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Read the program in a `.pt2` file as torch has it, without conversion.

    Raises the errors of `load`.
    """
    with _one_line(path):
        return _deserialized(read_archive(path))


@contextmanager
def _one_line(path: str | os.PathLike[str]) -> Generator[None]:
    """Turn errors of torch about an inconsistent file into a ModelError."""
    _torch_logger.addFilter(_nothing)  # torch logs a traceback of every error it raises
    try:
        yield
    except (GptrsError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        line = ascii(" ".join(f"{type(error).__name__}: {error}".split())[:200])[1:-1]
        shown = ascii(Path(path).name)[1:-1]
        raise ModelError(f"`{shown}` cannot be read: {line}") from error
    finally:
        _torch_logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    del record
    return False


def _deserialized(archive: Archive) -> ExportedProgram:
    described = cast("Any", serialize)._dict_to_dataclass(schema.ExportedProgram, archive.program)
    reader = serialize.ExportedProgramDeserializer(None)
    return reader.deserialize(described, archive.weights, archive.constants, cast("Any", None))


def supported_operators() -> list[str]:
    """Return the ATen operators with a converter, in order.

    Operators that torch decomposes into these are converted, too.
    """
    return sorted({*converts, *of_complex})
