"""`jit(dynamic=...)`: one program for all sizes of named axes, and guards about them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.capture import events
from gptrs.capture.jitting import compiled_steps
from gptrs.errors import ConsumedTensorError, ProgramError, UsageError
from gptrs.ir.dtypes import si64
from gptrs_backend_ref.backend import create
from gptrs_observe.dump import dumping

_SIZE_CLASSES = 4
"""Most programs of numba for any sizes: one row, a few, some, many."""


class Step(NamedTuple):
    """A tree of arguments, in which sizes occur several times."""

    tokens: np.ndarray
    starts: np.ndarray
    tables: tuple[np.ndarray, ...]


AXES: Any = Step(("N",), ("B+1",), (("B", "W"), ("B", "V")))  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def _on_ref():
    """What is counted here does not depend on the guards of a backend."""
    with gptrs.use_backend(create()):
        yield


def rows(count: int, width: int = 3) -> np.ndarray:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def step(rows: int, texts: int, width: int, other: int) -> Step:
    tables = (np.ones((texts, width), np.int32), np.ones((texts, other), np.int32))
    return Step(np.arange(rows), np.arange(texts + 1, dtype=np.int32), tables)


def total(given):
    tokens, starts, (one, other) = in_si64(given)
    return tokens.sum() + starts.sum() + one.sum() + other.sum()


def in_si64(given):
    cast = [F.cast(x, si64) for x in (given.tokens, given.starts, *given.tables)]
    return cast[0], cast[1], (cast[2], cast[3])


def test_one_program_serves_all_sizes(backend: Backend):
    call = gptrs.jit(lambda x, w: F.softmax(x @ w, axis=1) + 1, dynamic={"x": ("N", None)})
    weight = rows(3, 4)
    with gptrs.use_backend(backend):
        for size in (5, 1, 33, 5, 200):
            x = rows(size) / 100
            expected = gptrs.jit(lambda x, w: F.softmax(x @ w, axis=1) + 1)(x, weight)
            found = call(x, weight)
            assert found.shape == (size, 4)
            assert found.numpy().tobytes() == expected.numpy().tobytes()
    signatures = call.signatures
    assert sum(signature.calls for signature in signatures) == 5
    assert {signature.arguments["x"] for signature in signatures} == {"f32[N, 3]"}
    if backend.name == "ref":
        (signature,) = signatures
        assert str(signature) == "(x: f32[N, 3], w: f32[3, 4]) on ref, called 5x"
    else:
        assert len(signatures) <= _SIZE_CLASSES


def test_a_comparison_in_python_becomes_a_guard():
    captured: list[object] = []

    @gptrs.jit(dynamic={"x": ("N", None)})
    def call(x):
        captured.append(x.shape[0])
        return x * 2 if x.shape[0] > 16 else x + 1

    for size in (3, 17, 16, 400, 1):
        factor, more = (2, 0) if size > 16 else (1, 1)
        assert np.array_equal(call(rows(size)).numpy(), rows(size) * factor + more)
    assert len(captured) == call.compiled == 2
    assert [signature.guards for signature in call.signatures] == [("N <= 16",), ("N >= 17",)]
    assert "f32[N, 3]) where N <= 16 on" in str(call.signatures[0])


def test_shapes_compute_with_sizes():
    @gptrs.jit(dynamic={"x": ("N",), "y": ("M",)})
    def call(x, y):
        both = F.concat([x, y], axis=0)
        return F.reshape(F.stack([both, both], axis=0), (2 * (x.shape[0] + y.shape[0]),))

    for n, m in ((2, 3), (1, 1), (7, 2)):
        found = call(np.arange(n), np.arange(m))
        assert found.numpy().tolist() == [*range(n), *range(m)] * 2
    assert call.compiled == 1


def test_the_last_row_starts_at_a_symbol():
    last = gptrs.jit(lambda x: F.slice_axis(x, 0, x.shape[0] - 1, 1), dynamic={"x": ("N", None)})
    for size in (4, 1, 9):
        assert np.array_equal(last(rows(size)).numpy(), rows(size)[-1:])
    assert [signature.guards for signature in last.signatures] == [()]


def _block(x, weights):
    """A block of a transformer over rows [N, 24], and the row of the last token."""
    size = x.shape[0]
    h = F.layer_norm(x, weights["norm"], weights["norm"])
    parts = F.split(F.linear(h, weights["qkv"], layout="in_out"), 3, axis=1)
    q, k, v = (F.transpose(F.reshape(x, (1, size, 3, 8)), (0, 2, 1, 3)) for x in parts)
    mixed = F.transpose(F.attention(q, k, v, causal=True), (0, 2, 1, 3))
    x = x + F.linear(F.reshape(mixed, (size, 24)), weights["out"], layout="in_out")
    x = x + F.linear(F.gelu(F.linear(x, weights["out"])), weights["out"], weights["norm"])
    return F.slice_axis(x, 0, size - 1, 1)


class _Optimized(events.ExecutionTraceSink):
    """Keeps the names of the instructions of optimized programs."""

    def __init__(self) -> None:
        self.programs: list[list[str]] = []

    def after_program(self, event: events.CompileEnd) -> None:
        if event.optimized is not None:
            body = event.optimized.main.body
            self.programs.append([getattr(x.op, "target", x.op.name) for x in body.instructions])


def test_the_same_calls_are_fused_for_all_sizes_as_for_one(backend: Backend):
    shapes = {"norm": (24,), "qkv": (24, 72), "out": (24, 24)}
    dice = np.random.default_rng(0)
    weights = {name: dice.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for_all = gptrs.jit(_block, dynamic={"x": ("N", None)})
    sink = _Optimized()
    with gptrs.use_backend(backend), events.tracing(sink):
        for size in (1, 7):
            x = dice.normal(size=(size, 24)).astype(np.float32)
            for_all.clear()
            found, expected = for_all(x, weights), gptrs.jit(_block)(x, weights)
            assert found.numpy().tobytes() == expected.numpy().tobytes()
    if backend.name == "numba":  # ref fuses nothing, and knows the mask of one size
        *_, symbolic, at_7 = sink.programs
        assert sorted(symbolic) == sorted(at_7)


class _Reasons(events.ExecutionTraceSink):
    """Keeps why programs were compiled, and the types of their first parameters."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def before_program(self, event: events.CompileStart) -> None:
        self.told.append((event.reason, str(event.program.main.body.params[0].type)))


