"""Branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from gptrs.api import GptrsError
from gptrs.api.importers import is_number
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Bound, Items, Node, Value, as_tensor, converts, numbers
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.ops.loop_counts import iterations
from gptrs_onnx.search import NeedsKnownError

UNROLLED: Final = 32
"""Most iterations of a loop that become copies of its body, so that sizes may differ."""
UNROLLED_LISTS: Final = 1024
"""Most iterations of one that only copies of the body can do.

It carries a sequence, or collects results until data ends it.
"""


@converts("If")
def branch(
    node: Node, condition: Value, *, then_branch: ir.Graph, else_branch: ir.Graph
) -> list[Bound] | tuple[Tensor, ...]:
    """Return the results of one of two graphs, of equal types unless it is known which.

    A graph that does not fit the sizes may be the one that is never taken: the condition is asked.
    """
    conversion = node.conversion
    if not isinstance(condition, Tensor):
        return conversion.run(then_branch if condition.reshape(-1)[0] else else_branch)
    first, second = (_plain(conversion.run, graph) for graph in (then_branch, else_branch))
    try:
        return primitives.cond(F.reshape(condition, []), first, second)
    except GptrsError as error:
        origins = conversion.origins_of(node.source.inputs)
        if not origins:
            return conversion.run(then_branch if node.known(0).reshape(-1)[0] else else_branch)
        asked = node.source.inputs[0]
        raise NeedsKnownError(origins, f"the condition of {node}", asked) from error


def _plain(
    run: Callable[[ir.Graph], list[Bound]], graph: ir.Graph
) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(map(as_tensor, run(graph)))


@converts("Loop")
def loop(
    node: Node, count: Value | None, condition: Value | None, *carried: Bound | None, body: ir.Graph
) -> Sequence[Bound | None]:
    """Return the last carried values of a loop, and the stacked results of its iterations."""
    states = list(carried)
    most = None if count is None else numbers(node.known(0))[0]
    going = np.asarray(True) if condition is None else condition
    asked = node.source.inputs[1] if len(node.source.inputs) > 1 else None
    if isinstance(going, Tensor) and asked is not None:
        settled = node.conversion.from_sizes(asked, f"the condition of {node}")
        going = going if settled is None else settled
    if not isinstance(going, Tensor) and not bool(going.reshape(-1)[0]):
        most = 0
    number = None if isinstance(going, Tensor) else iterations(node, body, states, most)
    if number is not None:
        most, going = number, None
    has_lists = any(each is None or isinstance(each, Items) for each in states)
    is_few = going is None and most is not None and is_number(most) and most <= UNROLLED
    # The program has no lists, and sizes are no data: how many results a loop collects must be
    # known. Copies of the body may have sizes of their own, which states of a loop may not; beyond
    # a few, compiling them costs more than it gains.
    scanned = len(body.outputs) - 1 - len(states)
    if has_lists or is_few or (scanned and going is not None):
        return _unrolled(node, body, most, going, states)
    try:
        if going is not None:
            return _while(node, body, most, going, states)
        assert most is not None, "a loop without a condition has a limit"
        return _repeated(node, body, most, states)
    except GptrsError as error:
        if most is not None and (not is_number(most) or most > UNROLLED_LISTS):
            raise
        try:
            return _unrolled(node, body, most, going, states)
        except NeedsKnownError as need:
            raise need from error
        except GptrsError:
            raise error from None


def _unrolled(
    node: Node,
    body: ir.Graph,
    most: int | None,
    going: Value | None,
    states: list[Bound | None],
) -> list[Bound | None]:
    """Return the results of a loop whose iterations are known, as copies of its body.

    Without a condition, it has `most` iterations.
    """
    scanned = len(body.outputs) - 1 - len(states)
    collected: list[list[Tensor]] = [[] for _ in range(scanned)]
    asked = node.source.inputs[1] if len(node.source.inputs) > 1 else None
    for iteration in range(UNROLLED_LISTS + 1 if most is None else most):
        if iteration == UNROLLED_LISTS:
            kind = "collects results" if scanned else "carries a list"
            node.refuse(f"{kind} through more than {UNROLLED_LISTS} iterations")
        if isinstance(going, Tensor):
            assert asked is not None, "it has been computed"
            going = node.conversion.known(asked, f"the condition of {node}")
        if going is not None and not bool(going.reshape(-1)[0]):
            break
        holds = np.asarray(True) if going is None else going
        results = _iteration(node, body, np.asarray(iteration, np.int64), holds, states)
        if going is not None:
            going, asked = _condition(results[0]), body.outputs[0]
        states = list(results[1 : 1 + len(states)])
        for each, value in zip(collected, results[1 + len(states) :], strict=True):
            each.append(as_tensor(value))
    if scanned and not all(collected):
        # No iteration runs, but one tells the shapes of results.
        results = _iteration(node, body, np.asarray(0, np.int64), np.asarray(True), states)
        shaped = map(as_tensor, results[1 + len(states) :])
        return [*states, *(F.zeros([0, *each.shape], each.dtype) for each in shaped)]
    return [*states, *(F.stack(each, 0) for each in collected)]


def _repeated(
    node: Node, body: ir.Graph, count: int, states: Sequence[Bound | None]
) -> list[Bound]:
    """Return the results of a loop that the program runs `count` times."""

    def step(*values: Tensor) -> tuple[Tensor, ...]:
        *carried, number = values
        results = _iteration(node, body, number, np.asarray(True), carried)
        return tuple(map(as_tensor, results[1:]))

    numbers = F.arange(count, dtype=dtypes.si64)
    last, stacked = primitives.scan(step, _carried(node, states), [numbers])
    return [*last, *stacked]


def _carried(node: Node, states: Sequence[Bound | None]) -> list[Tensor]:
    """Return the states of a loop that the program runs, as tensors."""
    carried = [as_tensor(each) for each in states if each is not None]
    if len(carried) < len(states):
        node.refuse("carries an optional that is absent at its start")
    return carried


def _condition(found: Bound) -> Value:
    return found if isinstance(found, np.ndarray) else as_tensor(found)


def _iteration(
    node: Node, body: ir.Graph, number: Value, going: Value, states: Sequence[Bound | None]
) -> list[Bound]:
    conversion = node.conversion
    origins = conversion.origins_of(node.source.inputs)
    for formal, actual in zip(body.inputs, (number, going, *states), strict=True):
        is_known = isinstance(actual, np.ndarray)
        conversion.bind(formal, actual, frozenset() if is_known else origins)
    return conversion.run(body, repeats=isinstance(number, Tensor))


def _while(
    node: Node, body: ir.Graph, most: int | None, going: Value, states: Sequence[Bound | None]
) -> list[Bound]:
    """Return the last carried values of a loop that the program runs."""
    going = F.reshape(as_tensor(going), [])
    start = [primitives.constant(np.int64(0)), going, *_carried(node, states)]

    def goes_on(number: Tensor, holds: Tensor, *_: Tensor) -> tuple[Tensor]:
        return (holds if most is None else F.logical_and(holds, number < most),)

    def step(number: Tensor, holds: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        results = _iteration(node, body, number, holds, values)
        following, *rest = map(as_tensor, results)
        return (number + 1, F.reshape(following, []), *rest)

    return list(primitives.while_(goes_on, step, *start)[2:])


@converts("Scan")
def scan(node: Node, *operands: Tensor, body: ir.Graph, num_scan_inputs: int) -> list[Tensor]:
    """Return the last states of a loop over slices, and the stacked results of its iterations."""
    if node.version < 9:
        return _batched_scan(node, body, num_scan_inputs, *operands)
    count = num_scan_inputs
    states, sequences = operands[: len(operands) - count], operands[len(operands) - count :]
    axes = node.integers("scan_input_axes", [0] * count)
    directions = node.integers("scan_input_directions", [0] * count)
    turned = [
        F.flip(_first(x, axis), 0) if back else _first(x, axis)
        for x, axis, back in zip(sequences, axes, directions, strict=True)
    ]
    return _scanned(node, body, states, turned)


def _scanned(
    node: Node, body: ir.Graph, states: Sequence[Tensor], sequences: Sequence[Tensor]
) -> list[Tensor]:
    conversion = node.conversion
    origins = conversion.origins_of(node.source.inputs)

    def step(*values: Tensor) -> tuple[Tensor, ...]:
        for formal, actual in zip(body.inputs, values, strict=True):
            conversion.bind(formal, actual, origins)
        return tuple(map(as_tensor, conversion.run(body, repeats=True)))

    last, stacked = primitives.scan(step, list(states), list(sequences))
    outputs = len(stacked)
    axes = node.integers("scan_output_axes", [0] * outputs)
    directions = node.integers("scan_output_directions", [0] * outputs)
    made = [
        _placed(F.flip(x, 0) if back else x, axis)
        for x, axis, back in zip(stacked, axes, directions, strict=True)
    ]
    return [*last, *made]


def _batched_scan(
    node: Node, body: ir.Graph, count: int, lengths: Tensor | None, *operands: Tensor
) -> list[Tensor]:
    """Return a scan of opset 8: one for each example of a batch, which come one after another."""
    if lengths is not None:
        node.refuse("has a length for each sequence")
    batch = operands[0].shape[0]
    results: list[list[Tensor]] = []
    for place in range(batch):
        own = [F.squeeze(F.slice_axis(x, 0, place, 1), 0) for x in operands]
        states, sequences = own[: len(own) - count], own[len(own) - count :]
        results.append(_scanned(node, body, states, sequences))
    return [F.stack(list(parts), 0) for parts in zip(*results, strict=True)]


def _first(x: Tensor, axis: int) -> Tensor:
    axis %= x.rank
    return F.transpose(x, [axis, *(i for i in range(x.rank) if i != axis)])


def _placed(x: Tensor, axis: int) -> Tensor:
    """Return x with its first axis at another place."""
    order = list(range(1, x.rank))
    order.insert(axis % x.rank, 0)
    return F.transpose(x, order)


# Values that may be absent: which they are is known when the graph is converted.


@converts("OptionalHasElement")
def has_element(x: Bound | None = None) -> Value:
    """Return whether there is a value."""
    return np.asarray(x is not None)


@converts("Optional", "OptionalGetElement")
def element(node: Node, x: Bound | None = None) -> Bound | None:
    """Return the value; ModelError where one is needed and absent."""
    if x is None and node.op_type == "OptionalGetElement":
        node.malformed("needs a value that is absent")
    return x
