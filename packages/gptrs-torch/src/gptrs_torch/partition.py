"""Partition of graphs: converted parts run on a backend, the rest is left to torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import torch
from torch import fx
from torch._decomp import decompositions
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gptrs.api import GptrsError
from gptrs.api.backends import Backend
from gptrs_torch.conversion import CONTROL_FLOW, NUMERIC, NotConvertedError, unsupported_nodes
from gptrs_torch.graph import GraphFunction
from gptrs_torch.weights import Watch, WeightWatch

_logger = logging.getLogger("gptrs")
_said: set[str] = set()
MAX_PARTS: Final = 100
"""Most operators of a graph that are refused, one at a time, and left to torch."""


class PartitionedGraph:
    """A graph module that falls back to torch operator by operator.

    The whole graph is one program if every operator is converted. Refusals of converters show when
    the first call converts the graph; then it is partitioned again. A call that fails on a backend
    is repeated by torch, so that callers get torch's own error for an index out of range.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        backend: Backend,
        static: Collection[int] = (),
        *,
        watch: Watch = WeightWatch,
    ) -> None:
        self._module = module
        self._backend = backend
        self._watch = watch
        self._static = static
        self._refused = {node.name: why for node, why in unsupported_nodes(module)}
        self._runs: Any = None
        self._whole: GraphFunction | None = None
        """The whole module, if it is one program."""
        self._has_failed = False
        self._lock = threading.RLock()

    def __call__(self, *values: object) -> Sequence[object]:
        """Return the outputs for the values of all placeholders."""
        runs = self._runs
        try:
            if runs is None:
                with self._lock:
                    return self._first(values)
            return runs(*values)
        except GptrsError as error:
            return self._by_torch(values, error)

    def boxed(self) -> Callable[[list[object]], Sequence[object]]:
        """Return the graph as a function of one list, the calling convention of AOTAutograd."""

        def call(values: list[object]) -> Sequence[object]:
            whole = self._whole
            if whole is None:
                return self(*values)
            try:
                return whole(*values)
            except GptrsError as error:
                return self._by_torch(values, error)

        cast("Any", call)._boxed_call = True
        return call

    def _first(self, values: Sequence[object]) -> Sequence[object]:
        """Convert the graph, cut it where an operator is refused, and run it."""
        for _ in range(MAX_PARTS):
            runs = self._cut()
            try:
                found = runs(*values)
            except NotConvertedError as error:
                if error.node.name in self._refused:
                    break
                self._refused[error.node.name] = error.message
                continue
            self._runs = runs
            self._whole = runs if isinstance(runs, GraphFunction) else None
            return found
        self._runs = self._module
        return self._module(*values)

    def _by_torch(self, values: Sequence[object], error: GptrsError) -> Sequence[object]:
        """Return what torch gives for a call that failed; its error is the one of eager mode."""
        found = self._module(*values)
        if not self._has_failed:
            self._has_failed = True
            _logger.warning("%s; torch runs this call, and others that fail", error.message)
        return found

    def _function(self, module: fx.GraphModule, static: Collection[int]) -> GraphFunction:
        return GraphFunction(module, self._backend, static, watch=self._watch)

    def _cut(self) -> Any:
        if not self._refused and _is_convertible(self._module):
            return self._function(self._module, self._static)
        for why in self._refused.values():
            _say_once(why)
        support = _Convertible(self._refused)
        copied = fx.GraphModule(self._module, _copied(self._module.graph))
        parts = CapabilityBasedPartitioner(copied, support, allows_single_node_partition=True)
        fused = parts.fuse_partitions(parts.propose_partitions())
        weights = _names_at(self._module, self._static)
        for node in fused.graph.nodes:
            if node.op == "call_module" and isinstance(node.target, str):
                inner = cast("fx.GraphModule", fused.get_submodule(node.target))
                self._replace(fused, node, inner, weights)
        return fused

    def _replace(
        self, fused: fx.GraphModule, node: fx.Node, inner: fx.GraphModule, weights: set[str]
    ) -> None:
        """Replace a part of the graph by a function of the backend."""
        static = [i for i, each in enumerate(node.args) if cast("fx.Node", each).name in weights]
        given = zip(node.args, _placeholders(inner), strict=True)
        for outer, placeholder in given:
            placeholder.meta.setdefault("val", cast("fx.Node", outer).meta.get("val"))
        single = not isinstance(_result_of(inner), (tuple, list))
        fused.delete_submodule(cast("str", node.target))
        part = _Part(self._function(inner, static), single=single)
        fused.add_module(cast("str", node.target), part)


