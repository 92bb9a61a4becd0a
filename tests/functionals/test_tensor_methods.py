"""Methods and operators of tensors mean the functional of their name."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.methods import Methods
from gptrs.errors import UsageError
from gptrs.ir import OPS, dtypes
from gptrs.ir.ops.elementwise import Binary

pytestmark = pytest.mark.usefixtures("on_reference")

X = np.array([[1.0, -2.0, 3.5], [0.5, 4.0, -6.0]], np.float32)
Y = np.array([2.0, -3.0, 0.5], np.float32)
M, N = np.array([7, -8, 3]), np.array([2, 3, -2])
P, Q = np.array([True, True, False]), np.array([True, False, False])

FLOAT_OPERATORS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
}
INTEGER_OPERATORS = {
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "<<": lambda x, y: abs(x) << abs(y),
    ">>": lambda x, y: x >> abs(y),
}
UNARY = {
    "-": (lambda x: -x, X),
    "abs": (lambda x: abs(x), X),
    "~": (lambda x: ~x, M),
    "~ of i1": (lambda x: ~x, P),
    "** 2": (lambda x: x**2, X),
    "** 3 of integers": (lambda x: x**3, M),
    "2 **": (lambda x: 2.0**x, X),
}


def _same(ours: gptrs.Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("symbol", FLOAT_OPERATORS)
def test_operator_of_floats(symbol):
    operator = FLOAT_OPERATORS[symbol]
    _same(operator(gptrs.tensor(X), gptrs.tensor(Y)), operator(X, Y))
    _same(operator(gptrs.tensor(X), 2), operator(X, 2))
    _same(operator(2.5, gptrs.tensor(X)), operator(2.5, X))
    _same(operator(np.float32(2.5), gptrs.tensor(X)), operator(2.5, X))


@pytest.mark.parametrize("symbol", INTEGER_OPERATORS)
def test_operator_of_integers(symbol):
    operator = INTEGER_OPERATORS[symbol]
    _same(operator(gptrs.tensor(M), gptrs.tensor(N)), operator(M, N))
    _same(operator(gptrs.tensor(M), 2), operator(M, 2))
    _same(operator(100, gptrs.tensor(N)), operator(100, N))


@pytest.mark.parametrize("symbol", ["&", "|", "^"])
def test_operator_of_truths(symbol):
    operator = INTEGER_OPERATORS[symbol]
    _same(operator(gptrs.tensor(P), gptrs.tensor(Q)), operator(P, Q))
    _same(operator(True, gptrs.tensor(Q)), operator(True, Q))


@pytest.mark.parametrize("name", UNARY)
def test_unary_operator(name):
    operator, x = UNARY[name]
    _same(operator(gptrs.tensor(x)), operator(x))


def test_equality_is_of_elements_and_hashing_of_identity():
    x, same = gptrs.tensor([1.0, 2.0]), gptrs.tensor([1.0, 2.0])
    assert (x == same).dtype is dtypes.i1
    assert (x == same).all().item()
    assert hash(x) != hash(same)
    assert {x: "x", same: "same"}[x] == "x"
    assert len({x, same, x}) == 2


def test_what_has_no_elements_is_equal_to_no_tensor():
    x = gptrs.tensor([1.0])
    assert (x == None) is False  # noqa: E711
    assert (x != "x") is True


METHODS = [
    name
    for name, member in inspect.getmembers(Methods, inspect.isfunction)
    if not name.startswith("_")
]
BINARY = {op.functional: op for op in OPS.values() if issubclass(op, Binary) and op.functional}
INTEGER = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift", "right_shift")
ARGUMENTS = {
    **{name: (1 if name in INTEGER else 1.5,) for name in BINARY},
    "pow": (2.0,), "clamp": (-1.0, 1.0),
    "cumsum": (1,), "cumprod": (1,), "top_k": (2,), "reshape": ((3, -1),),
    "broadcast_to": ((2, 2, 3),), "expand_dims": (0,), "swap_axes": (0, 1), "split": (3,),
    "repeat_interleave": (2, 0), "cast": (dtypes.si32,), "take": ("rows",),
    "gather": ("places", 1),
}  # fmt: skip
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")
TENSORS = {"rows": np.array([1, 0]), "places": np.array([[0], [2]])}


def _operands(name: str) -> tuple[gptrs.Tensor, list]:
    x = (
        N
        if name in INTEGER
        else np.abs(X)
        if name in POSITIVE
        else X > 0
        if name in ("any", "all")
        else X
    )
    given = [
        gptrs.tensor(TENSORS[argument]) if isinstance(argument, str) else argument
        for argument in ARGUMENTS.get(name, ())
    ]
    return gptrs.tensor(x), given


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_functional_of_its_name(name):
    x, given = _operands(name)
    ours, wanted = getattr(x, name)(*given), getattr(F, name)(x, *given)
    several = zip(ours, wanted, strict=True) if isinstance(ours, tuple) else [(ours, wanted)]
    for one, other in several:
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_what_the_functional_takes_or_less(name):
    """The same names in the same order with the same defaults, but for what is variadic."""
    method = list(inspect.signature(getattr(Methods, name)).parameters.values())[1:]
    functional = list(inspect.signature(getattr(F, name)).parameters.values())[1:]
    for ours, theirs in zip(method, functional, strict=False):
        if ours.kind is not ours.VAR_POSITIONAL and name not in {"pow", *BINARY}:
            assert (ours.name, ours.default) == (theirs.name, theirs.default)


def test_every_argument_arrives():
    x = gptrs.tensor(X)
    assert x.sum(-1, keepdims=True).shape == (2, 1)
    assert x.variance(0, correction=1, keepdims=True).shape == (1, 3)
    _same(x.std(axis=1, correction=1), X.std(1, ddof=1))
    assert x.argmax(1, keepdims=True).numpy().tolist() == [[2], [1]]
    assert x.sort(0, descending=True).numpy().tolist() == np.sort(-X, 0).__neg__().tolist()
    assert x.top_k(1, 0, largest=False)[1].numpy().tolist() == [[1, 0, 1]]
    assert x.flatten(0, 1).shape == (6,)
    _same(x.clamp(high=0), np.minimum(X, 0))
    _same(x.gelu("quick"), X / (1 + np.exp(-1.702 * X)))


def test_shapes_are_given_in_one_or_several_arguments():
    x = gptrs.tensor(X)
    assert x.reshape(3, -1).shape == x.reshape((3, -1)).shape == x.reshape([3, 2]).shape == (3, 2)
    assert x.reshape(6).shape == x.reshape((6,)).shape == (6,)
    assert x[0, 0].reshape(()).shape == ()
    assert x.transpose(1, 0).shape == x.transpose((1, 0)).shape == x.transpose().shape == (3, 2)
    assert x.broadcast_to(4, 2, 3).shape == (4, 2, 3)
    _same(x.T, X.T)


def test_rows_can_be_unpacked():
    first, second = gptrs.tensor(X)
    _same(first, X[0])
    _same(second, X[1])


@pytest.mark.parametrize("operator", FLOAT_OPERATORS, ids=str)
def test_operators_take_arrays_on_either_side(operator):
    function, x = FLOAT_OPERATORS[operator], gptrs.tensor(X)
    np.testing.assert_array_equal(function(x, Y).numpy(), function(x, gptrs.tensor(Y)).numpy())
    np.testing.assert_array_equal(function(X, x[0]).numpy(), function(x, x[0]).numpy())


def test_products_take_arrays_on_either_side():
    x = gptrs.tensor(X)
    np.testing.assert_allclose((x @ Y).numpy(), X @ Y)
    np.testing.assert_allclose(F.matmul(Y, x.T).numpy(), Y @ X.T)
    np.testing.assert_allclose(np.asarray(Y @ x.T), Y @ X.T)
    with pytest.raises(UsageError, match="element type"):
        _ = x + X.astype(np.float64)
    with pytest.raises(UsageError, match="`matmul` takes a tensor as `rhs`, got `list`"):
        _ = x @ [1.0]
