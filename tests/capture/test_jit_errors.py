"""What goes wrong in a jitted function is said with its name, where, and what to do instead."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.errors import UsageError

pytestmark = pytest.mark.usefixtures("on_backend")


READS = {
    "`if` or `bool()`": lambda x: x if x else -x,
    "`int()`": int,
    "`float()`": float,
    "an index or `range`": lambda x: list(range(x)),
    "`item()`": lambda x: x.item(),
    "`numpy()`": lambda x: x.numpy(),
    "`np.asarray`": np.asarray,
    "`in`": lambda x: 3 in x,
    "iterating": lambda x: [y for y in x],
}


@pytest.mark.parametrize("asked", READS)
@pytest.mark.parametrize("value", [3, [1.0, 2.0]])
def test_a_traced_value_has_no_python_value(asked, value):
    @gptrs.jit(static="read")
    def absolute(x, read):
        return read(x * 1)

    x = gptrs.tensor(value)
    with pytest.raises(UsageError) as caught:
        absolute(x, READS[asked])
    message = f"{asked} needs the value of a `{x.type}`, which is not known while `gptrs.jit`"
    assert caught.value.message == f"{message} captures `absolute`"
    assert caught.value.hint


def test_a_comparison_does_not_decide():
    with pytest.raises(UsageError, match=r"`if` or `bool\(\)`.*captures `<lambda>`.*`F.where`"):
        gptrs.jit(lambda x: x if x.sum() else -x)(gptrs.tensor(1.0))


def test_what_is_known_of_a_traced_value():
    @gptrs.jit
    def step(x):
        assert len(x) == 2
        assert "not computed yet" in repr(x)
        return x * len(x), x.shape, x.dtype

    result, shape, dtype = step(gptrs.tensor([1.0, 2.0]))
    assert result.numpy().tolist() == [2, 4]
    assert (shape, dtype.name) == ((2,), "f32")


def test_values_that_do_not_depend_on_arguments_may_be_read():
    table = gptrs.tensor([1.0, 2.0])
    step = gptrs.jit(lambda x: x * float(table.numpy()[1]))
    assert step(gptrs.tensor([3.0])).item() == 6


def test_a_tensor_read_after_its_capture():
    kept = []

    @gptrs.jit
    def keep(x):
        kept.append(x * 2)
        return x

    keep(gptrs.tensor([1.0]))
    with pytest.raises(UsageError, match=r"`f32\[1\]` that only stood for .* of `keep` while it"):
        kept[0].numpy()
    with pytest.raises(UsageError, match="let `keep` return the tensor"):
        (kept[0] + 1).item()


def test_a_stored_argument_does_not_leak_into_another_capture():
    kept = []

    @gptrs.jit
    def keep(x):
        kept.append(x)
        return x + 1

    keep(gptrs.tensor([1.0]))
    message = r"`<lambda>` uses a `f32\[1\]` that only stood for an argument of `keep`"
    with pytest.raises(UsageError, match=message):
        gptrs.jit(lambda y: y + kept[0])(gptrs.tensor([1.0]))


def test_a_capture_that_failed_leaves_nothing_behind():
    @gptrs.jit
    def step(x, fail):
        if fail:
            raise ValueError("on purpose")
        return x + 1

    x = gptrs.tensor([1.0])
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            step(x, True)
    assert step.compiled == 0
    assert step(x, False).item() == 2
    assert gptrs.jit(lambda x: step(x, False))(x).item() == 2


def test_reading_in_the_body_of_a_loop():
    body = "while the body of a loop or branch is captured"
    with pytest.raises(UsageError, match=f"`item..`.*not known {body}"):
        primitives.cond(gptrs.tensor(True), lambda a: a * a.item(), lambda a: a, gptrs.tensor(1.0))


class Opaque:
    pass


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: Opaque(), "x"),
        (lambda: {"b": 1, "a": [1, Opaque()]}, 'x["a"][1]'),
        (lambda: (1, {2: (Opaque(),)}), "x[1][2][0]"),
        (lambda: [{1, 2}], "x[0]"),
        (lambda: [1 + 2j], "x[0]"),
    ],
)
def test_the_part_of_an_argument_that_is_refused_is_named(make, path):
    step = gptrs.jit(lambda x: x)
    with pytest.raises(UsageError) as caught:
        step(make())
    assert caught.value.message.startswith("`<lambda>` cannot take a value of type `")
    assert caught.value.message.endswith(f"as `{path}`")
    assert "gptrs.register_pytree" in (caught.value.hint or "")


def test_a_layer_is_no_argument():
    class Layer:
        def __call__(self, x): ...

    with pytest.raises(UsageError, match=r"`Layer` as `layer`.*`gptrs\.jit\(model\.forward\)`"):
        gptrs.jit(lambda x, layer: layer(x))(gptrs.tensor([1.0]), Layer())


@pytest.mark.parametrize("mode", ["0", "1"])
def test_the_part_of_a_result_that_is_refused_is_named(monkeypatch, mode):
    monkeypatch.setenv("GPTRS_EAGER", mode)

    def step(x):
        return {"a": [x, Opaque()], "b": 1}

    message = r'`step` cannot return a value of type `Opaque` as `result\["a"\]\[1\]`; return'
    with pytest.raises(UsageError, match=message):
        gptrs.jit(step)(gptrs.tensor([1.0]))


def test_tensors_without_a_single_number():
    x = gptrs.tensor([1.0, 2.0])
    with pytest.raises(
        UsageError, match=r"`item\(\)` needs a tensor of one element, got `f32\[2\]`"
    ):
        x.item()
    with pytest.raises(UsageError, match=r"`int\(\)` needs a tensor of one element"):
        int(x)
    with pytest.raises(
        UsageError, match=r"`range` needs an integer tensor of rank 0, got `f32\[2\]`"
    ):
        range(x)
    with pytest.raises(UsageError, match=r"`float\(\)` needs a real number, got `cf64\[\]`"):
        float(gptrs.tensor(1j))


def test_tensors_as_sequences():
    x = F.mul(gptrs.tensor([[1.0, 2.0], [3.0, 4.0]]), 1)
    assert len(x) == 2
    assert [row.numpy().tolist() for row in x] == [[1, 2], [3, 4]]
    assert 3 in x
    assert 5 not in x
    assert list(range(gptrs.tensor(3))) == [0, 1, 2]
    assert [10, 20, 30][gptrs.tensor(1)] == 20
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, np.float64).dtype == np.float64
    with pytest.raises(UsageError, match=r"`len\(\)` needs a tensor with axes, got `f32\[\]`"):
        len(gptrs.tensor(1.0))
    with pytest.raises(UsageError, match="iterating needs a tensor with axes"):
        iter(gptrs.tensor(1.0))


def test_a_function_captured_in_a_loop_takes_the_values_of_the_body():
    def body(a):
        return gptrs.jit(lambda: a * 2)()

    with pytest.raises(
        UsageError, match=r"uses a `f32\[\]` that stands for an argument of the body"
    ):
        primitives.cond(gptrs.tensor(True), body, lambda a: a, gptrs.tensor(1.0))
