"""Functions of 8-bit codes with codes as results become tables: GELU of a quantized network.

`quantize(f(dequantize(x)))` has 256 results, whatever f is, and so has a chain of such functions
that meet again: a table spares all but one pass over the codes, and all error functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.ir.attributes import Dictionary
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.kernels.elementwise import can_fail
from gptrs_backend_numba.lowering.code_table import CODE_TABLE
from gptrs_backend_numba.lowering.integer_products import BYTES
from gptrs_backend_numba.passes.elementwise_groups import ELEMENTWISE

_SLOW = (
    elementwise.Exp, elementwise.Expm1, elementwise.Log, elementwise.Log1p, elementwise.Sin,
    elementwise.Cos, elementwise.Tanh, elementwise.Logistic, elementwise.Erf, elementwise.Pow,
)  # fmt: skip
_STEPS_OF_SLOW = 12
"""The simple ops that take as long as one of those."""
_LEAST_STEPS = 16
"""Ops from which a table is faster: to quantize other numbers again, nine ops, is as fast."""
_LEAST_CODES = 1 << 10
"""Codes from which a table is worth it that a program may have to compute in each run."""


def use_code_tables(region: Region) -> Region:
    """`quantize(f(dequantize(x))) -> table[x]`, for known scales and zero points."""
    if not any(_is_code(made.op, made.results[0].type) for made in region.instructions):
        return region
    rewriter = Rewriter(region)
    nodes = list(rewriter)
    sources = _sources(region.params, nodes, rewriter)
    order = {node: at for at, node in enumerate(nodes)}
    for node in reversed(nodes):
        if node.erased or not _is_code(node.op, node.results[0].type):
            continue
        (result,) = node.results
        source = sources.get(result)
        if source is None or source is result:
            continue
        steps = sorted(_steps(node, source, rewriter), key=order.__getitem__)
        cost = sum(_STEPS_OF_SLOW if isinstance(each.op, _SLOW) else 1 for each in steps)
        # A table would fail for codes that no tensor has.
        safe = not any(can_fail(each.op, each.results[0].type.dtype) for each in steps)
        if safe and cost >= _LEAST_STEPS:
            _put(steps, source, node, rewriter)
    return rewriter.region()


CODE_TABLES = RegionPass("numba-code-tables", use_code_tables)
"""After products have taken in what follows them."""


def _is_code(op: Op, type_: TensorType) -> bool:
    enough = not type_.is_static or type_.size >= _LEAST_CODES
    return isinstance(op, Cast) and type_.dtype in BYTES and enough


def _sources(
    params: Sequence[Value], nodes: Sequence[InstructionNode], rewriter: Rewriter
) -> dict[Value, Value]:
    """Return the codes that values depend on element by element, where those are all of one tensor.

    Codes of several tensors are a source themselves.
    """
    sources = {each: each for each in params if each.type.dtype in BYTES}
    for node in nodes:
        for result in node.results:
            found = {sources.get(each) for each in node.operands if not _number(each, rewriter)}
            alike = isinstance(node.op, ELEMENTWISE) and len(found) == 1
            source = found.pop() if alike else None
            if source is not None and source.type.shape == result.type.shape:
                sources[result] = source
            elif result.type.dtype in BYTES:
                sources[result] = result
    return sources


def _number(value: Value, rewriter: Rewriter) -> Literal | None:
    """Return a constant of one element, which may be repeated over a tensor."""
    node = rewriter.definition(value)
    if node is not None and isinstance(node.op, BroadcastTo):
        node = rewriter.definition(node.operands[0])
    if node is None or not isinstance(node.op, Constant) or node.results[0].type.size != 1:
        return None
    return node.op.value


def _steps(root: InstructionNode, source: Value, rewriter: Rewriter) -> list[InstructionNode]:
    """Return the instructions between a source and a result."""
    found: dict[InstructionNode, None] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found[node] = None
        for operand in node.operands:
            made = rewriter.definition(operand)
            if operand is not source and made is not None and not _number(operand, rewriter):
                pending.append(made)
    return [*found]


def _put(
    steps: Sequence[InstructionNode], source: Value, root: InstructionNode, rewriter: Rewriter
) -> None:
    """Insert the same steps of all 256 codes, and the lookup."""
    code = source.type.dtype
    every = Literal.of(np.arange(256, dtype=np.uint8).view(code.numpy))
    known = {source: rewriter.insert(Constant(every), [], root).results[0]}
    for step in steps:
        for operand in step.operands:
            number = _number(operand, rewriter)
            if operand not in known and number is not None:
                one = Literal.full(number.array.reshape(()).item(), number.type.dtype)
                made = rewriter.insert(Constant(one), [], root)
                known[operand] = rewriter.insert(BroadcastTo((256,)), made.results, root).results[0]
        operands = [known[operand] for operand in step.operands]
        known[step.results[0]] = rewriter.insert(step.op, operands, root).results[0]
    (result,) = root.results
    op = CustomCall(CODE_TABLE, (result.type,), Dictionary.of({}))
    made = rewriter.insert(op, [source, known[result]], root)
    rewriter.replace(result, made.results[0])
    rewriter.erase_dead(root)
