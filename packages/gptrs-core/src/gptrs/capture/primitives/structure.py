"""Ops of structure: layout, creation, indexing, control flow, calls and random bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal as OneOf

import numpy as np
import numpy.typing as npt

from gptrs.capture.region import Body, as_function, capture_body, outside_of
from gptrs.capture.tensor import Tensor, apply, apply_many
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue, FunctionName
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.ops import control_flow, creation, indexing, layout, random
from gptrs.ir.ops import custom_call as ops
from gptrs.ir.size_guards import normalize_axes, normalize_axis
from gptrs.ir.tensor_type import TensorType


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the elements under another shape; one dim may be -1."""
    resolved = layout.Reshape(tuple(shape)).infer(x.type).shape
    return apply(layout.Reshape(resolved), x)


def transpose(x: Tensor, permutation: Sequence[int]) -> Tensor:
    """Axis i of the result is axis permutation[i] of x."""
    normal = tuple(normalize_axis(axis, x.rank, "`transpose`") for axis in permutation)
    return apply(layout.Transpose(normal), x)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated to shape, aligned at the right."""
    return apply(layout.BroadcastTo(tuple(shape)), x)


def slice(
    x: Tensor, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int] | None = None
) -> Tensor:
    """Return a block of x at a fixed position."""
    steps = None if strides is None or set(strides) <= {1} else tuple(strides)
    return apply(layout.Slice(tuple(starts), tuple(sizes), steps), x)


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return the parts one after another along axis."""
    rank = parts[0].rank if parts else 0
    return apply(layout.Concat(normalize_axis(axis, rank, "`concat`")), *parts)


def pad(
    x: Tensor,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
    value: complex | None = None,
) -> Tensor:
    """x with value (default: 0) around and between its elements; one entry an axis, < 0 trims."""
    between = None if interior is None or set(interior) <= {0} else tuple(interior)
    fill = None if value is None else Scalar(Literal.full(value, x.dtype))
    return apply(layout.Pad(tuple(low), tuple(high), between, fill), x)


def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """x side by side with itself; one number of repeats an axis."""
    return apply(layout.Tile(tuple(repeats)), x)