def test_sinks_hear_of_new_sizes_on_a_backend_without_symbols():
    call = gptrs.jit(lambda x: x + 1, dynamic={"x": ("N",)})
    sink = _Reasons()
    with events.tracing(sink):
        for size in (3, 4, 3):
            call(np.ones(size, np.float32))
    new = [("new sizes", "f32[3]"), ("new sizes", "f32[4]")]
    assert sink.told == [("not cached", "f32[?0]"), *new]


def test_symbolic_programs_are_dumped(tmp_path: Path):
    call = gptrs.jit(lambda x: F.softmax(x, axis=1), dynamic={"x": ("N", None)})
    with dumping(tmp_path / "dump"):
        for size in (2, 5):
            call(rows(size))
    texts = [path.read_text() for path in sorted((tmp_path / "dump").rglob("*.ptir"))]
    assert any("%arg0: f32[?0, 3]" in text for text in texts)
    assert any("%arg0: f32[5, 3]" in text for text in texts)


def test_a_size_of_0_has_a_program_of_its_own():
    call = gptrs.jit(lambda x: (x + 1, x.sum()), dynamic={"x": ("N", None)})
    assert call(rows(2))[1].item() == 15
    assert call(rows(0))[0].shape == (0, 3)
    assert call(rows(0))[1].item() == 0
    assert [str(each.arguments["x"]) for each in call.signatures] == ["f32[N, 3]", "f32[0, 3]"]
    assert [each.calls for each in call.signatures] == [1, 2]


