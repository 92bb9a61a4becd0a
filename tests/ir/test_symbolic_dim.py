"""Symbolic dims: arithmetic, comparisons, text."""

from __future__ import annotations

import copy
import itertools
import math
import operator
import pickle
import re
import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import SymbolicDim, TensorType, dtypes
from gptrs.ir.lexer import Lexer
from gptrs.ir.symbolic_dim import (
    JSON_PATTERN,
    PATTERN,
    evaluated,
    exceeds,
    parse_dim,
    substituted,
    symbol,
)
from gptrs.ir.type_text import read_type

N, M = symbol(0), symbol(1)
SIZES = (0, 1, 2, 3, 7)


@st.composite
def dims(draw, depth=2):
    """A polynomial with quotients over three symbols, made by arithmetic."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.one_of(st.integers(-5, 5), st.sampled_from([symbol(i) for i in range(3)])))
    apply = draw(st.sampled_from([operator.add, operator.sub, operator.mul, operator.floordiv]))
    a = draw(dims(depth=depth - 1))
    if apply is operator.floordiv:
        return a // draw(st.sampled_from([-3, -1, 2, 3, 4, 6]))
    return apply(a, draw(dims(depth=depth - 1)))


def value(dim, sizes):
    return substituted(dim, dict(enumerate(sizes)))


@given(dims(), dims(), st.tuples(*[st.integers(0, 9)] * 3))
def test_arithmetic_commutes_with_evaluation(a, b, sizes):
    x, y = value(a, sizes), value(b, sizes)
    assert value(a + b, sizes) == x + y
    assert value(a - b, sizes) == x - y
    assert value(a * b, sizes) == x * y
    assert value(-a, sizes) == -x


@given(dims(), dims(), dims(1))
def test_equal_polynomials_are_equal(a, b, c):
    assert (a + b) * c == a * c + b * c
    assert hash((a + b) * c) == hash(a * c + b * c)
    assert a - a == 0
    assert type(a - a) is int


@given(dims(3), dims(3))
def test_comparisons_hold_for_all_sizes(a, b):
    """Brute force: what was answered is true everywhere that was looked."""
    points = list(itertools.product(SIZES, repeat=3))
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            answer = compare(a, b)
        except ProgramError:
            continue
        assert all(compare(value(a, at), value(b, at)) == answer for at in points)


@pytest.mark.parametrize(
    ("compare", "answer"),
    [
        (lambda: N >= 0, True),
        (lambda: N < 0, False),
        (lambda: N + 1 > 0, True),
        (lambda: 2 * N + 3 >= N, True),
        (lambda: N <= N, True),
        (lambda: N * M + 5 < 5, False),
        (lambda: bool(N + 1), True),
        (lambda: bool(-N - 1), True),
        (lambda: (2 * N + 3) // 2 == N + 1, True),
        (lambda: (2 * N + 3) % 2 == 1, True),
        (lambda: (2 * N - 3) // 2 == N - 2, True),
        (lambda: N == 3, False),
        (lambda: symbol(0) == N, True),
        (lambda: exceeds(N, 5), False),
        (lambda: (N - 1) // 2 + 1 == (N + 1) // 2 == -(-N // 2), True),
        (lambda: ((N + 1) // 2 + 1) // 2 == (N + 3) // 4, True),
        (lambda: (4 * N + 3) // 6 == (2 * N + 1) // 3, True),
        (lambda: (N * M) // -2 == -((N * M + 1) // 2), True),
        (lambda: N // 2 >= 0, True),
        (lambda: N // 2 * 2 <= N, True),
        (lambda: (N + 5) // 6 * 6 < N, False),
        (lambda: (N - 3) // 2 * 2 + 3 <= N, True),
    ],
)
def test_what_is_known(compare, answer):
    assert compare() is answer


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: N > 4, "cannot tell whether `?0` > 4 for all values of its symbols; specialize"),
        (lambda: N < M, "cannot tell whether `?0` < ?1"),
        (lambda: bool(N), "cannot tell whether `?0` is 0"),
        (lambda: bool(-N), "cannot tell whether `-?0` is 0"),
        (lambda: int(N), "the dim `?0` has no value"),
        (lambda: range(N), "the dim `?0` has no value"),
        (lambda: (N + M) // (N - M), "cannot divide the dim `?0+?1` by `?0-?1`"),
        (lambda: (2 * N) // (3 * N), "cannot divide the dim `2*?0` by `3*?0`"),
        (lambda: N // M, "cannot divide the dim `?0` by `?1`"),
        (lambda: symbol(10**6), "the number of a symbol is in [0, 1000000), got 1000000"),
        (lambda: symbol(-1), "the number of a symbol is in [0, 1000000), got -1"),
        (lambda: N * 2**63, "a dim with a coefficient of more than 63 bits"),
        (lambda: (N + 1) * (N * 2**62) * 2, "more than 63 bits"),
        (lambda: math.prod(symbol(i) + 1 for i in range(5)), "a dim of more than 16 terms"),
        (lambda: math.prod([N] * 17), "more than 16 terms or symbols in a term"),
        (
            lambda: sum(math.prod(symbol(10**5 + i + j) for j in range(9)) for i in range(4)),
            "a dim of more than 200 characters",
        ),
        (lambda: N % M, "cannot tell whether `?1` divides the dim `?0`"),
        (lambda: bool(N % 2), "cannot tell whether `?0-2*floor((?0)/2)` is 0"),
        (
            lambda: (((symbol(9) // 2 + N) // 2 + M) // 2 + N) // 2,
            "a dim of more than 3 quotients inside one another",
        ),
        (lambda: parse_dim("floor((?0)/0)"), "a dim that is divided by 0"),
        (lambda: 6 // N, "cannot divide 6 by the dim `?0`"),
        (lambda: 6 % N, "cannot tell whether the dim `?0` divides 6"),
        (lambda: N // 0, "cannot divide the dim `?0` by `0`"),
    ],
)
def test_what_is_not_known_is_an_error(use, message):
    with pytest.raises(ProgramError, match=re.escape(message)):
        use()


@given(dims(), dims(1))
def test_division_undoes_multiplication(a, b):
    product = a * b
    assume(b != 0 and isinstance(product, SymbolicDim))
    assert product // b == a
    assert product % b == 0


@given(dims(), dims(), st.tuples(*[st.integers(0, 9)] * 3))
def test_division_is_that_of_integers(a, b, sizes):
    assume(isinstance(a, SymbolicDim) and value(b, sizes) != 0)
    try:
        quotient, rest = a // b, a % b
    except ProgramError:
        return
    assert (value(quotient, sizes), value(rest, sizes)) == divmod(value(a, sizes), value(b, sizes))


@given(dims(3), st.tuples(*[st.integers(0, 40)] * 3), st.sampled_from([-4, -1, 2, 3, 6]))
def test_quotients_by_numbers_are_those_of_integers(a, sizes, divisor):
    assert (value(a // divisor, sizes), value(a % divisor, sizes)) == divmod(
        value(a, sizes), divisor
    )
    assert evaluated(a // divisor, dict(enumerate(sizes))) == value(a // divisor, sizes)


@pytest.mark.parametrize("apply", [operator.add, operator.sub, operator.mul, operator.floordiv])
def test_numbers_of_numpy_become_those_of_python(apply):
    # Sizes in ONNX files are such numbers: those of DeBERTa-v2 are divided by 2.
    made = apply(4 * N + 2, np.int64(2))
    assert made == apply(4 * N + 2, 2)
    assert {type(factor) for _, factor in made.terms} == {int}


def test_division_needs_no_numbers():
    assert (4 * N * M + 2 * N) // (2 * N) == 2 * M + 1
    assert (N * N - M * M) // (N - M) == N + M
    assert 0 // N == 0 % N == 0


@pytest.mark.parametrize("other", [1.5, None, "2"])
def test_other_types_are_no_dims(other):
    for apply in (operator.add, operator.mul, operator.lt):
        with pytest.raises(TypeError):
            apply(N, other)


def test_a_dim_cannot_be_changed():
    with pytest.raises(AttributeError):
        N.terms = ()  # pyright: ignore[reportAttributeAccessIssue]
    assert pickle.loads(pickle.dumps(2 * N + 1)) == copy.deepcopy(2 * N + 1) == 2 * N + 1


@given(dims())
def test_text_round_trip(dim):
    if not isinstance(dim, SymbolicDim):
        return
    text = str(dim)
    assert parse_dim(text) == dim
    assert Lexer(text).token.kind == "dim"
    assert re.fullmatch(PATTERN, text)
    assert re.fullmatch(JSON_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("?1+?0", "?0+?1"), ("3*?0-1*?0", "2*?0"), ("?1*?0+2-5", "?0*?1-3"), ("-?0+4", "-?0+4")],
)
def test_other_spellings(text, canonical):
    assert str(parse_dim(text)) == canonical


def test_types_in_text():
    type_ = read_type(Lexer("f32[?0, 2*?0+1, 4, ?1*?1]"))
    assert read_type(Lexer("f32[floor((?0+1)/2), 3]")).shape == ((N - 1) // 2 + 1, 3)
    assert type_.shape == (N, 2 * N + 1, 4, M * M)
    assert not type_.is_static
    assert type_.symbols == {0, 1}
    assert type_.size == 4 * N * (2 * N + 1) * M * M
    assert str(read_type(Lexer("f32[?0-?0]"))) == "f32[0]"
    assert str(TensorType(dtypes.f32, (N, 3))) == "f32[?0, 3]"


def test_a_dim_that_is_always_negative_is_refused():
    with pytest.raises(ProgramError, match=re.escape("needs dims >= 0, got `f32[2, -?0-1]`")):
        TensorType(dtypes.f32, (2, -N - 1))
    assert TensorType(dtypes.f32, (-N,)).with_shape((N - 5,)).symbols == {0}


def test_long_text_is_refused_in_linear_time():
    for unit in ("?0*", "?0+", "9*?0-", "-", "?", "9999*", "?0*?1+2"):
        text = "f32[" + unit * (2_000_000 // len(unit))
        start = time.monotonic()
        with pytest.raises(ParseError):
            read_type(Lexer(text))
        assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32[?]", "expected a dim"),
        ("f32[?x]", "expected a dim"),
        ("f32[?0 + 1]", "unexpected character `+`"),
        ("f32[2*3]", "unexpected character `*`"),
        ("f32[" + "+".join(["?0"] * 100) + "]", "a dim of more than 200 characters"),
        ("f32[" + "+".join(f"?{i}" for i in range(17)) + "]", "more than 16 terms"),
        ("f32[" + "*".join(["?0"] * 17) + "]", "more than 16 terms or symbols"),
        ("f32[9999999999999999999*?0]", "a coefficient of more than 63 bits"),
    ],
)
def test_bad_text(text, message):
    with pytest.raises(ParseError, match=re.escape(message)):
        read_type(Lexer(text))
