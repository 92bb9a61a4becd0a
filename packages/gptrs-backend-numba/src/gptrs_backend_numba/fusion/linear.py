"""Fusions of matrix products with bias, activation and residual into one linear layer."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gptrs.capture.tensor import Tensor
from gptrs.functionals.activation import gelu, relu, relu6, silu
from gptrs.functionals.matching import FunctionalPattern
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Cast, Clamp, Erf, Logistic, Maximum, Tanh
from gptrs.ir.ops.layout import BroadcastTo, Transpose
from gptrs.ir.program import Region, Value
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.passes.arithmetic_folding import PRODUCT_ROUNDING
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.needed_patterns import tensors
from gptrs_backend_numba.lowering.linear import (
    BF16_LINEAR,
    GROUPED_LINEAR,
    NARROW,
    SMALLEST,
    linear_target,
)
from gptrs_backend_numba.lowering.matmul import FLOATS

_MATRIX = 2
_TARGETS = frozenset(map(linear_target, FLOATS))


def fuse_products(region: Region) -> Region:
    """Return the region whose products with one matrix are linear layers, a bias included."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, DotGeneral):
            _fuse_product(node, node.op, rewriter)
    return rewriter.region()


def _fuse_product(node: InstructionNode, op: DotGeneral, rewriter: Rewriter) -> None:
    x, weight = node.operands
    plain = op == DotGeneral(op.contract_lhs, op.contract_rhs) and len(op.contract_rhs) == 1
    if not plain or weight.type.rank != _MATRIX or weight.type.dtype not in FLOATS:
        return
    if weight.type.size < SMALLEST:
        return
    root, bias = _biased(node, rewriter) or (node, ())
    ((along,), (contracted,)) = op.contract_lhs, op.contract_rhs
    if along != x.type.rank - 1:
        order = (*(axis for axis in range(x.type.rank) if axis != along), along)
        (x,) = rewriter.insert(Transpose(order), [x], root).results
    attrs = Dictionary.of(
        layout="out_in" if contracted else "in_out",
        activation="none",
        bias=bool(bias),
        residual=False,
    )
    target, (result,) = linear_target(weight.type.dtype), root.results
    made = rewriter.insert(CustomCall(target, (result.type,), attrs), [x, weight, *bias], root)
    rewriter.replace(result, made.results[0])
    rewriter.erase_dead(root)


def _biased(
    node: InstructionNode, rewriter: Rewriter
) -> tuple[InstructionNode, tuple[Value]] | None:
    """Return what adds one vector to each row of a product, and the vector."""
    (product,) = node.results
    total, other = _addition(product, rewriter) or (node, product)
    spread = rewriter.definition(other)
    if spread is None or not isinstance(spread.op, BroadcastTo):
        return None
    (vector,) = spread.operands
    return (total, (vector,)) if vector.type.shape == product.type.shape[-1:] else None


def _addition(product: Value, rewriter: Rewriter) -> tuple[InstructionNode, Value] | None:
    """Return the only reader of a product and what it adds; None unless it is an addition."""
    users = rewriter.users(product)
    if rewriter.reads(product) != 1 or len(users) != 1 or not isinstance(users[0].op, Add):
        return None
    first, second = users[0].operands
    return users[0], second if first is product else first


def take_transposed_weights(region: Region) -> Region:
    """Return the region with `linear(x, transpose(w))` as a layer of w in the other layout.

    As `dot_general` takes in transposes: a parameter would be kept a second time, transposed.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        layer = _layer(node)
        turned = layer and rewriter.definition(node.operands[1])
        if layer and turned and isinstance(turned.op, Transpose):
            x, _, *rest = node.operands
            layout = "in_out" if layer.attrs["layout"] == "out_in" else "out_in"
            made = _changed(layer, layout=layout)
            made = rewriter.insert(made, [x, *turned.operands, *rest], node)
            rewriter.replace(node.results[0], made.results[0])
            rewriter.erase_dead(node)
    return rewriter.region()


def add_activations(region: Region) -> Region:
    """Return the region with `activation(linear(x))` as linear layers with the activation."""
    rewriter = Rewriter(region)
    if not any(_layer(node) for node in rewriter):
        return region
    ops = {type(node.op) for node in rewriter}
    for needed, patterns in _ACTIVATIONS.items():
        for node in reversed(list(rewriter)) if needed in ops else ():
            for name, pattern in patterns.items():
                if not node.erased and len(node.results) == 1:
                    call = pattern.find_call(node.results[0], rewriter.definition)
                    _add_activation(name, call, rewriter)
    return rewriter.region()


def _add_activation(name: str, call: FoundCall | None, rewriter: Rewriter) -> None:
    node = None if call is None else rewriter.definition(call.operands["x"].value)
    layer = None if node is None else _layer(node)
    if call is None or node is None or layer is None or layer.attrs["activation"] != "none":
        return
    if not is_shared(call, rewriter):
        _extend(node, layer, call.result, rewriter, activation=name)


def is_shared(call: FoundCall, rewriter: Rewriter) -> bool:
    """Return whether anything else reads what the operand becomes on its way to the result."""
    inner = {call.operands["x"].value}
    for made in call.made:
        if not inner.isdisjoint(made.operands):
            inner.update(made.results)
    inner.discard(call.result)
    own = sum(value in inner for made in call.made for value in made.operands)
    return sum(map(rewriter.reads, inner)) != own


def add_residuals(region: Region) -> Region:
    """Return the region with `linear(x) + y` as linear layers with the residual y."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        layer = None if node.erased else _layer(node)
        found = layer and _addition(node.results[0], rewriter)
        if layer and found:
            total, other = found
            spread = rewriter.definition(other)
            # The kernel reads residuals as they lie in memory; to write one first is no gain.
            if spread is None or not isinstance(spread.op, BroadcastTo):
                _extend(node, layer, total.results[0], rewriter, other, residual=True)
    return rewriter.region()