def test_trees_name_axes_as_they_are_nested():
    call = gptrs.jit(total, dynamic={"given": AXES})
    for sizes in ((7, 2, 3, 4), (1, 1, 1, 1), (9, 5, 2, 8)):
        n, b, w, v = sizes
        expected = sum(range(n)) + sum(range(b + 1)) + b * (w + v)
        assert call(step(*sizes)).item() == expected
    assert call.compiled == 1


def test_one_tuple_names_the_axes_of_all_tensors_of_an_argument():
    call = gptrs.jit(lambda xs: xs["a"] + xs["b"][0], dynamic={"xs": ("N", None)})
    for size in (2, 5):
        x = rows(size)
        assert np.array_equal(call({"a": x, "b": [x]}).numpy(), 2 * x)
    assert call.compiled == 1


def test_dataclasses_keywords_and_defaults():
    @dataclasses.dataclass(frozen=True)
    class Pair:
        left: object
        right: object

    @gptrs.jit(dynamic={"pair": Pair(("N",), None), "more": ("N",)})
    def call(pair, more=None):
        return pair.left if more is None else pair.left + more

    assert call(Pair(np.arange(3), np.ones(2))).shape == (3,)
    assert call(Pair(np.arange(4), np.ones(2)), more=np.arange(4)).shape == (4,)
    assert call(more=np.arange(5), pair=Pair(np.arange(5), np.ones(2))).shape == (5,)
    assert call.compiled == 2


def test_equal_names_must_have_equal_sizes():
    call = gptrs.jit(lambda x, y: x + y, dynamic={"x": ("N", None), "y": ("N", None)})
    call(rows(3), rows(3))
    with pytest.raises(
        UsageError, match=r"`N` is 3 by axis 0 of `x`, and axis 0 of `y` is 4 .*one name"
    ):
        call(rows(3), rows(4))
    nested = gptrs.jit(total, dynamic={"given": AXES})
    wrong = step(4, 2, 3, 4)._replace(starts=np.zeros(2, np.int32))
    with pytest.raises(UsageError, match=r"axis 0 of `given.starts` is 2 \(`B\+1`\)"):
        nested(wrong)


def _iterates(x: gptrs.Tensor) -> list[gptrs.Tensor]:
    return [x[i] for i in range(x.shape[0])]


def _shares(x: gptrs.Tensor) -> gptrs.Tensor:
    return F.slice_axis(x, 0, 0, 12 // x.shape[0])


@pytest.mark.parametrize(
    ("function", "line"), [(_iterates, r"range\(x.shape\[0\]\)"), (_shares, r"12 // x.shape\[0\]")]
)
def test_what_needs_a_number_is_refused_with_line_and_axis(
    function: Callable[[gptrs.Tensor], object], line: str
):
    call = gptrs.jit(function, dynamic={"x": ("N", None)})
    message = rf"`{function.__name__}` needs the number behind `N`, axis 0 of `x` .*:\d+, `.*{line}"
    with pytest.raises(UsageError, match=message):
        call(rows(4))
    assert call.compiled == 0


def test_squeeze_without_axes_drops_a_size_that_is_1_in_a_call() -> None:
    call = gptrs.jit(lambda x: F.squeeze(x), dynamic={"x": ("N", None)})
    assert call(rows(4, 1)).shape == (4,)
    assert [call(rows(size, 3)).shape for size in (1, 2, 0, 5)] == [(3,), (2, 3), (0, 3), (5, 3)]


def test_half_of_a_size_is_a_size() -> None:
    call = gptrs.jit(lambda x: F.slice_axis(x, 0, 0, x.shape[0] // 2), dynamic={"x": ("N", None)})
    assert [call(rows(size, 3)).shape for size in (7, 4, 9)] == [(3, 3), (2, 3), (4, 3)]
    assert call.compiled == 1


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"z": ("N",)}, "`dynamic` names argument `z`, which `<lambda>` does not have"),
        ({"x": ("N",)}, r"names 1 axes of `x`, which is a `f32\[3, 3\]`"),
        ({"x": ("N+1", None)}, "gives no axis the name `N` alone"),
        ({"x": ("2N", None)}, "names an axis '2N'"),
        ({"x": [("N", None)]}, "is not nested like `x`"),
        ({"y": (("N",), ("N",))}, "is not nested like `y`"),
        ({"y": {"a": ("N",)}}, "is not nested like `y`"),
    ],
)
def test_axes_that_do_not_fit(dynamic: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        gptrs.jit(lambda x, y: x, dynamic=dynamic)(rows(3), [rows(2)])


def test_lower_gives_the_symbolic_program():
    call = gptrs.jit(lambda x, y: x @ y, dynamic={"x": ("N", None), "y": (None, "M")})
    program = call.lower(rows(5), rows(3, 2))
    assert [str(param.type) for param in program.main.body.params] == ["f32[?0, 3]", "f32[3, ?1]"]
    assert str(program.main.body.results[0].type) == "f32[?0, ?1]"


def test_donated_buffers_of_any_size(backend: Backend):
    add = gptrs.jit(
        lambda state, x: state + x, donate="state", dynamic={"state": ("N",), "x": ("N",)}
    )
    with gptrs.use_backend(backend):
        for size in (3, 8, 3):
            state = gptrs.tensor(np.ones(size, np.float32))
            result = add(state, np.ones(size, np.float32))
            assert result.numpy().tolist() == [2.0] * size
            with pytest.raises(ConsumedTensorError):
                state.numpy()
    assert add.compiled <= _SIZE_CLASSES


def test_calls_with_symbols_are_bound_again_after_many_sizes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled_steps, "MOST_SIGNATURES", 3)
    call = gptrs.jit(lambda x: x + 1, dynamic={"x": ("N",)})
    for size in (1, 2, 3, 4, 5, 1, 0, 2, 0):
        assert call(np.zeros(size)).shape == (size,)
    assert [signature.calls for signature in call.signatures] == [7, 2]