class _Part(torch.nn.Module):
    """A part of a graph as a submodule."""

    def __init__(self, function: GraphFunction, *, single: bool) -> None:
        super().__init__()
        self._function = function
        self._single = single

    def forward(self, *values: object) -> object:
        """Return the outputs of the part; a single one is not nested."""
        found = self._function(*values)
        return found[0] if self._single else tuple(found)


class _Convertible(OperatorSupportBase):
    """Tells the partitioner which nodes are converted."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        """Return whether a node is an operator on tensors that was not refused."""
        del submodules
        if node.op != "call_function" or node.name in self._refused or node.target in NUMERIC:
            return (
                node.op == "call_function"
                and node.name not in self._refused
                and (_gives_tensor(node))
            )
        # Its graphs are attributes of the whole graph, which a part has not.
        is_whole = node.target in CONTROL_FLOW
        return not is_whole and _gives_tensors(node)


def _gives_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _gives_tensors(node: fx.Node) -> bool:
    held = cast("object", node.meta.get("val"))
    several = cast("list[object]", held) if isinstance(held, (tuple, list)) else [held]
    return all(isinstance(each, torch.Tensor) for each in several)


def _is_convertible(module: fx.GraphModule) -> bool:
    """Return whether anything is computed: a graph without operators is left to torch."""
    return any(node.op == "call_function" for node in module.graph.nodes)


def _say_once(why: str) -> None:
    if why not in _said:
        _said.add(why)
        _logger.warning("%s; torch runs this part of the graph", why)


def _copied(graph: fx.Graph) -> fx.Graph:
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    output = made.graph_copy(graph, copies)
    made.output(output)
    return made


def _names_at(module: fx.GraphModule, positions: Collection[int]) -> set[str]:
    inputs = _placeholders(module)
    return {inputs[position].name for position in positions}


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _result_of(module: fx.GraphModule) -> object:
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    return output.args[0]


# Layers as separate operators, so that torch does not decompose them before conversion.
#
# `gptrs::lstm` is `aten::lstm.input` under a name that torch neither unrolls step by step nor
# flattens, as it does with `linear`. Without a converter, torch's own operator runs.


_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_WEIGHTS: Final = 2
"""The position of a recurrent layer's weights, or of the state for packed sequences."""
_LINEAR: Final = "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
_RESIZE_BYTES: Final = (
    "resize_bytes(Tensor input, SymInt[]? size, float[]? factors, str mode, bool align,"
    " bool recompute) -> Tensor"
)
_SCHEMA: Final = (
    "{}(Tensor input, {} hx, Tensor[] params, bool has_biases, int num_layers, float dropout,"
    " bool train, bool bidirectional, bool batch_first) -> (Tensor, {})"
)
_torch: Any = torch
_BY_NAME: Final = (
    _torch.amp.autocast_mode._enter_autocast,
    _torch._functorch.predispatch._enter_dual_level,
)
"""Inside of them, operators of torch mean something else, and those of `gptrs` do not."""
_library: Any = torch.library.Library("gptrs", "DEF")


def rules() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of recurrent layers into these operators."""
    return {getattr(torch.ops.aten, kind).input: partial(_kept, kind) for kind in _RECURRENT}


def keep_layers(module: fx.GraphModule) -> None:
    """Replace layers in a Dynamo graph by these operators.

    Leaves out layers on packed sequences, and all layers under autocast, which picks types by name,
    and in levels of forward differentiation.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    if torch.is_autocast_enabled("cpu") or any(node.target in _BY_NAME for node in nodes):
        return
    kinds: dict[object, str] = {getattr(torch, kind): kind for kind in _RECURRENT}
    for node in nodes:
        kind = kinds.get(node.target)
        if node.target is torch.nn.functional.linear and not _has_parts(node):
            node.target = torch.ops.gptrs.linear.default
        elif kind is not None and isinstance(node.args[_WEIGHTS], (list, tuple)):
            node.target = getattr(torch.ops.gptrs, kind).default
    module.recompile()


