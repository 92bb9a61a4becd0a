"""Sources of elementwise kernels: a group of ops becomes one loop over strided operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_backend_numba.codegen.machine import (
    cast,
    cast_element,
    is_narrow,
    load,
    register,
    rounded,
    store,
    typed_pointer,
)
from gptrs_backend_numba.kernels import elementwise_tasks as sharing

_FLOAT = {
    "neg": "-{0}",
    "abs": "absolute({0})",
    "sign": "sign_{t}({0})",
    "exp": "exp_{t}({0})",
    "expm1": "expm1({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "sqrt": "square_root({0})",
    "rsqrt": "divide(convert(1.0, {r}), square_root({0}))",
    "reciprocal": "divide(convert(1.0, {r}), {0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "tanh": "tanh_{t}({0})",
    "logistic": "logistic_{t}({0})",
    "erf": "erf_{t}({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round_nearest_even": "rint({0})",
    "is_finite": "({0} - {0} == {0} - {0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "divide({0}, {1})",
    "rem": "float_remainder({0}, {1})",
    "pow": "power({0}, {1})",
    "maximum": "float_maximum({0}, {1})",
    "minimum": "float_minimum({0}, {1})",
    "select": "choose({0}, {1}, {2})",
    "clamp": "float_minimum(float_maximum({0}, {1}), {2})",
}
_INTEGER = {
    "neg": "negated({0})",
    "not": "complement({0})",
    "add": "wrap_add({0}, {1})",
    "sub": "wrap_sub({0}, {1})",
    "mul": "wrap_mul({0}, {1})",
    "div": "quotient({0}, {1})",
    "rem": "remainder({0}, {1})",
    "maximum": "integer_maximum({0}, {1})",
    "minimum": "integer_minimum({0}, {1})",
    "and": "bit_and({0}, {1})",
    "or": "bit_or({0}, {1})",
    "xor": "bit_xor({0}, {1})",
    "shift_left": "shift_left({0}, {1})",
    "shift_right_arithmetic": "shift_right_arithmetic({0}, {1})",
    "shift_right_logical": "shift_right_logical({0}, {1})",
    "select": "choose({0}, {1}, {2})",
    "clamp": "integer_minimum(integer_maximum({0}, {1}), {2})",
}
_COMPLEX = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "is_finite": "complex_is_finite({0})",
    "select": "choose({0}, {1}, {2})",
    **{
        name: f"{{r}}(complex_{name}(np.complex128({{0}})))"
        for name in ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos")
    },
    "tanh": "{r}(complex_tanh(np.complex128({0})))",
    "div": "{r}(complex_divide(np.complex128({0}), np.complex128({1})))",
    "pow": "{r}(complex_power(np.complex128({0}), np.complex128({1})))",
}
_FOUR_BITS = {"shift_right_logical": "shift_right_logical(bit_and({0}, {r}(15)), {1})"}
_TEMPLATES: dict[Kind, dict[str, str]] = {
    "float": _FLOAT,
    "complex": _COMPLEX,
    "signed": {
        **_INTEGER,
        "abs": "integer_maximum({0}, negated({0}))",
        "sign": "integer_minimum(integer_maximum({0}, {r}(-1)), {r}(1))",
    },
    "unsigned": {**_INTEGER, "abs": "{0}", "sign": "integer_minimum({0}, {r}(1))"},
    "bool": {
        "not": "complement({0})",
        "and": "bit_and({0}, {1})",
        "or": "bit_or({0}, {1})",
        "xor": "bit_xor({0}, {1})",
        "maximum": "bit_or({0}, {1})",
        "minimum": "bit_and({0}, {1})",
        "select": "choose({0}, {1}, {2})",
    },
}
COMPARISONS: dict[ops.Direction, str] = {
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ge": ">=",
    "gt": ">",
    "ne": "!=",
}
SMALL_POWERS = {"1": "{0}", "2": "{0} * {0}", "3": "{0} * {0} * {0}"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One op of a group: operands and result are register names, with their element types.

    `power` is the exponent of a `pow` whose exponent is a constant 1, 2 or 3, as text. `text` is
    source that computes the result, for an op that has no template here.
    """

    op: Op
    operands: tuple[tuple[str, DType], ...]
    result: tuple[str, DType]
    power: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a kernel to one tensor: its register, element type, and innermost stride class.

    `inner` is 0 or 1 where the innermost stride has that value, None for any other.
    """

    name: str
    dtype: DType
    inner: int | None
    fixed: bool = False
    """True if the tensor has one element, which is then loaded before the loops."""


def computes(op: type[Op], dtype: DType) -> bool:
    """Return whether `expression` knows the op on operands of type `dtype`."""
    return op in (ops.Cast, ops.Compare) or op.name in _TEMPLATES.get(dtype.kind, {})


def expression(operation: Operation) -> str:
    """Return the source that computes the result of one op from register names."""
    if operation.text is not None:
        return operation.text
    op = operation.op
    dtype = operation.operands[op.data_operand][1]
    if isinstance(op, ops.Cast):
        return cast(operation.operands[0][0], dtype, operation.result[1])
    value = _unrounded(operation)
    exact = op.name == "select" or operation.result[1] is not dtype
    return value if exact else rounded(dtype, value)


def element(operation: Operation) -> str:
    """Return the source of the value to assign to an element for the result of one op."""
    op, (_, target) = operation.op, operation.result
    if isinstance(op, ops.Cast) and operation.text is None:
        return cast_element(*operation.operands[0], target)
    if is_narrow(target) and operation.text is None:
        return store(target, _unrounded(operation))  # which rounds it
    return store(target, expression(operation))


def _unrounded(operation: Operation) -> str:
    op = operation.op
    names = [name for name, _ in operation.operands]
    dtype = operation.operands[op.data_operand][1]
    if isinstance(op, ops.Compare):
        sides = [f"convert({name}, np.uint8)" if dtype.is_bool else name for name in names]
        return f"{sides[0]} {COMPARISONS[op.direction]} {sides[1]}"
    template = _template(operation, dtype)
    return template.format(*names, t="f32" if is_narrow(dtype) else dtype, r=register(dtype))


def _template(operation: Operation, dtype: DType) -> str:
    if operation.power is not None:
        return SMALL_POWERS[operation.power]
    name = operation.op.name
    if dtype.bits == 4 and name in _FOUR_BITS:
        return _FOUR_BITS[name]
    return _TEMPLATES[dtype.kind][name]


def can_fail(op: Op, dtype: DType) -> bool:
    """Return whether the op has an execution error: integer division."""
    return isinstance(op, (ops.Div, ops.Rem)) and dtype.is_integer


@lru_cache(maxsize=1024)
def source(
    rank: int, inputs: tuple[Access, ...], output: Access, operations: tuple[Operation, ...]
) -> str:
    """A kernel of the addresses of the inputs, of the output, and of a geometry, `rank` >= 1 loops.

    The geometry has the sizes of the axes, then the strides of each input that is not fixed, then
    those of the output. Returns 1 when an integer was divided by zero.
    """
    fails = any(map(_divides, operations))
    lines = [f"def kernel({''.join(f'a_{x.name}, ' for x in inputs)}a_out, geometry):"]
    lines += ["    G = pointer(geometry, np.int64)"] + ["    failed = False"] * fails
    lines += [f"    n{axis} = G[{axis}]" for axis in range(rank)]
    lines += _loops(rank, inputs, output, operations, rank)
    lines.append("    return 1 if failed else 0" if fails else "    return 0")
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=1024)
def task_source(
    rank: int, inputs: tuple[Access, ...], output: Access, operations: tuple[Operation, ...]
) -> str:
    """Return the kernel of `source` as a task of `run_elementwise`, which computes one block.

    Before the strides, the geometry has room for the addresses of the inputs after the second, the
    sizes of the axes, and those of a block.
    """
    first = min(2, len(inputs))
    names = [f"a_{x.name}" for x in inputs[:first]] + ["unused"] * (2 - first)
    lines = [f"def kernel({', '.join(names)}, a_out, geometry, task):"]
    lines.append("    G = pointer(geometry, np.int64)")
    lines += [f"    a_{x.name} = G[{place}]" for place, x in enumerate(inputs[first:])]
    for axis in reversed(range(rank)):
        at = sharing.EXTRA + axis
        lines += [
            f"    count = (G[{at}] + G[{at + rank}] - 1) // G[{at + rank}]",
            f"    b{axis} = task % count * G[{at + rank}]",
            f"    n{axis} = min(G[{at}], b{axis} + G[{at + rank}])",
            "    task = task // count",
        ]
    at = sharing.EXTRA + 2 * rank
    lines += _loops(rank, inputs, output, operations, at, begin="b{}, ")
    return "\n".join([*lines, "    return 0"]) + "\n"


def _loops(
    rank: int,
    inputs: Sequence[Access],
    output: Access,
    operations: Sequence[Operation],
    at: int,
    begin: str = "",
) -> list[str]:
    """The loops, with what they need of the geometry from `at` on; `begin` formats with an axis."""
    lines: list[str] = []
    for access in (*inputs, output):
        lines.append(f"    p_{access.name} = {typed_pointer(f'a_{access.name}', access.dtype)}")
        if access.fixed:
            lines.append(f"    {access.name} = {load(access.dtype, f'p_{access.name}[0]')}")
            continue
        # numba spends time on what is not read, too.
        read = rank if access.inner is None else rank - 1
        lines += [f"    s_{access.name}{axis} = G[{at + axis}]" for axis in range(read)]
        at += rank
    for axis in range(rank - 1):
        walk = f"for i{axis} in range({begin.format(axis)}n{axis}):"
        lines.append("    " * (axis + 1) + walk)
    walk = f"for i in range({begin.format(rank - 1)}n{rank - 1}):"
    lines += ["    " * rank + line for line in _row(rank, inputs, output, operations, walk)]
    return lines


def _row(
    rank: int,
    inputs: Sequence[Access],
    output: Access,
    operations: Sequence[Operation],
    walk: str,
) -> list[str]:
    """The innermost loop, which begins with `walk`, and what is computed before it for each row."""
    walked = [access for access in (*inputs, output) if not access.fixed]
    lines: list[str] = []
    for access in walked:
        terms = [f"i{axis} * s_{access.name}{axis}" for axis in range(rank - 1)]
        lines += [f"o_{access.name} = {' + '.join(terms)}"] if terms else []
    for access in walked:
        if access.inner == 0 and access is not output:
            lines.append(f"{access.name} = {load(access.dtype, _element(access, rank))}")
    lines.append(walk)
    for access in inputs:
        if not access.fixed and access.inner != 0:
            lines.append(f"    {access.name} = {load(access.dtype, _element(access, rank))}")
    for operation in operations[:-1]:
        lines.append(f"    {operation.result[0]} = {expression(operation)}")
    lines += [f"    {_failure(operation)}" for operation in filter(_divides, operations)]
    lines.append(f"    {_element(output, rank)} = {element(operations[-1])}")
    return lines


def _divides(operation: Operation) -> bool:
    return can_fail(operation.op, operation.operands[-1][1])


def _failure(operation: Operation) -> str:
    name, dtype = operation.operands[-1]
    return f"failed |= {name} == {register(dtype)}(0)"


def _element(access: Access, rank: int) -> str:
    terms = [f"o_{access.name}"] * (rank > 1)
    if access.inner is None:
        terms.append(f"i * s_{access.name}{rank - 1}")
    elif access.inner == 1:
        terms.append("i")
    return f"p_{access.name}[{' + '.join(terms) or '0'}]"


def cast_operation(name: str, dtype: DType, result: str, target: DType) -> Operation:
    """Return the conversion of register `name`; to its own type it is a plain copy."""
    return Operation(ops.Cast(target), ((name, dtype),), (result, target))
