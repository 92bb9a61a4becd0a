"""jit captures once per signature, replays, and reuses donated memory safely."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.errors import ConsumedTensorError, UsageError


@pytest.fixture(autouse=True)
def _on_backend(backend):
    with gptrs.use_backend(backend):
        yield


def _ones(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.ones(shape, np.float32))


def test_captures_once_per_signature():
    calls: list[tuple[int, ...]] = []

    @gptrs.jit
    def double(x):
        calls.append(x.shape)
        return x + x

    for value in (1.0, 2.0):
        assert double(gptrs.tensor([value])).numpy().tolist() == [2 * value]
    double(_ones(2))
    double(gptrs.tensor([1]))
    assert calls == [(1,), (2,), (1,)]
    assert double.compiled == 3


def test_nested_arguments_and_results():
    @gptrs.jit
    def swap(pair, options):
        first, second = pair
        return {"a": [second * options["scale"], first], "n": None, "k": 3}

    result = swap((gptrs.tensor([1.0]), gptrs.tensor([2.0])), {"scale": 10})
    assert result["a"][0].numpy().tolist() == [20]
    assert result["a"][1].numpy().tolist() == [1]
    assert (result["n"], result["k"]) == (None, 3)


def test_static_values_are_part_of_the_signature():
    @gptrs.jit
    def scale(x, factor):
        return x * factor

    x = gptrs.tensor([1.0])
    assert scale(x, 2).item() == 2
    assert scale(x, 3).item() == 3
    assert scale(x, 1).item() == 1
    assert scale(x, True).item() == 1
    assert scale.compiled == 4


def test_keyword_arguments():
    @gptrs.jit
    def sub(x, y):
        return x - y

    x, y = gptrs.tensor([5.0]), gptrs.tensor([2.0])
    assert sub(y=y, x=x).item() == 3
    assert sub(x, y=y).item() == 3


def test_other_objects_are_refused():
    with pytest.raises(UsageError, match="cannot pass a value of type `object`"):
        gptrs.jit(lambda x: x)(object())


def test_lazy_arguments_are_computed_first():
    y = primitives.exp(_ones(2))
    np.testing.assert_allclose(gptrs.jit(lambda x: x * 2)(y).numpy(), 2 * np.e, rtol=1e-6)


def test_results_that_are_arguments_or_equal():
    x = gptrs.tensor([1.0, 2.0])
    same, double, again = gptrs.jit(lambda x: (x, x * 2, x * 2))(x)
    assert same.numpy().tolist() == [1, 2]
    assert double.numpy().tolist() == again.numpy().tolist() == [2, 4]


def test_closed_over_tensors_are_bound():
    w = gptrs.tensor([3.0])
    step = gptrs.jit(lambda x: x * w)
    assert step(gptrs.tensor([2.0])).item() == 6
    assert step(gptrs.tensor([4.0])).item() == 12


def test_host_arguments_join_the_backend_of_bound_tensors(backend):
    """A function that binds weights has a home; arguments fresh from the host do not fork it."""
    w = gptrs.tensor([3.0]) * 1
    w.numpy()
    step = gptrs.jit(lambda x: x * w)
    first = step(gptrs.tensor([2.0]))
    assert step(first).item() == 18
    assert step(gptrs.tensor([1.0])).item() == 3
    assert step.compiled == 1


def test_reading_a_value_while_capturing_is_an_error():
    with pytest.raises(UsageError, match=r"not known while `gptrs\.jit` captures"):
        gptrs.jit(lambda x: x if x.item() > 0 else -x)(gptrs.tensor(1.0))
    with pytest.raises(UsageError, match="not known"):
        gptrs.jit(lambda x: x if F.sub(x, 1) else -x)(gptrs.tensor(1.0))


def test_a_stored_argument_does_not_leak_into_another_capture():
    kept = []

    @gptrs.jit
    def keep(x):
        kept.append(x)
        return x + 1

    keep(_ones(1))
    with pytest.raises(UsageError, match="argument of another captured function"):
        gptrs.jit(lambda y: y + kept[0])(_ones(1))


def test_nested_jit_becomes_part_of_the_outer_one():
    inner = gptrs.jit(lambda x: x + 1)
    outer = gptrs.jit(lambda x: inner(x) * 2)
    assert outer(gptrs.tensor([1.0])).item() == 4
    assert (inner.compiled, outer.compiled) == (0, 1)


def test_donated_tensors_are_consumed():
    step = gptrs.jit(lambda cache, x: cache + x, donate=[0])
    cache, x = _ones(3), _ones(3)
    cache.shape  # a type stays known  # noqa: B018
    result = step(cache, x)
    assert result.numpy().tolist() == [2, 2, 2]
    assert x.numpy().tolist() == [1, 1, 1]
    with pytest.raises(ConsumedTensorError, match="was donated"):
        cache.numpy()
    with pytest.raises(ConsumedTensorError):
        step(cache, x)
    assert "donated" in repr(cache)


def test_donation_by_keyword_and_in_nested_arguments():
    step = gptrs.jit(lambda x, cache: [c + x for c in cache], donate=["cache"])
    caches = [_ones(2), _ones(2)]
    step(_ones(2), cache=caches)
    for cache in caches:
        with pytest.raises(ConsumedTensorError):
            cache.numpy()


def test_a_view_handed_out_before_survives_donation():
    update = gptrs.jit(
        lambda cache, new: primitives.dynamic_update_slice(cache, new, gptrs.tensor([0])),
        donate=[0],
    )
    cache = _ones(4)
    view = cache.numpy()
    result = update(cache, gptrs.tensor([9.0, 9.0]))
    assert result.numpy().tolist() == [9, 9, 1, 1]
    assert view.tolist() == [1, 1, 1, 1]


def test_a_donated_tensor_used_twice_is_refused():
    step = gptrs.jit(lambda cache, x: cache + x, donate=[0])
    x = _ones(2)
    with pytest.raises(UsageError, match="used twice"):
        step(x, x)
    assert x.numpy().tolist() == [1, 1]


def test_a_loop_over_donated_state():
    step = gptrs.jit(
        lambda cache, value, place: primitives.dynamic_update_slice(cache, value, place),
        donate=[0],
    )
    cache = gptrs.tensor(np.zeros(5, np.float32))
    for place in range(5):
        cache = step(cache, gptrs.tensor([float(place)]), gptrs.tensor([place]))
    assert cache.numpy().tolist() == [0, 1, 2, 3, 4]
    assert step.compiled == 1


def test_eager_mode_calls_the_function(monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    calls = []

    @gptrs.jit
    def double(x):
        calls.append(1)
        return x + x

    for _ in range(2):
        assert double(gptrs.tensor([1.0])).item() == 2
    assert len(calls) == 2


def test_active_overrides_are_part_of_the_signature():
    name = f"identity_{uuid.uuid4().hex}"  # implementations stay registered
    F.implement("neg", name)(lambda x: x)
    step = gptrs.jit(lambda x: F.neg(x))
    x = gptrs.tensor([1.0])
    assert step(x).item() == -1
    with gptrs.overrides({"neg": name}):
        assert step(x).item() == 1
    assert step(x).item() == -1
