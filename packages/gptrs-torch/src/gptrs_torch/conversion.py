"""The conversion of graphs of ATen operators to calls of functionals, node by node."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeGuard, cast

import sympy
import torch
from msgspec import Struct
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from typing_extensions import override

from gptrs.api import GptrsError, UnsupportedError, importers
from gptrs.api.importers import Converter, Converters, is_symbol, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs.ir.symbolic_dim import unknown_size
from gptrs_torch.archive import PARTS, dtype_of
from gptrs_torch.program_check import (
    FIXED_SIZES,
    Operand,
    converted,
    evaluated,
    expression_of,
    operand,
)

converts = Converters("gptrs-torch", "gptrs_torch.supported_operators()")
"""Converters by the name of an ATen overload (`add.Tensor`), or of all its other overloads
(`add`); an operator of a library is named with it (`library.name`)."""


of_complex = Converters(converts.package, converts.listed_by)
"""Converters of operators with a complex operand or result."""
_OURS: Final = ("aten", "gptrs")
"""Namespaces of converted operators; `gptrs` has the torch layers that are kept whole."""


_CAST: Final = torch.ops.prims.convert_element_type.default
"""torch makes it of floats that are computed from sizes, after it decomposed the graph."""


def converter_of(target: object, among: Converters = converts) -> Converter | None:
    """Return the converter of an operator; None if there is none."""
    if target is _CAST:
        return among["_to_copy"]
    if not isinstance(target, OpOverload):
        return None
    whole = str(cast("object", target))
    namespace, _, name = whole.partition(".")
    known = name if namespace in _OURS else whole
    return among.get(known) or among.get(known.rpartition(".")[0])


def _converter_for(node: fx.Node) -> Converter | None:
    """Return the converter of a node, by whether it computes with complex numbers."""
    return converter_of(node.target, of_complex if _is_complex(node) else converts)


def _is_complex(node: fx.Node) -> bool:
    held: list[object] = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    leaves = cast("list[object]", pytree.tree_leaves(held))
    return any(isinstance(each, torch.Tensor) and each.is_complex() for each in leaves)


# A complex tensor is two real ones in a program.


class Complex(Struct, frozen=True):
    """The real and the imaginary part of a complex tensor, of one shape and type."""

    real: Tensor
    imaginary: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Both parts."""
        return self.real, self.imaginary

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self.real.rank

    @staticmethod
    def of(x: Tensor) -> Complex:
        """Return the numbers whose parts are the last axis of x, as in `torch.view_as_real`."""
        return Complex(*(F.squeeze(part, -1) for part in F.split(x, 2, -1)))

    def stacked(self) -> Tensor:
        """Return both parts as a new last axis."""
        return F.stack(self.parts, -1)

    def converted(self, dtype: DType) -> Complex:
        """Return the numbers with parts of another type."""
        return Complex(converted(self.real, dtype), converted(self.imaginary, dtype))


def pair(value: Complex | Operand | complex, dtype: DType | None = None) -> Complex:
    """Return a value as a complex one, with parts of `dtype` if given, as numbers require."""
    if isinstance(value, Complex):
        return value if dtype is None else value.converted(dtype)
    if isinstance(value, Tensor):
        real = value if dtype is None else converted(value, dtype)
        return Complex(real, F.zeros(real.shape, real.dtype))
    assert dtype is not None
    real, imaginary = (value.real, value.imag) if isinstance(value, complex) else (value, 0)
    return Complex(operand(real, dtype), operand(imaginary, dtype))


# A node of a torch graph, as converters see it.


