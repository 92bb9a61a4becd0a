"""Products with pages of a key/value cache that are read where they lie, and axes of size 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.ir import dtypes, ops
from gptrs.ir.builder import Builder
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_jax.client import program_text
from gptrs_backend_jax.executable import JaxExecutable

PAGES, HEADS, SIZE, WIDTH = 5, 2, 16, 6
Texts = dict[str, np.ndarray]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[JaxExecutable]:
    """What is compiled in a test."""
    found: list[JaxExecutable] = []
    make = JaxExecutable.__init__

    def kept(self: JaxExecutable, *arguments: Any, **settings: Any) -> None:
        make(self, *arguments, **settings)
        found.append(self)

    monkeypatch.setattr(JaxExecutable, "__init__", kept)
    return found


def one_text(
    table: list[int], length: int, rows: int = 1, heads: int = HEADS, width: int = WIDTH
) -> Texts:
    """A text of `length` positions with new `rows`, in a pool of `PAGES`."""
    rng = np.random.default_rng(0)
    pools = rng.standard_normal((2, PAGES, HEADS, SIZE, width), np.float32)
    return {
        "query": rng.standard_normal((rows, heads, width), np.float32),
        "key_pool": pools[0],
        "value_pool": pools[1],
        "page_table": np.array([table], np.int32),
        "row_starts": np.array([0, rows], np.int32),
        "lengths": np.array([length], np.int32),
    }


def attended(backend: Backend | str, texts: Texts, **settings: int) -> np.ndarray:
    with gptrs.use_backend(backend):
        tensors = {name: gptrs.tensor(array) for name, array in texts.items()}
        return np.array(F.paged_attention(**tensors, **settings).numpy())


def reads_in_place(compiled: list[JaxExecutable]) -> bool:
    """Whether a program may copy pages, but has another way: a choice between the two."""
    texts = [program_text(each._call) or "" for each in compiled]
    return any(" conditional(" in text for text in texts)


def not_a_number_where_unseen(texts: Texts) -> None:
    for name in ("key_pool", "value_pool"):
        texts[name][3, :, 2:] = np.nan
        texts[name][0] = np.inf


def infinite_values(texts: Texts) -> None:
    texts["value_pool"][1, 0, 3] = np.inf


@pytest.mark.parametrize(
    ("table", "length", "change"),
    [
        pytest.param([0, 1, 2], 40, None, id="in order"),
        pytest.param([4, 1, 3], 34, None, id="in any order"),
        pytest.param([4, 1, 3], 34, not_a_number_where_unseen, id="NaN where nothing is seen"),
        pytest.param([4, 1, 3], 34, infinite_values, id="an infinite value"),
        pytest.param([2, 2, 2], 10, None, id="unused entries are another page"),
        pytest.param([2, 4, 2], 48, None, id="a page with two places"),
    ],
)
def test_pages_are_multiplied_where_they_lie(
    table: list[int],
    length: int,
    change: Callable[[Texts], None] | None,
    jax_backend: Backend,
) -> None:
    texts = one_text(table, length)
    if change is not None:
        change(texts)
    found = attended(jax_backend, texts)
    np.testing.assert_allclose(found, attended("ref", texts), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("table", "rows", "is_in_place"),
    [([0, 1, 2], 1, True), ([0, 1, 2], 20, False), ([1, 2], 1, False)],
    ids=["few rows", "many rows", "a large pool"],
)
def test_pages_are_copied_where_that_pays(
    table: list[int],
    rows: int,
    is_in_place: bool,
    jax_backend: Backend,
    compiled: list[JaxExecutable],
) -> None:
    # Sizes that no other test has compiled.
    texts = one_text(table, 30, rows=rows, width=WIDTH + 1)
    found = attended(jax_backend, texts)
    assert compiled
    assert reads_in_place(compiled) is is_in_place
    np.testing.assert_allclose(found, attended("ref", texts), rtol=2e-5, atol=2e-6)


def test_pages_of_grouped_heads_and_windows(jax_backend: Backend) -> None:
    texts = one_text([4, 1, 3], 37, rows=2, heads=2 * HEADS)
    for settings in ({}, {"window": 9}):
        expected = attended("ref", texts, **settings)
        found = attended(jax_backend, texts, **settings)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_pages_outside_of_the_pool_are_told(jax_backend: Backend) -> None:
    with pytest.raises(gptrs.api.ExecutionError, match="index 7 of axis 0, which has size 5"):
        attended(jax_backend, one_text([0, 7, 2], 40))


def test_new_rows_are_written_token_by_token(jax_backend: Backend) -> None:
    rng = np.random.default_rng(1)
    pool, new = rng.standard_normal((PAGES, HEADS, SIZE, WIDTH)), rng.standard_normal((4, 2, WIDTH))
    slots = np.array([70, 3, 17, 3], np.int32)
    expected = pool.copy()
    for row, slot in zip(new, slots, strict=True):
        expected[slot // SIZE, :, slot % SIZE] = row
    with gptrs.use_backend(jax_backend):
        found = F.update_pages(*map(gptrs.tensor, (pool, new, slots))).numpy()
    np.testing.assert_array_equal(found, expected)


def run(backend: Backend, executable: Executable, *arrays: np.ndarray) -> list[np.ndarray]:
    return [backend.to_host(each) for each in executable.run([*map(backend.to_device, arrays)])]


def test_axes_of_size_one(jax_backend: Backend) -> None:
    builder = Builder()
    x = builder.param(TensorType(dtypes.f32, (1, 3, 1, 4)))
    row = builder.param(TensorType(dtypes.f32, (3, 1, 1)))
    wide = builder.emit(ops.layout.BroadcastTo((2, 3, 1, 4)), row)
    one = builder.emit(ops.layout.BroadcastTo((1, 3, 1, 4)), row)
    total = builder.emit(ops.elementwise.Add(), x, one)
    kept = builder.emit(ops.reduction.Reduce("sum", (0, 3), keepdims=True), total)
    left = builder.emit(ops.reduction.Reduce("max", (1, 2)), total)
    same = builder.emit(ops.reduction.Reduce("sum", (0, 2)), total)
    program = builder.program(wide, kept, left, same)
    executable = jax_backend.compile(program, [InputRole.ARGUMENT] * 2)
    given = (
        np.arange(12, dtype=np.float32).reshape(1, 3, 1, 4),
        np.array([5, -1, 2], np.float32).reshape(3, 1, 1),
    )
    found = run(jax_backend, executable, *given)
    whole = given[0] + given[1]
    expected = [
        np.broadcast_to(given[1], (2, 3, 1, 4)),
        whole.sum((0, 3), keepdims=True),
        whole.max((1, 2)),
        whole.sum((0, 2)),
    ]
    for array, wanted in zip(found, expected, strict=True):
        assert array.shape == wanted.shape
        np.testing.assert_array_equal(array, wanted)