def test_it_may_be_inlined_in_other_captures():
    inner = gptrs.jit(lambda x: x + 1, dynamic={"x": ("N",)})
    outer = gptrs.jit(lambda x: inner(x) * 2, dynamic={"x": ("M",)})
    assert outer(np.zeros(3)).numpy().tolist() == [2, 2, 2]
    assert outer(np.zeros(5)).shape == (5,)
    assert (inner.compiled, outer.compiled) == (0, 1)


def test_threads_share_what_the_first_one_compiled():
    call = gptrs.jit(lambda x: F.gelu(x).sum(), dynamic={"x": ("N", None)})
    barrier, shared = threading.Barrier(8), create()
    failures: list[BaseException] = []

    def run(size: int) -> None:
        try:
            barrier.wait(120)
            with gptrs.use_backend(shared):
                for more in range(5):
                    assert call(np.zeros((size + more, 3), np.float32)).item() == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(size,)) for size in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert call.compiled == 1


def test_sizes_are_arguments_of_methods_as_numbers_are():
    x = gptrs.tensor(np.zeros((4, 3), np.float32))
    shapes = [
        gptrs.jit(change, dynamic={"x": ("N", None)})(x).shape
        for change in (
            lambda x: x.reshape(1, x.shape[0], 3),
            lambda x: x.reshape((x.shape[0] * 3,)),
            lambda x: x.sum(0).broadcast_to(x.shape[0], 3),
        )
    ]
    assert shapes == [(1, 4, 3), (12,), (4, 3)]


def test_errors_call_axes_by_their_names():
    x, y = (gptrs.tensor(np.zeros((size, 3), np.float32)) for size in (4, 5))
    step = gptrs.jit(lambda x, y: x + y, dynamic={"x": ("tokens", None), "y": ("pages", None)})
    with pytest.raises(ProgramError, match=r"`add`: shapes \[tokens, 3\], \[pages, 3\] do not"):
        step(x, y)
    step = gptrs.jit(_refuse, dynamic={"x": ("tokens", None)})
    with pytest.raises(UsageError, match=r"not of tokens, not of \?7"):
        step(x)


def _refuse(x: gptrs.Tensor) -> gptrs.Tensor:
    raise UsageError(f"not of {x.shape[0]}, not of ?7")