class NotConvertedError(UnsupportedError):
    """A node is left to torch, with the reason."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(
            f"`{operator_name(node)}` {why}",
            hint="`gptrs_torch.supported_operators()` lists the operators that are converted",
        )
        self.node = node


def operator_name(node: fx.Node) -> str:
    """Return the operator of a node for messages: `add.Tensor`, or `library.name.default`.

    Of one that changes its arguments, or whose errors have an order, the operator inside of what
    torch wraps around it.
    """
    name = str(node.target)
    target = cast("object", node.target)
    if name.startswith("auto_functionalized"):
        target = node.args[0]
    elif name == "with_effects":
        target = node.args[1]
    if isinstance(target, OpOverload):
        whole = str(cast("object", target))
        namespace, _, name = whole.partition(".")
        return name if namespace in _OURS else whole
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


WRONG: Final = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
"""Errors that converters may raise for unexpected arguments."""


class Node(importers.Node):
    """A node with the types of its result and arguments that torch inferred."""

    damage = WRONG

    def __init__(self, source: fx.Node) -> None:
        self.source = source

    @override
    def __str__(self) -> str:
        return f"`{operator_name(self.source)}`"

    @property
    def name(self) -> str:
        """The operator without its overload: `add`."""
        return str(self.source.target).split(".")[1]

    @property
    def result(self) -> torch.Tensor:
        """The result, or the first of several, as a tensor without elements."""
        found = cast("object", self.source.meta["val"])
        several = cast("list[object]", found) if isinstance(found, (tuple, list)) else [found]
        return cast("torch.Tensor", several[0])

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return self.dtype_at(self.result.dtype)

    def dtype_at(self, torch_type: torch.dtype) -> DType:
        """Return the PTIR type of a torch type, or of its parts; refuses the node for others."""
        return dtype_of(PARTS.get(torch_type, torch_type), str(self))

    def argument(self, position: int) -> object:
        """Return an argument as torch traced it: a tensor without elements, or a number."""
        found = self.source.args[position]
        return found.meta["val"] if isinstance(found, fx.Node) else found

    def common_dtype(self, *positions: int) -> DType:
        """Return the type to which torch promotes these arguments."""
        promote = cast("Callable[..., torch.dtype]", torch.result_type)
        return self.dtype_at(promote(*(self.argument(position) for position in positions)))

    @override
    def refuse(self, reason: str, hint: str | None = None) -> NoReturn:
        """Raise NotConvertedError, which leaves the node to torch."""
        del hint
        raise NotConvertedError(self.source, reason)

    @override
    def failure(self, error: Exception) -> Exception:
        """Return a refusal; errors of free sizes pass, since other sizes can help there."""
        if isinstance(error, NotConvertedError):
            return error
        if not isinstance(error, GptrsError):
            return NotConvertedError(self.source, f"is not converted for these arguments: {error}")
        if asks_for_sizes(error):
            return error
        return NotConvertedError(self.source, f"is not converted: {error.message}")


def _exact(size: object) -> object:
    """Return a size as a float: a symbolic one as an f64 tensor, which the program computes."""
    if is_symbol(size):
        return size_tensor(cast("int", size), dtypes.f64)
    return size if isinstance(size, Tensor) else float(cast("float", size))


def _quotient(x: object, y: object) -> object:
    return cast("Any", _exact(x)) / cast("Any", _exact(y))


def _power(base: Any, exponent: Any) -> object:
    if is_symbol(base) and isinstance(exponent, int) and 0 < exponent < 5:
        return math.prod([cast("int", base)] * exponent)
    if any(is_symbol(each) or isinstance(each, Tensor) for each in (base, exponent)):
        return F.pow(cast("Any", _exact(base)), cast("Any", _exact(exponent)))
    return base**exponent


def _root(x: object) -> object:
    found = _exact(x)
    return F.sqrt(found) if isinstance(found, Tensor) else math.sqrt(cast("float", found))


def _logarithm(x: object) -> object:
    found = _exact(x)
    return F.log2(found) if isinstance(found, Tensor) else math.log2(cast("float", found))


def _magnitude(x: int) -> int:
    return -x if x < 0 else x


def _shifted_left(x: int, count: int) -> int:
    return x * 2**count


def _shifted_right(x: int, count: int) -> int:
    return x // 2**count


def _chosen(holds: object, x: object, y: object) -> object:
    return x if holds else y


def _differ(x: Any, y: Any) -> object:
    """Return whether two sizes differ; asks for numbers where symbols leave it open."""
    return x < y or x > y if is_symbol(x) or is_symbol(y) else operator.ne(x, y)


def _is_same(x: object, y: object) -> bool:
    return not _differ(x, y)


_LOG2: Final = cast("Any", torch)._sym_log2
NUMERIC: Final[Mapping[object, Callable[..., object]]] = cast(
    "Mapping[object, Callable[..., object]]",
    {
        operator.add: operator.add,
        operator.sub: operator.sub,
        operator.mul: operator.mul,
        operator.truediv: _quotient,
        operator.pow: _power,
        operator.floordiv: operator.floordiv,
        operator.mod: operator.mod,
        operator.neg: operator.neg,
        operator.pos: operator.pos,
        operator.abs: _magnitude,
        operator.lshift: _shifted_left,
        operator.rshift: _shifted_right,
        operator.getitem: operator.getitem,
        operator.ge: operator.ge,
        operator.gt: operator.gt,
        operator.le: operator.le,
        operator.lt: operator.lt,
        operator.eq: _is_same,
        operator.ne: _differ,
        operator.and_: operator.and_,
        operator.or_: operator.or_,
        torch.sym_not: operator.not_,
        torch.sym_max: max,
        torch.sym_min: min,
        torch.sym_sum: sum,
        torch.sym_ite: _chosen,
        torch.sym_float: _exact,
        torch.sym_int: int,
        torch.sym_sqrt: _root,
        _LOG2: _logarithm,
        round: round,
        math.trunc: math.trunc,
        math.floor: math.floor,
        math.ceil: math.ceil,
    },
)
"""Python functions on sizes, and on floats computed from them."""
RANDOM: Final = frozenset(
    {
        *("rand", "rand_like", "randn", "randn_like", "randint", "randperm", "bernoulli"),
        *("native_dropout", "uniform", "normal", "multinomial", "exponential"),
    }
)
"""ATen operators that generate random numbers, which are left to torch."""
SIZES: Final = frozenset(
    {
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.sym_stride.int,
        torch.ops.aten.sym_storage_offset.default,
    }
)
"""Operators that give a size, which the types of tensors determine."""
CHECKS: Final = frozenset({torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg})
"""Operators that raise an error if an element is 0: the callers of programs check it."""
Weight = Callable[[str], Tensor]
"""Returns a constant of the graph module by its name."""


Branch = Callable[[list[object]], list[object]]


def _branched(
    node: Node, predicate: Tensor | bool, then: Branch, otherwise: Branch, operands: list[object]
) -> Sequence[object]:
    """Return what the branch of `torch.cond` gives that the predicate, of one element, selects."""
    if not isinstance(predicate, Tensor):
        return (then if predicate else otherwise)(operands)
    chosen = predicate if predicate.dtype.is_bool else F.not_equal(predicate, 0)
    bodies = [partial(_tensors, node, branch, operands) for branch in (then, otherwise)]
    return list(primitives.cond(F.reshape(chosen, ()), bodies[0], bodies[1]))


def _tensors(node: Node, branch: Branch, operands: list[object]) -> tuple[Tensor, ...]:
    results = branch(operands)
    found = [each for each in results if isinstance(each, Tensor)]
    if len(found) < len(results):
        node.refuse("has a branch or a step that gives no tensor")
    return tuple(found)


def _looped(
    node: Node, condition: Branch, body: Branch, carried: list[object], more: list[object]
) -> Sequence[object]:
    """Return the last values of `torch.while_loop`; the further operands do not change."""

    def holds(*state: Tensor) -> tuple[Tensor]:
        (truth,) = _tensors(node, condition, [*state, *more])
        return (F.reshape(truth if truth.dtype.is_bool else F.not_equal(truth, 0), ()),)

    def step(*state: Tensor) -> tuple[Tensor, ...]:
        return _tensors(node, body, [*state, *more])

    return list(primitives.while_(holds, step, *_carried(node, carried)))


def _scanned(
    node: Node, body: Branch, first: list[object], scanned: list[object], more: list[object]
) -> Sequence[object]:
    """Return the last values that `scan` carries, and its other results, one slice a step."""

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        return _tensors(node, body, [*given, *more])

    last, others = primitives.scan(step, _carried(node, first), _carried(node, scanned))
    return [*last, *others]


def _carried(node: Node, values: list[object]) -> list[Tensor]:
    found = [each for each in values if isinstance(each, Tensor)]
    if len(found) < len(values):
        node.refuse("carries a number, or complex numbers: carry tensors of real numbers")
    return found


CONTROL_FLOW: Final[Mapping[object, Converter]] = {
    torch.ops.higher_order.cond: Converter(_branched),
    torch.ops.higher_order.while_loop: Converter(_looped),
    torch.ops.higher_order.scan: Converter(_scanned),
}
"""Operators of graphs: branches and loops."""


class Conversion:
    """The values of a graph so far; `sizes` are those of the symbols of torch, by expression."""

    def __init__(self, module: fx.GraphModule, weight: Weight) -> None:
        self._module = module
        self._weight = weight
        self._constants = constants_of(module)
        self._sizes: dict[sympy.Expr, int] = {}
        self._values: dict[fx.Node, object] = {}

    def bind(self, node: fx.Node, value: object) -> None:
        """Set the value of a placeholder, and of the symbols in its shape."""
        held = node.meta.get("val")
        if isinstance(held, torch.SymInt):
            # In terms of free sizes, if it is made of them: axes of `s` and `s - 1` elements.
            found = self._size(held)
            value = value if found is None else found
        self._values[node] = value
        if not isinstance(value, Tensor) or not isinstance(held, torch.Tensor):
            return
        if held.is_complex():
            value = self._values[node] = Complex.of(value)
            value = value.real
        for size, dim in zip(held.shape, value.shape, strict=True):
            expression = expression_of(size)
            if expression is not None:
                self._sizes.setdefault(expression, dim)

    def conditions(self) -> list[Tensor]:
        """Return the truths of the CHECKS of the graph that was run, in its order."""
        nodes = [node for node in self._module.graph.nodes if node.target in CHECKS]
        return [cast("Tensor", self._values[node]) for node in nodes]

    def run(self) -> list[object]:
        """Convert all nodes; return what the graph returns.

        Raises NotConvertedError for an operator that is left to torch; another GptrsError if a size
        is needed as a number.
        """
        for node in self._module.graph.nodes:
            if node.op == "output":
                several = isinstance(node.args[0], (tuple, list))
                return self._mapped(node.args[0] if several else node.args)
            # Others are offsets of views, and comparisons of sizes that the export made.
            is_used = node.users or (node.op != "placeholder" and node.target not in NUMERIC)
            if is_used and node not in self._values:
                self._values[node] = self._value(node)
        raise AssertionError("the graph has no output")

    def _value(self, node: fx.Node) -> object:
        held = node.meta.get("val")
        if node.op == "get_attr":
            return self._constant(node)
        if isinstance(held, (torch.SymInt, int)) and not isinstance(held, bool):
            found = self._size(held)
            if found is not None:
                return found
        if node.op == "placeholder":
            raise NotConvertedError(node, "is a size that no input has")
        return self._called(node)

    def _constant(self, node: fx.Node) -> object:
        """Return a constant tensor; a graph inside, such as a branch, as what its operands give."""
        name = str(node.target)
        held = attrgetter(name)(self._module)
        if isinstance(held, fx.GraphModule):
            return partial(self._inner, name, held)
        if name not in self._constants:
            raise NotConvertedError(node, "is a part of the graph that is not converted")
        weight = self._weight(name)
        return Complex.of(weight) if self._constants[name].is_complex() else weight

    def _inner(self, name: str, module: fx.GraphModule, operands: list[object]) -> list[Any]:
        """Return the results of a graph inside this one."""
        inner = Conversion(module, lambda constant: self._weight(f"{name}.{constant}"))
        inner._sizes.update(self._sizes)
        checks = [node for node in module.graph.nodes if node.target in CHECKS]
        if checks:
            raise NotConvertedError(checks[0], "is in a branch, and may not be reached")
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, value in zip(inputs, operands, strict=True):
            inner.bind(node, value)
        return inner.run()

    def _size(self, held: torch.SymInt | int) -> int | None:
        """Return a size computed from the dims of inputs; None if they do not determine it."""
        expression = expression_of(held)
        if expression is None:
            return int(held)
        return evaluated(expression, self._sizes)

    def _called(self, node: fx.Node) -> object:
        args = self._mapped(node.args)
        kwargs = {name: self._argument(value) for name, value in node.kwargs.items()}
        function = NUMERIC.get(node.target)
        if function is not None:
            return self._number(node, function, args)
        control = CONTROL_FLOW.get(node.target)
        if control is not None:
            return control(Node(node), args, kwargs)
        if node.target in CHECKS:
            return F.reshape(F.not_equal(args[0], F.zeros([], args[0].dtype)), [])
        converter = _converter_for(node) or Node(node).refuse(_why_unsupported(node))
        return converter(Node(node), args, kwargs)

    def _number(self, node: fx.Node, function: Callable[..., object], args: list[Any]) -> object:
        is_plain = isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymBool))
        if is_plain and any(isinstance(each, Tensor) for each in args):
            raise NotConvertedError(node, "gives a size or a condition by floats of free sizes")
        return function(*args)

    def _mapped(self, values: object) -> list[Any]:
        return [self._argument(each) for each in cast("tuple[object, ...]", values)]

    def _argument(self, value: object) -> object:
        if isinstance(value, fx.Node):
            return self._values[value]
        if isinstance(value, (list, tuple)):
            return self._mapped(cast("object", value))
        return value


def asks_for_sizes(error: GptrsError) -> bool:
    """Return whether the error asks for numbers in place of free sizes."""
    return unknown_size(error) is not None


def constants_of(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Return the constant tensors of a graph module, and of graphs inside it, by name."""
    found: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                found[str(node.target)] = value
            elif isinstance(value, fx.GraphModule):
                inner = constants_of(value).items()
                found.update((f"{node.target}.{name}", each) for name, each in inner)
    return found


