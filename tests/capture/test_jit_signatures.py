"""What makes two calls of a jitted function one: how arguments are passed, static values, types."""

from __future__ import annotations

import enum
import logging
import subprocess
import sys

import numpy as np
import pytest

import gptrs
from gptrs.capture.jitting import compiled_steps
from gptrs.errors import UsageError
from gptrs.ir import dtypes

pytestmark = pytest.mark.usefixtures("on_backend")


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


X = [1.0, 2.0]


def test_one_signature_however_the_arguments_are_passed():
    @gptrs.jit
    def scale(x, n=1):
        return x * n

    x = gptrs.tensor(X)
    for result in (scale(x), scale(x, 1), scale(x, n=1), scale(x=x, n=1), scale(n=1, x=x)):
        assert result.numpy().tolist() == X
    assert scale.compiled == 1
    scale(x, n=2)
    assert scale.compiled == 2


def test_every_kind_of_parameter():
    @gptrs.jit
    def gather(a, /, b, *rest, c, d=4, **more):
        return {"sum": a + b, "rest": rest, "c": c, "d": d, "more": more}

    x = gptrs.tensor([1.0])
    result = gather(x, x, 7, 8, c=3, z=1, a=x)
    assert result["sum"].item() == 2
    assert (result["rest"], result["c"], result["d"]) == ((7, 8), 3, 4)
    assert (result["more"]["z"], result["more"]["a"].item()) == (1, 1)
    gather(x, x, 7, 8, a=x, d=4, z=1, c=3)
    assert gather.compiled == 1


def test_tensors_as_defaults_are_arguments():
    w = gptrs.tensor([3.0])

    def scale(x, w=w, /, mode=None):
        return x * w

    program = gptrs.jit(scale).lower(gptrs.tensor([2.0]))
    assert list(program.inputs) == ["arg0", "arg1"]
    assert gptrs.jit(scale)(gptrs.tensor([2.0])).item() == 6


def test_a_default_that_was_changed_is_another_call():
    factors = [2.0]

    @gptrs.jit
    def scaled(x, by=factors, axes=(0,)):
        return x * by[0] + float(axes[0])

    x = gptrs.tensor([1.0, 3.0])
    assert [scaled(x).tolist() for _ in range(2)] == [[2.0, 6.0]] * 2
    factors[0] = 5.0
    assert scaled(x).tolist() == [5.0, 15.0]
    assert scaled.compiled == 2


def test_defaults_that_cannot_be_passed_stay_with_the_function():
    step = gptrs.jit(lambda x, function=abs: function(-2) * x)
    assert step(gptrs.tensor([1.0])).item() == 2


def test_a_call_that_does_not_fit_names_the_function():
    @gptrs.jit
    def add(x, y):
        return x + y

    with pytest.raises(TypeError, match="`add`: missing a required argument: 'y'"):
        add(gptrs.tensor(X))
    with pytest.raises(TypeError, match="`add`: got an unexpected keyword argument 'z'"):
        add(1, 2, z=3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.0, float("nan")),
        (float("inf"), float("-inf")),
        ("a", b"a"),
        ("1", 1),
        (None, False),
        (Mode.ONE, Mode.TWO),
        (Mode.ONE, 1),
        (dtypes.f32, dtypes.f64),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, None)),
        ({"a": 1}, {"b": 1}),
        ({1: "a"}, {True: "a"}),
    ],
)
def test_static_values_that_differ(one, other):
    step = gptrs.jit(lambda x, value: (x, value))
    for value in (one, other, one, other):
        _, returned = step(gptrs.tensor(X), value)
        assert repr(returned) == repr(value)
        assert type(returned) is type(value)
    assert step.compiled == 2


def test_nan_is_one_static_value():
    step = gptrs.jit(lambda x, value: x)
    for nan in (float("nan"), float("nan"), -float("nan")):
        step(gptrs.tensor(X), nan)
    assert step.compiled == 1


def test_static_arguments_may_be_any_hashable_value():
    class Activation:
        def __call__(self, x):
            return x + 1

    @gptrs.jit(static=["function", 2])
    def call(function, x, shape):
        return function(x), shape

    function = Activation()
    assert call(function, gptrs.tensor([1.0]), (1, 2))[0].item() == 2
    assert call(x=gptrs.tensor([1.0]), function=function, shape=(1, 2))[1] == (1, 2)
    assert call.compiled == 1
    call(function, gptrs.tensor([1.0]), (1.0, 2))
    call(function, gptrs.tensor([1.0]), (True, 2))
    assert call.compiled == 3
    call(Activation(), gptrs.tensor([1.0]), (1, 2))
    assert call.compiled == 4


