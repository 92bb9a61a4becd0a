"""Containers go into jitted functions and come out of them as what they were."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec import Struct

import gptrs
from gptrs.capture.jitting.pytree import register_pytree
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError

pytestmark = pytest.mark.usefixtures("on_backend")


class Moments(NamedTuple):
    mean: Any
    variance: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    weight: Any
    name: str = "none"

    def __post_init__(self) -> None:
        if isinstance(self.weight, list):
            raise ValueError("the fields are set without this check only when they are copied")


@dataclasses.dataclass
class State:
    layers: list[Layer]
    step: int
    doubled: Any = dataclasses.field(init=False, default=None)


def test_nested_arguments_and_results():
    @gptrs.jit
    def swap(pair, options):
        first, second = pair
        return {"b": [second * options["scale"], first], "a": None, "k": 3, "e": (), "t": (first,)}

    result = swap((gptrs.tensor([1.0]), gptrs.tensor([2.0])), {"scale": 10})
    assert result["b"][0].numpy().tolist() == [20]
    assert result["b"][1].numpy().tolist() == [1]
    assert (result["a"], result["k"], result["e"]) == (None, 3, ())
    assert isinstance(result["t"], tuple)
    assert list(result) == ["b", "a", "k", "e", "t"]


def test_named_tuples_and_dataclasses():
    @gptrs.jit
    def advance(state, moments):
        assert type(moments) is Moments
        (layer,) = state.layers
        new = State([Layer(layer.weight + moments.mean, layer.name + "!")], state.step + 1)
        new.doubled = layer.weight * 2
        return new, Moments(moments.variance, None)

    state = State([Layer(gptrs.tensor([1.0]), "first")], 3)
    state, moments = advance(state, Moments(gptrs.tensor([2.0]), gptrs.tensor([4.0])))
    assert type(state) is State
    assert type(moments) is Moments
    assert (state.layers[0].weight.item(), state.layers[0].name, state.step) == (3, "first!", 4)
    assert (state.doubled.item(), moments.mean.item(), moments.variance) == (2, 4, None)
    advance(state, Moments(gptrs.tensor([2.0]), gptrs.tensor([4.0])))
    assert advance.compiled == 2  # `name` and `step` are static


class Checked(Struct, frozen=True, kw_only=True):
    weight: Any
    name: str = "none"

    def __post_init__(self) -> None:
        if isinstance(self.weight, Tensor):
            self.weight.item()  # no value is known while a function is captured


def test_structs_are_copied_without_their_checks():
    step = gptrs.jit(lambda each: (each, each.weight * 2))
    for value in (1.0, 5.0):
        same, doubled = step(Checked(weight=gptrs.tensor([value]), name="first"))
        assert type(same) is Checked
        assert (same.weight.item(), same.name, doubled.item()) == (value, "first", 2 * value)
    assert step.compiled == 1
    assert step.signatures[0].arguments == {"each": "Checked(weight=f32[1], name='first')"}


def test_containers_of_several_types_differ():
    step = gptrs.jit(lambda x: x)
    a, b = gptrs.tensor([1.0]), gptrs.tensor([2.0])
    for value in ((a, b), [a, b], Moments(a, b), {"mean": a, "variance": b}):
        assert type(step(value)) is type(value)
    assert step.compiled == 4


def test_the_order_of_a_dict_does_not_matter():
    seen: list[list[str]] = []

    @gptrs.jit
    def step(x):
        seen.append(list(x))
        return x["a"] - x["b"]

    a, b = gptrs.tensor([5.0]), gptrs.tensor([2.0])
    assert step({"b": b, "a": a}).item() == 3
    assert step({"a": a, "b": b}).item() == 3
    assert seen == [["a", "b"]]


def test_keys_of_other_types():
    class Side(enum.Enum):
        RIGHT = 1
        LEFT = 2

    step = gptrs.jit(lambda x: x)
    one = gptrs.tensor([1.0])
    for keys in ([2, 1], [(1, "b"), (0, "a")], [Side.RIGHT, Side.LEFT], [b"b", b"a"]):
        assert step(dict.fromkeys(keys, one)).keys() == set(keys)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1: 0, "b": 0}}, r'keys have no order \(they are `int`, `str`\) as `x\["a"\]`'),
        ({1: 0, True + 0.5: 0}, r"\(they are `float`, `int`\) as `x`"),
        ([{None: 0, 1j: 0}], r"\(they are `NoneType`, `complex`\) as `x\[0\]`"),
        ([{1j: 0, 2j: 0}], r"\(they are `complex`\) as `x\[0\]`"),
    ],
)
def test_keys_without_order_are_refused(value, message):
    with pytest.raises(UsageError, match=message):
        gptrs.jit(lambda x: x)(value)


def test_arrays_are_tensors():
    @gptrs.jit
    def step(x, y):
        assert isinstance(x, Tensor)
        assert isinstance(y["scalar"], Tensor)
        return x + y["scalar"], np.arange(3)

    array = np.ones(2, np.float32)
    total, counted = step(array, {"scalar": np.float32(3)})
    assert total.numpy().tolist() == [4, 4]
    assert isinstance(counted, Tensor)
    assert counted.numpy().tolist() == [0, 1, 2]
    step(gptrs.tensor(array), {"scalar": gptrs.tensor(1.0)})
    assert step.compiled == 1
    with pytest.raises(UsageError, match=r'array of `<U1`.* as `y\["scalar"\]`'):
        step(array, {"scalar": np.array("a")})


def test_registered_classes():
    class Sparse:
        def __init__(self, indices, values, size):
            self.indices, self.values, self.size = indices, values, size

    register_pytree(
        Sparse, lambda x: ((x.indices, x.values), x.size), lambda size, xs: Sparse(*xs, size)
    )

    @gptrs.jit
    def double(x):
        return {"result": Sparse(x.indices, x.values * x.size, x.size + 1)}

    x = Sparse(gptrs.tensor([0, 2]), [gptrs.tensor([1.0, 3.0])][0], 2)
    result = double(x)["result"]
    assert (result.values.numpy().tolist(), result.size) == ([2, 6], 3)
    double(result)
    assert double.compiled == 2
    assert double.signatures[0].arguments == {"x": "Sparse(si64[2], f32[2])"}
    with pytest.raises(UsageError, match="`Sparse` is known already"):
        register_pytree(Sparse, lambda x: ((), None), lambda rest, parts: x)


def test_a_dataclass_may_be_registered():
    @dataclasses.dataclass
    class Cached:
        value: object
        cache: object = None

    step = gptrs.jit(lambda x: x)
    assert step(Cached(gptrs.tensor([1.0]), 3)).cache == 3
    register_pytree(Cached, lambda x: ((x.value,), None), lambda rest, parts: Cached(*parts))
    assert step(Cached(gptrs.tensor([1.0]), object())).cache is None
    assert step.compiled == 2


@pytest.mark.parametrize("cls", [tuple, list, dict, int, str, enum.Enum, Tensor])
def test_types_that_are_known_cannot_be_registered(cls):
    with pytest.raises(UsageError, match=f"`{cls.__name__}` is known already"):
        register_pytree(cls, lambda x: ((), None), lambda rest, parts: cls())


def test_only_classes_can_be_registered():
    with pytest.raises(UsageError, match="`register_pytree` needs a class, got `3`"):
        register_pytree(3, lambda x: ((), None), lambda rest, parts: 3)


def test_what_flatten_keeps_must_have_a_hash():
    class Box:
        def __init__(self, value):
            self.value = value

    register_pytree(Box, lambda x: ((x.value,), []), lambda rest, parts: Box(*parts))
    with pytest.raises(UsageError, match=r"`Box` whose `flatten` keeps an unhashable `list` as"):
        gptrs.jit(lambda x: x)([Box(gptrs.tensor([1.0]))])


def test_subclasses_are_not_what_they_derive_from():
    with pytest.raises(UsageError, match=r"type `OrderedDict` as `x`.*gptrs\.register_pytree"):
        gptrs.jit(lambda x: x)(OrderedDict(a=1))