def reverse(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the elements in reverse order along each of axes."""
    return apply(layout.Reverse(normalize_axes(axes, x.rank, "`reverse`")), x)


# Primitives that make a tensor from attributes only.


def constant(value: npt.ArrayLike, dtype: DType | None = None) -> Tensor:
    """Return a literal tensor; `dtype` is that of the array unless given."""
    array = np.asarray(value, dtype=dtype.numpy if dtype else None)
    return apply(creation.Constant(Literal.of(array)))


def iota(shape: Sequence[int], axis: int, dtype: DType) -> Tensor:
    """Each element is its index along axis."""
    normal = normalize_axis(axis, len(shape), "`iota`")
    return apply(creation.Iota(tuple(shape), normal, dtype))


# Primitives that read or write at positions given by another tensor.


ScatterKind = OneOf["add", "mul", "max", "min", "replace"]
SegmentKind = OneOf["sum", "prod", "max", "min"]


def take(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x by number."""
    return apply(indexing.Take(), x, indices)


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Elements of x by index along axis."""
    return apply(indexing.Gather(normalize_axis(axis, x.rank, "`gather`")), x, indices)


def dynamic_slice(x: Tensor, starts: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a block of x at a computed position, clamped into x."""
    return apply(indexing.DynamicSlice(tuple(sizes)), x, starts)


def dynamic_update_slice(x: Tensor, update: Tensor, starts: Tensor) -> Tensor:
    """x with the block at a computed position replaced by update."""
    return apply(indexing.DynamicUpdateSlice(), x, update, starts)


def scatter_reduce(
    x: Tensor, indices: Tensor, updates: Tensor, axis: int, kind: ScatterKind
) -> Tensor:
    """x with updates combined into the elements that indices name along axis."""
    normal = normalize_axis(axis, x.rank, "`scatter_reduce`")
    return apply(indexing.ScatterReduce(normal, kind), x, indices, updates)


def segment_reduce(x: Tensor, segment_ids: Tensor, kind: SegmentKind, num_segments: int) -> Tensor:
    """Return the rows of x with the same id combined."""
    return apply(indexing.SegmentReduce(kind, num_segments), x, segment_ids)


# Primitives that capture Python functions as branches, loops and calls of the program.
#
# Each function is called once, with placeholders. Closed-over tensors become additional operands: a
# branch may read them, a loop carries them unchanged.


def cond(predicate: Tensor, then: Body, otherwise: Body, *operands: Tensor) -> tuple[Tensor, ...]:
    """Return `then(*operands)` if the scalar `predicate` is true, else `otherwise(*operands)`."""
    types = [operand.type for operand in operands]
    bodies = [capture_body("then", then, types), capture_body("else", otherwise, types)]
    outside = outside_of(bodies)
    regions = [captured.region(outside) for captured in bodies]
    inputs = (predicate, *operands, *map(Tensor, outside))
    functions = [function for captured in bodies for function in captured.functions]
    return apply_many(control_flow.Cond(), *inputs, regions=regions, functions=functions)


def while_(condition: Body, body: Body, *state: Tensor) -> tuple[Tensor, ...]:
    """Apply `body` to the state while `condition` holds for it; return the last state."""
    types = [value.type for value in state]
    test = capture_body("condition", condition, types)
    step = capture_body("body", body, types)
    outside = outside_of([test, step])
    regions = [test.region(outside), step.region(outside, returned=outside)]
    results = apply_many(
        control_flow.While(),
        *state,
        *map(Tensor, outside),
        regions=regions,
        functions=[*test.functions, *step.functions],
    )
    return results[: len(state)]


def scan(
    body: Body,
    carried: Sequence[Tensor],
    scanned: Sequence[Tensor],
    length: int | None = None,
    reverse: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the last carried values, and the other results of `body` stacked on a leading axis."""
    steps = [x.type.with_shape(x.shape[1:]) for x in scanned]
    captured = capture_body("body", body, [*(x.type for x in carried), *steps])
    count = len(carried)
    region = captured.region(captured.outside, after=count, returned=captured.outside)
    op = control_flow.Scan(count + len(captured.outside), length, reverse)
    inputs = (*carried, *map(Tensor, captured.outside), *scanned)
    results = apply_many(op, *inputs, regions=[region], functions=captured.functions)
    return results[:count], results[op.carry_count :]


def call(function: Body, *operands: Tensor, name: str = "function") -> tuple[Tensor, ...]:
    """Call `function` as a function of the program, which is not inlined at capture."""
    captured = capture_body(name, function, [operand.type for operand in operands])
    made = as_function(captured)
    inputs = (*operands, *map(Tensor, captured.outside))
    op = control_flow.Call(FunctionName(made.name))
    return apply_many(op, *inputs, functions=[*captured.functions, made])


# Primitives for named functions, and for kernels of a backend.


def composite(
    kind: str,
    decomposition: Body,
    operands: Mapping[str, Tensor],
    attrs: Mapping[str, DictionaryValue] | None = None,
) -> tuple[Tensor, ...]:
    """Compute `decomposition` of the operands, in their order; a backend may claim the `kind`."""
    given = [operand.type for operand in operands.values()]
    captured = capture_body(kind, decomposition, given)
    if captured.outside:
        raise UsageError(
            f"the decomposition of `{kind}` reads a `{captured.outside[0].type}` from outside",
            hint="make it an operand of the composite, so that a kernel gets it too",
        )
    made = as_function(captured)
    names, values = " ".join(operands), Dictionary.of(attrs)
    op = ops.Composite(kind, FunctionName(made.name), names, values)
    return apply_many(op, *operands.values(), functions=[*captured.functions, made])


def custom_call(
    target: str,
    results: Sequence[TensorType],
    *operands: Tensor,
    attrs: Mapping[str, DictionaryValue] | None = None,
) -> tuple[Tensor, ...]:
    """Call the kernel `target`, which only the backend that provides it can run."""
    return apply_many(ops.CustomCall(target, tuple(results), Dictionary.of(attrs)), *operands)


# Primitives that make random numbers; `seed` is ui64[2], a key and a counter.


def rng_uniform(seed: Tensor, shape: Sequence[int], dtype: DType = dtypes.f32) -> Tensor:
    """Numbers of [0, 1) for floats, all values for `ui32` and `ui64`."""
    return apply(random.RngUniform(tuple(shape), dtype), seed)


def rng_normal(seed: Tensor, shape: Sequence[int], dtype: DType = dtypes.f32) -> Tensor:
    """Normally distributed floats of mean 0 and variance 1."""
    return apply(random.RngNormal(tuple(shape), dtype), seed)