def _layer(node: InstructionNode) -> CustomCall | None:
    """Return the op of a linear layer to which nothing is added yet."""
    op = node.op
    if isinstance(op, CustomCall) and op.target in _TARGETS and op.attrs["residual"] is False:
        return op
    return None


def _extend(
    node: InstructionNode,
    layer: CustomCall,
    result: Value,
    rewriter: Rewriter,
    *operands: Value,
    **changes: DictionaryValue,
) -> None:
    """Let the layer compute `result`, with more operands and other attributes."""
    root = rewriter.definition(result)
    assert root is not None, "computed of the layer"
    made = rewriter.insert(_changed(layer, **changes), [*node.operands, *operands], root)
    rewriter.replace(result, made.results[0])
    rewriter.erase_dead(root)


def _changed(layer: CustomCall, **changes: DictionaryValue) -> CustomCall:
    return replace(layer, attrs=Dictionary.of(dict(layer.attrs.items) | changes))


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


NARROW_GROUPS = RegionPass(
    "numba-fuse-narrow-groups", lambda region: take_narrow_weights(region, GROUPED_LINEAR)
)
"""The same for products of groups of rows, which are composites that this backend claims."""


def _pattern(function: Callable[..., Tensor], **words: str) -> FunctionalPattern:
    return FunctionalPattern(
        function.__name__, function, [{**tensors(x="f32[2, 3]"), **words}], evaluate
    )


GELU = _pattern(gelu)
_ACTIVATIONS: dict[type[Op], dict[str, FunctionalPattern]] = {
    Tanh: {"gelu_tanh": _pattern(gelu, approximate="tanh")},
    Erf: {"gelu_erf": GELU},
    Logistic: {"silu": _pattern(silu), "gelu_quick": _pattern(gelu, approximate="quick")},
    Clamp: {"relu6": _pattern(relu6)},
    Maximum: {"relu": _pattern(relu)},
}
"""By an op that each has, what may follow a layer, under the names of epilogues.

Patterns rather than a claim of `gelu`: where no layer is in front of it, the kernel of elementwise
chains computes it together with what is around it.
"""

TRANSPOSED_WEIGHTS = RegionPass("numba-transposed-weights", take_transposed_weights)
FUSE_LINEAR: tuple[Pass, ...] = (
    RegionPass("numba-fuse-linear", fuse_products),
    RegionPass("numba-fuse-activation", add_activations),
    RegionPass("numba-fuse-residual", add_residuals),
    RegionPass("numba-fuse-narrow-weights", take_narrow_weights),
)
"""Layers first; what comes after works on them."""


# Linear layers whose operands are rounded to bf16, for the precision `bf16`.


def round_layers(region: Region) -> Region:
    """Return the region whose linear layers of f32 round both operands."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        op = node.op
        if isinstance(op, CustomCall) and op.target == linear_target(dtypes.f32):
            made = rewriter.insert(replace(op, target=BF16_LINEAR), node.operands, node)
            rewriter.replace(node.results[0], made.results[0])
            rewriter.erase(node)
    return rewriter.region()


ROUND_TO_BF16: tuple[Pass, ...] = (
    RegionPass("numba-round-linear", round_layers),
    PRODUCT_ROUNDING,
)
"""Run after linear layers are found; other products are rounded by instructions."""
