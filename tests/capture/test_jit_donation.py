"""Donated arguments give their memory away, and nobody who can still see it sees it change."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.capture import primitives
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.errors import ConsumedTensorError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

pytestmark = pytest.mark.usefixtures("on_backend")


def _ones(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.ones(shape, np.float32))


def _write(cache, new, place):
    return primitives.dynamic_update_slice(cache, new, place)


def test_donated_tensors_are_consumed():
    step = gptrs.jit(lambda cache, x: cache + x, donate=[0])
    cache, x = _ones(3), _ones(3)
    result = step(cache, x)
    assert result.numpy().tolist() == [2, 2, 2]
    assert x.numpy().tolist() == [1, 1, 1]
    assert cache.shape == (3,)  # a type stays known
    with pytest.raises(ConsumedTensorError, match="was donated"):
        cache.numpy()
    with pytest.raises(ConsumedTensorError):
        step(cache, x)
    assert "donated" in repr(cache)


@pytest.mark.parametrize("donate", [1, "cache", [1], ["cache"], (1, "cache")])
def test_donation_does_not_depend_on_how_an_argument_is_passed(donate):
    step = gptrs.jit(lambda x, cache: cache + x, donate=donate)
    for call in (lambda c: step(_ones(2), c), lambda c: step(cache=c, x=_ones(2))):
        cache = _ones(2)
        assert call(cache).numpy().tolist() == [2, 2]
        with pytest.raises(ConsumedTensorError):
            cache.numpy()
    assert step.compiled == 1


def test_donated_containers():
    step = gptrs.jit(lambda x, cache: {k: [c + x for c in cs] for k, cs in cache.items()}, donate=1)
    cache = {"k": [_ones(2), _ones(2)], "v": [_ones(2)]}
    x = _ones(2)
    result = step(x, cache)
    assert [tensor.numpy().tolist() for tensor in result["k"] + result["v"]] == [[2, 2]] * 3
    assert x.numpy().tolist() == [1, 1]
    for tensor in cache["k"] + cache["v"]:
        with pytest.raises(ConsumedTensorError):
            tensor.numpy()


def test_donated_star_arguments():
    step = gptrs.jit(lambda x, *caches: [c + x for c in caches], donate=2)
    x, first, second = _ones(1), _ones(1), _ones(1)
    step(x, first, second)
    assert first.item() == 1
    with pytest.raises(ConsumedTensorError):
        second.item()


def test_a_view_handed_out_before_survives_donation():
    update = gptrs.jit(_write, donate=[0])
    cache = _ones(4)
    view = cache.numpy()
    result = update(cache, gptrs.tensor([9.0, 9.0]), gptrs.tensor([0]))
    assert result.numpy().tolist() == [9, 9, 1, 1]
    assert view.tolist() == [1, 1, 1, 1]


def test_a_donated_array_is_a_copy():
    cache = np.ones(4, np.float32)
    gptrs.jit(_write, donate=[0])(cache, np.float32([9, 9]), np.array([0]))
    assert cache.tolist() == [1, 1, 1, 1]


def test_a_donated_argument_may_be_returned_as_it_is():
    step = gptrs.jit(lambda cache: (cache, cache), donate=[0])
    cache = _ones(2)
    first, second = step(cache)
    with pytest.raises(ConsumedTensorError):
        cache.numpy()
    gptrs.jit(_write, donate=[0])(first, gptrs.tensor([5.0]), gptrs.tensor([0]))
    assert second.numpy().tolist() == [1, 1]


def test_a_donated_tensor_used_twice_is_refused():
    step = gptrs.jit(lambda cache, x: cache + x, donate=[0])
    x = _ones(2)
    with pytest.raises(UsageError, match=r"donates `cache`, which holds a `f32\[2\]` .* twice"):
        step(x, x)
    assert x.numpy().tolist() == [1, 1]


def test_a_tensor_donated_twice_is_refused():
    step = gptrs.jit(lambda caches: [c + 1 for c in caches], donate="caches")
    x, y = _ones(2), _ones(2)
    with pytest.raises(UsageError, match=r"donates `caches`.*twice"):
        step([y, x, x])
    assert x.numpy().tolist() == y.numpy().tolist() == [1, 1]


def test_a_donated_tensor_that_the_function_binds_is_refused():
    x = _ones(2)
    step = gptrs.jit(lambda cache: cache + x, donate=0)
    with pytest.raises(UsageError, match="twice"):
        step(x)
    assert step(_ones(2)).numpy().tolist() == [2, 2]


def test_a_donated_parameter_is_refused(backend):
    parameter = Parameter(
        TensorType(dtypes.f32, (2,)), 1, "w", lambda: np.ones(2, np.float32), backend
    )
    step = gptrs.jit(lambda x: x + 1, donate=0)
    with pytest.raises(UsageError, match="`<lambda>` donates `x`, which holds the parameter `w`"):
        step(Tensor.of_parameter(parameter))
    assert Tensor.of_parameter(parameter).numpy().tolist() == [1, 1]


def test_nothing_is_consumed_when_the_call_is_refused():
    step = gptrs.jit(lambda caches, w: [c + w for c in caches], donate=0)
    fresh, used = _ones(2), _ones(2)
    step([used], _ones(2))
    with pytest.raises(ConsumedTensorError):
        step([fresh, used], _ones(2))
    assert fresh.numpy().tolist() == [1, 1]


def test_a_loop_over_donated_state():
    step = gptrs.jit(_write, donate=[0])
    cache = gptrs.tensor(np.zeros(5, np.float32))
    for place in range(5):
        cache = step(cache, gptrs.tensor([float(place)]), gptrs.tensor([place]))
    assert cache.numpy().tolist() == [0, 1, 2, 3, 4]
    assert step.compiled == 1


def test_a_nested_call_donates_nothing():
    inner = gptrs.jit(lambda cache: cache + 1, donate=0)
    outer = gptrs.jit(lambda x: inner(x) + x)
    x = _ones(1)
    assert outer(x).item() == 3
    assert x.item() == 1
