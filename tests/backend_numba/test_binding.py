"""What an executable remembers of its inputs between runs, and when it must look again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np

from gptrs.backend.contract import InputRole
from gptrs.ir.builder import Builder
from gptrs.ir.ops.elementwise import Add
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba import backend
from gptrs_backend_numba.run.input_binding import BoundArrays, StorageAddress


def compiled_sum() -> Callable[[np.ndarray, np.ndarray], list[float]]:
    builder = Builder()
    type_ = TensorType.of(np.zeros(4, np.float32))
    x, y = builder.param(type_, "x"), builder.param(type_, "y")
    program = builder.program(builder.emit(Add(), x, y))
    made = backend.create(1).compile(program, [InputRole.PARAMETER, InputRole.ARGUMENT])

    def run(x: np.ndarray, y: np.ndarray) -> list[float]:
        return np.asarray(made.run([x, y])[0]).tolist()

    return run


def test_an_array_that_is_remembered_is_not_another_one_until_it_goes():
    bound, array = BoundArrays(2), np.zeros(3)
    bound.remember(1, array)
    identities = [id(array), id(array)]
    assert bound.others(identities) == [0]
    del array
    gc.collect()
    assert bound.others(identities) == [0, 1]


def test_what_is_forgotten_stays_forgotten_when_its_array_goes():
    bound, first, second = BoundArrays(1), np.zeros(3), np.zeros(3)
    bound.remember(0, first)
    bound.remember(0, second)
    del first
    assert bound.others([id(second)]) == []
    bound.forget(0)
    assert bound.others([id(second)]) == [0]


def test_a_location_writes_where_it_is_used():
    words = memoryview(bytearray(32)).cast("q")
    location = StorageAddress(words, [(1, 0), (3, 16)])
    location.move(64)
    assert words.tolist() == [0, 64, 0, 80]


def test_an_input_that_had_to_be_copied_does_not_hide_the_next():
    run, ones = compiled_sum(), np.ones(4, np.float32)
    strided = np.arange(8, dtype=np.float32)[::2]
    for x in (ones, strided, ones, strided):
        assert run(x, ones) == (x + 1).tolist()


def test_new_arrays_at_the_place_of_old_ones_are_seen():
    run, zeros = compiled_sum(), np.zeros(4, np.float32)
    for number in range(50):
        x = np.full(4, number, np.float32)
        assert run(x, zeros) == [number] * 4
        del x


def test_no_array_of_the_caller_is_kept_alive():
    run, x = compiled_sum(), np.ones(4, np.float32)
    run(x, x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
