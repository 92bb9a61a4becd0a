"""Fusions of linear layers with bias, activation and residual into one matrix product."""

from __future__ import annotations

from dataclasses import replace

from gptrs.functionals.compositions import Activation, linear_activation
from gptrs.functionals.creation import linear
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Cast, Clamp, Erf, Logistic, Maximum, Tanh
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Region, Value
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.fusion.needed_patterns import fusion, tensors
from gptrs_backend_numba.lowering.linear import GROUPED_LINEAR, NARROW, linear_target
from gptrs_backend_numba.lowering.matmul import FLOATS

_SMALLEST = 1024
"""Elements of a weight below which a product costs less than finding out how to compute it."""
_EPILOGUES = {
    "none": "none",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "gelu": "gelu_erf",
    "gelu_tanh": "gelu_tanh",
    "gelu_quick": "gelu_quick",
}
"""The names of activations in `gptrs.functionals.compositions`, and those in epilogues."""


def _call(call: FoundCall) -> CustomCall | None:
    attributes, weight = call.attributes, call.operands["weight"].type
    activation = attributes.get("activation", "none")
    assert isinstance(activation, str)
    if weight.dtype not in FLOATS or weight.size < _SMALLEST:
        return None
    attrs = Dictionary.of(
        layout=str(attributes["layout"]),
        activation=_EPILOGUES[activation],
        bias="bias" in call.operands,
        residual=False,
    )
    return CustomCall(linear_target(weight.dtype), (call.result.type,), attrs)


def add_residuals(region: Region) -> Region:
    """Return the region with `linear(x) + y` as linear layers with the residual y."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        layer = node.op
        if isinstance(layer, CustomCall) and _takes_residual(layer):
            _add_residual(node, layer, rewriter, region)
    return rewriter.region()


def _takes_residual(op: CustomCall) -> bool:
    linear = op.target in [linear_target(dtype) for dtype in FLOATS]
    return linear and op.attrs["residual"] is False


def _add_residual(
    node: InstructionNode, layer: CustomCall, rewriter: Rewriter, region: Region
) -> None:
    (product,) = node.results
    users = rewriter.users(product)
    if product in region.results or len(users) != 1 or not isinstance(users[0].op, Add):
        return
    (total,) = users
    others = [value for value in total.operands if value is not product]
    if len(others) != 1 or _is_broadcast(rewriter.definition(others[0])):
        return
    attrs = Dictionary.of(dict(layer.attrs.items) | {"residual": True})
    made = rewriter.insert(replace(layer, attrs=attrs), [*node.operands, *others], total)
    rewriter.replace(total.results[0], made.results[0])
    rewriter.erase(total)
    rewriter.erase(node)


def take_narrow_weights(region: Region, target: str = linear_target(dtypes.f32)) -> Region:
    """Return the region whose layers of f32 read 2-byte weights without a widened copy.

    They are calls of `target`, whose second operand is the weight.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        narrow = _narrow_weight(node, rewriter, target)
        if narrow is not None:
            x, _, *rest = node.operands
            made = rewriter.insert(node.op, [x, narrow, *rest], node)
            rewriter.replace(node.results[0], made.results[0])
            rewriter.erase(node)
    return rewriter.region()


def _narrow_weight(node: InstructionNode, rewriter: Rewriter, target: str) -> Value | None:
    """Return the 2-byte weight that a layer of f32 widens, None if it widens none."""
    if not isinstance(node.op, CustomCall) or node.op.target != target:
        return None
    widening = rewriter.definition(node.operands[1])
    if widening is None or not isinstance(widening.op, Cast):
        return None
    (narrow,) = widening.operands
    return narrow if narrow.type.dtype in NARROW else None


def _is_broadcast(node: InstructionNode | None) -> bool:
    # The kernel reads residuals as they lie in memory; to write all of it first is no gain.
    return node is not None and isinstance(node.op, BroadcastTo)


NARROW_GROUPS = RegionPass(
    "numba-fuse-narrow-groups", lambda region: take_narrow_weights(region, GROUPED_LINEAR)
)
"""The same for products of groups of rows, which are composites that this backend claims."""
_LAYERS: list[dict[str, object]] = [
    {**tensors(x="f32[2, 3]", weight=weight, **bias), "layout": layout}
    for layout, weight in (("out_in", "f32[4, 3]"), ("in_out", "f32[3, 4]"))
    for bias in ({}, {"bias": "f32[4]"})
]
_ACTIVATIONS: dict[type[Op], tuple[Activation, ...]] = {
    Tanh: ("gelu_tanh",),
    Erf: ("gelu",),
    Logistic: ("silu", "gelu_quick"),
    Clamp: ("relu6",),
    Maximum: ("relu",),
}
"""The op that says which activations there may be."""


def _with_activation(op: type[Op], *names: Activation) -> Pass:
    examples = [{**layer, "activation": name} for layer in _LAYERS for name in names]
    return fusion(linear_activation, examples, (DotGeneral, op), _call)


FUSE_LINEAR: tuple[Pass, ...] = (
    *(_with_activation(op, *names) for op, names in _ACTIVATIONS.items()),
    fusion(linear, _LAYERS, (DotGeneral,), _call),
    RegionPass("numba-fuse-residual", add_residuals),
    RegionPass("numba-fuse-narrow-weights", take_narrow_weights),
)
"""The longest chains first; what comes after them works on what are calls by then."""