_LOOPS: Final = (torch.ops.higher_order.while_loop, torch.ops.higher_order.scan)


def loops_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the loops of a graph."""
    return [node for node in graph.nodes if node.target in _LOOPS]


def separate_operands(graph: fx.Graph) -> None:
    """Give loops copies of their operands: torch refuses to trace loops that take one twice.

    In a program, a copy is its source.
    """

    def copied(given: fx.Node) -> fx.Node:
        held = given.meta.get("val", given.meta.get("example_value"))
        if not isinstance(held, torch.Tensor):
            return given
        made = graph.call_function(torch.ops.aten.clone.default, (given,))
        made.meta = given.meta.copy()
        return made

    for node in loops_of(graph):
        with graph.inserting_before(node):
            node.args = tuple(
                fx.map_arg(each, copied) if isinstance(each, (list, tuple)) else each
                for each in node.args
            )


def _has_parts(node: fx.Node) -> bool:
    """Return whether an argument is of a class of tensors with code of its own, as torchao's."""
    held: list[object] = [each.meta.get("example_value") for each in node.all_input_nodes]
    return any(map(is_traceable_wrapper_subclass, held))


def _kept(kind: str, *arguments: object) -> object:
    return getattr(torch.ops.gptrs, kind)(*arguments)


def _run(kind: str, *arguments: object) -> object:
    return getattr(torch, kind)(*arguments)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
    return torch.nn.functional.linear(x, weight, bias)


def _shapes(
    x: torch.Tensor,
    state: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return outputs and last states without elements."""
    del params, has_biases, num_layers, dropout, train, batch_first
    states = [state] if isinstance(state, torch.Tensor) else list(state)
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    made = x.new_empty([*x.shape[:-1], width])
    return (made, *(torch.empty_like(each) for each in states))


def _bytes_resized(
    x: torch.Tensor,
    size: Sequence[int] | None,
    factors: Sequence[float] | None,
    mode: str,
    align: bool,
    recompute: bool,
) -> object:
    """Return what torch makes of images of bytes, which it resizes in whole numbers."""
    return torch.nn.functional.interpolate(
        x,
        size,
        None if factors is None else list(factors),
        mode,
        align_corners=align,
        recompute_scale_factor=recompute or None,
    )


def _bytes_shape(
    x: torch.Tensor, size: Sequence[int] | None, factors: Sequence[float] | None, *rest: object
) -> torch.Tensor:
    del rest
    found = cast("Any", decompositions).upsample_compute_output_size(x.size(), size, factors)
    return x.new_empty([*x.shape[:2], *found])


def _define(kind: str, schema: str, run: Callable[..., object], shapes: Callable[..., Any]) -> None:
    """Define an operator; where torch differentiates or batches it, it is torch's own, by `run`."""
    _library.define(schema)
    _library.impl(kind, run, "CompositeExplicitAutograd")
    _library.impl(kind, partial(_differentiable, kind, run), "Autograd")
    _library.impl(kind, run, "FuncTorchBatched")
    cast("Any", torch.library).register_fake(f"gptrs::{kind}", shapes, lib=_library)


def _differentiable(kind: str, run: Callable[..., object], *arguments: Any) -> object:
    tensors = [each for each in pytree.tree_leaves(arguments) if isinstance(each, torch.Tensor)]
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    if wanted or _torch._C._functorch.peek_interpreter_stack() is not None:
        return run(*arguments)
    with _torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.gptrs, kind)(*arguments)


_define("linear", _LINEAR, _linear, _linear)
_define("resize_bytes", _RESIZE_BYTES, _bytes_resized, _bytes_shape)
for _kind in _RECURRENT:
    _types = ("Tensor[]", "Tensor, Tensor") if _kind == "lstm" else ("Tensor", "Tensor")
    _define(_kind, _SCHEMA.format(_kind, *_types), partial(_run, _kind), _shapes)