def test_named_static_floats_follow_the_same_rules():
    step = gptrs.jit(lambda x, n: x * n, static="n")
    nans = (float("nan"), float("nan"))
    for value in (0.0, -0.0, *nans, 1, True, 1.0):
        step(gptrs.tensor([1.0]), value)
    assert step.compiled == 6


def test_a_static_argument_needs_a_hash():
    step = gptrs.jit(lambda x, axes: x, static="axes")
    with pytest.raises(UsageError, match=r"static argument `axes` of `<lambda>` .* type `list`"):
        step(gptrs.tensor(X), [1, 2])
    with pytest.raises(UsageError, match="`axes` of `<lambda>` has no hash"):
        step(gptrs.tensor(X), ([1], 2))


@pytest.mark.parametrize("value", [gptrs.tensor(X), np.ones(2)])
def test_a_static_argument_is_no_tensor(value):
    with pytest.raises(UsageError, match="static argument `n` of `<lambda>` is a tensor"):
        gptrs.jit(lambda n: n, static="n")(value)


@pytest.mark.parametrize("what", ["donate", "static"])
@pytest.mark.parametrize("name", ["z", 2, -1])
def test_unknown_names_are_refused_at_decoration(what, name):
    def step(x, y=1): ...

    message = f"`{what}` names argument `{name}`, which `step` does not have; it takes .x, y=1."
    with pytest.raises(UsageError, match=message):
        gptrs.jit(step, **{what: [name]})


def test_an_argument_is_not_both_donated_and_static():
    with pytest.raises(UsageError, match="argument `x` of `<lambda>` cannot be both"):
        gptrs.jit(lambda x: x, donate=0, static="x")


def test_names_in_star_arguments():
    @gptrs.jit(static=["more", "key", 0])
    def step(f, *more, **named):
        return f(-3), more[0](1, 2), more[1](1, 2), named["key"]([1, 2]), named["other"]

    assert step(abs, max, min, key=sum, other="text") == (3, 2, 1, 3, "text")
    with pytest.raises(UsageError, match=r"as `args\[1\]`"):
        gptrs.jit(lambda *args: args, static=0)(abs, max)


def test_signatures_say_what_was_compiled(backend):
    step = gptrs.jit(lambda x, options, n=1: x, donate=())
    options = {"b": [gptrs.tensor([[1]]), None], "a": Mode.TWO}
    for _ in range(3):
        step(gptrs.tensor(X), options)
    step(gptrs.tensor(X), options, "text")
    first, second = step.signatures
    assert first.arguments == {
        "x": "f32[2]",
        "options": '{"a": <Mode.TWO: 2>, "b": [si64[1, 1], None]}',
        "n": "1",
    }
    assert (first.calls, second.calls) == (3, 1)
    assert first.backend == backend.name
    assert str(second).endswith(f"n: 'text') on {backend.name}, called 1x")


def test_the_least_recently_used_signature_is_dropped(monkeypatch):
    monkeypatch.setattr(compiled_steps, "MOST_SIGNATURES", 3)
    captured: list[int] = []

    @gptrs.jit
    def step(x, n):
        captured.append(n)
        return x * n

    x = gptrs.tensor([1.0])
    for n in (1, 2, 3, 1, 4, 1, 3, 2):
        assert step(x, n).item() == n
    assert captured == [1, 2, 3, 4, 2]
    assert step.compiled == 3


def test_many_signatures_are_warned_of_once(caplog):
    step = gptrs.jit(lambda x, n: n)
    x = gptrs.tensor([1.0])
    with caplog.at_level(logging.WARNING, "gptrs"):
        for n in range(compiled_steps.MANY_SIGNATURES):
            step(x, n)
        assert not caplog.records
        for n in range(10):
            step(x, 1000 + n)
    (record,) = caplog.records
    assert "captured and compiled 65 times, argument `n` in 65 forms such as `0` and `1`: " in (
        record.getMessage()
    )


def test_the_first_call_of_a_process_has_the_signature_of_the_second():
    code = (
        "import gptrs; double = gptrs.jit(lambda x: x + x); x = gptrs.tensor([1.0])\n"
        "with gptrs.use_backend(gptrs.get_backend('ref')): double(x), double(x)\n"
        "print(double.compiled)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1"]
