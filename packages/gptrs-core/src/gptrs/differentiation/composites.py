"""Derivative rules of composites: the functional's own rule where it saves work, else the rules of
the decomposition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gptrs.capture import primitives as p
from gptrs.capture.graph import Captured
from gptrs.capture.ports import functional
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.differentiation.reduction import normalized_backward
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import (
    Backward,
    Cotangents,
    Functions,
    Rule,
    Step,
    filled,
    rule_of_many,
    summed_to,
    with_callees,
)
from gptrs.errors import GptrsError
from gptrs.functionals.operands import converted, expand
from gptrs.ir.ops.control_flow import ControlFlow
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Region

OF_FUNCTIONAL: dict[str, Rule] = {}
"""Rules by functional, for composites that compute exactly what the functional does."""
OF_KIND: dict[str, Rule] = {}
"""Rules of composites that carry their own derivative, by the kind before the slash."""


def _functional(*names: str) -> Callable[[Backward], Backward]:
    def register(backward: Backward) -> Backward:
        OF_FUNCTIONAL.update(dict.fromkeys(names, Rule(backward)))
        return backward

    return register


def own_rule(op: Composite, operands: Sequence[Tensor]) -> Rule | None:
    """Return the rule of a composite, None if its decomposition is differentiated instead.

    Only the decomposition defines what a composite computes. So the rule of a functional applies
    only if the functional makes the same composite, not to other programs under its name or to
    implementations that override it.
    """
    kind = op.kind.partition("/")[0]
    found = OF_KIND.get(kind) or OF_FUNCTIONAL.get(op.title)
    if found is None or kind in OF_KIND:
        return found
    given = {**dict(zip(op.operand_names_given, operands, strict=True)), **dict(op.attrs.items)}
    try:
        source = functional(op.title)(**given).source
    except (GptrsError, TypeError):
        return None
    return found if isinstance(source, Captured) and source.node.op == op else None


def body_of(op: Composite, functions: Functions) -> Region:
    """Return the decomposition."""
    return functions[op.decomposition].body


def _forward(step: Step[Any]) -> tuple[Sequence[Tensor], object]:
    """Run the composite as one instruction, so that a kernel may compute it.

    Composites with loops or branches are entered: running those twice costs more than keeping their
    values.
    """
    op: Composite = step.op
    own = own_rule(op, step.operands)
    if own is not None and own.forward is not None:
        results, kept = own.forward(step)
        return results, (own, kept)
    body = body_of(op, step.functions)
    if own is None and _has_regions(body, step.functions):
        entered = Linearized(body, step.functions, step.operands, step.wanted)
        return entered.results, (None, entered)
    functions = with_callees({op.decomposition}, step.functions)
    return apply_many(op, *step.operands, functions=functions), (own, None)


def _has_regions(body: Region, functions: Functions) -> bool:
    return any(
        inner.regions
        or (
            isinstance(inner.op, ControlFlow)
            and any(_has_regions(functions[name].body, functions) for name in inner.op.callees())
        )
        for inner in body.walk()
    )


@rule_of_many(Composite, forward=_forward)
def _composite(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    """Apply the functional's rule, or differentiate the decomposition.

    Without a kernel for the composite, both runs of the decomposition are equal expressions,
    computed once; with a kernel, its intermediate values are recomputed.
    """
    own: Rule | None
    own, kept = step.kept
    if own is not None:
        return own.backward(step._replace(kept=kept), cotangents)
    entered: Linearized | None = kept
    if entered is None:
        body = body_of(step.op, step.functions)
        entered = Linearized(body, step.functions, step.operands, step.wanted)
    return entered.pull(cotangents)


# Functionals whose derivative is simpler than the derivative of their decomposition.


def _attribute(op: Composite, name: str) -> Any:
    return op.attrs[name]


@_functional("softmax", "safe_softmax")
def _softmax(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    """`y (g - sum(g y))`: the subtracted maximum does not contribute."""
    g, y = _wide(cotangents[0]), _wide(step.results[0])
    product = p.mul(g, y)
    along = _summed(product, _attribute(step.op, "axis"))
    return [converted(p.sub(product, p.mul(y, along)), step.operands[0].dtype)]


@_functional("log_softmax")
def _log_softmax(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    g, y = _wide(cotangents[0]), _wide(step.results[0])
    along = _summed(g, _attribute(step.op, "axis"))
    return [converted(p.sub(g, p.mul(p.exp(y), along)), step.operands[0].dtype)]


def _wide(x: Tensor | None) -> Tensor:
    assert x is not None
    return converted(x, x.dtype.accumulator)


def _summed(x: Tensor, axis: int) -> Tensor:
    return expand(p.reduce(x, "sum", [axis], keepdims=True), x.shape)


@_functional("relu", "relu6")
def _relu(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    """Return g where x is inside; torch and JAX have 0 at the kinks, where `maximum` has half."""
    g, x = cotangents[0], step.operands[0]
    assert g is not None
    inside = p.compare(x, filled(0, x), "gt")
    if step.op.title == "relu6":
        inside = p.bit_and(inside, p.compare(x, filled(6, x), "lt"))
    return [p.select(inside, g, filled(0, g))]


@_functional("gelu")
def _gelu(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    """Return g times the derivative, from x alone.

    No expression is one of the forward part, or its value would be kept: by the decomposition,
    GELU wrote five tensors and read them again, an eighth of a GPT-2 step.
    """
    g, x = _wide(cotangents[0]), _wide(step.operands[0])
    form = _attribute(step.op, "approximate")
    one = filled(1, x)
    if form == "none":  # Phi(x) + x phi(x)
        below = p.erf(p.mul(x, filled(-math.sqrt(0.5), x)))
        share = p.mul(p.sub(one, below), filled(0.5, x))
        density = p.exp(p.mul(p.mul(filled(-0.5, x), x), x))
        slope = p.mul(p.mul(filled(1 / math.sqrt(2 * math.pi), x), x), density)
    else:  # x logistic(z), where (1 + tanh(z / 2)) / 2 is logistic(z)
        linear, cubic = (1.702, 0.0) if form == "quick" else (_TANH_FACTOR, 0.044715)
        square = p.mul(p.mul(filled(linear * cubic, x), x), x)
        share = p.logistic(p.mul(p.add(square, filled(linear, x)), x))
        by_x = p.add(p.mul(square, filled(3, x)), filled(linear, x))
        slope = p.mul(p.mul(p.mul(share, p.sub(one, share)), x), by_x)
    return [converted(p.mul(g, p.add(share, slope)), step.operands[0].dtype)]


_TANH_FACTOR = 2 * math.sqrt(2 / math.pi)


@_functional("layer_norm", "rms_norm")
def _norm(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    op, (g,) = step.op, cotangents
    assert g is not None
    by_name = dict(zip(op.operand_names_given, step.operands, strict=True))
    x, weight, bias = by_name["x"], by_name.get("weight"), by_name.get("bias")
    centers = op.title == "layer_norm"
    axes = [axis % x.rank for axis in _attribute(op, "axes")] if centers else [x.rank - 1]
    factor = None if weight is None else _wide(weight)
    offset = 0 if centers else _attribute(op, "weight_offset")
    if factor is not None and offset:
        factor = p.add(factor, p.broadcast_to(p.constant(offset, factor.dtype), factor.shape))
    epsilon = _attribute(op, "epsilon")
    by_x, normal, wide = normalized_backward(x, factor, g, axes, epsilon, centers)
    found: dict[str, Tensor] = {"x": by_x}
    if weight is not None:
        found["weight"] = converted(summed_to(p.mul(wide, normal), weight.shape), weight.dtype)
    if bias is not None:
        found["bias"] = converted(summed_to(wide, bias.shape), bias.dtype)
    return [found[name] for name in by_name]