_KNOWN: Final = (NUMERIC, SIZES, CHECKS)


def unsupported_nodes(module: fx.GraphModule) -> Iterator[tuple[fx.Node, str]]:
    """Yield the nodes that no converter takes, with the reason."""
    for node in module.graph.nodes:
        if node.target in CONTROL_FLOW:
            yield from _in_graphs(module, node)
            continue
        known = node.op != "call_function" or any(node.target in each for each in _KNOWN)
        if not known and _converter_for(node) is None:
            yield node, f"`{operator_name(node)}` {_why_unsupported(node)}"


def _in_graphs(module: fx.GraphModule, node: fx.Node) -> Iterator[tuple[fx.Node, str]]:
    """Yield a node with the reason of a node in one of its graphs that no converter takes."""
    for each in node.args:
        inner = attrgetter(str(each.target))(module) if _is_constant(each) else None
        if isinstance(inner, fx.GraphModule):
            for _, why in unsupported_nodes(inner):
                yield node, why


def _is_constant(value: object) -> TypeGuard[fx.Node]:
    return isinstance(value, fx.Node) and value.op == "get_attr"


def _why_unsupported(node: fx.Node) -> str:
    """Return why an operator without a converter is not converted, and what to do."""
    if operator_name(node).partition(".")[0] in RANDOM:
        return "generates random numbers, which is left to torch (for dropout, call `model.eval()`)"
    tags: Collection[object] = getattr(node.target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags:
        return f"gives a size that depends on data: {FIXED_SIZES}"
    if torch.Tag.data_dependent_output in tags:
        return "makes a number of a tensor, which depends on data: compute with the tensor itself"
    if _is_complex(node):
        return (
            "is not converted for complex numbers: write it with the real and the imaginary parts"
            " as two tensors (`torch.view_as_real`)"
        )
    if operator_name(node).startswith("_linalg_check_errors"):
        return "is torch's own error for a matrix without an inverse or a factor"
    if operator_name(node).lstrip("_").startswith("linalg_"):
        return (
            "factors matrices in a way that is not converted: of `torch.linalg`, `inv`, `solve`,"
            " `det`, `slogdet`, `cholesky`, `solve_triangular` and `matrix_exp` are"
        )
    if "." in operator_name(node).partition(".")[2]:
        return (
            "is an operator of a library, and its code is not part of the graph: write it with the"
            " operators of torch, or leave this part to torch"
        )
    return f"is an operator that {converts.package} does not convert"
