"""Weights come and go: in which order, how many bytes of them, and who keeps them alive."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from gptrs.capture.parameter import Parameter, Streaming
from gptrs.capture.streaming import streamed_executable
from gptrs.capture.streaming.streamed_executable import MruStreamer
from gptrs.errors import ModelError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

SIZE = 400
"""Bytes of each weight."""


class Model:
    """Weights that count how often they are read."""

    def __init__(self, backend, budget: int, count: int = 10, **settings) -> None:
        self.streamer = MruStreamer(
            Streaming(budget, **{"pin_below": 0, "prefetch": 0, **settings})
        )
        self.reads = [0] * count
        self.weights = [self._weight(number, backend) for number in range(count)]

    def _weight(self, number: int, backend) -> Parameter:
        def load() -> np.ndarray:
            self.reads[number] += 1
            return np.full(SIZE // 4, number, np.float32)

        type_ = TensorType(dtypes.f32, (SIZE // 4,))
        return Parameter(type_, number, f"w{number}", load, backend, self.streamer, zero_copy=True)

    def use(self, *numbers: int, rows: int | None = None) -> list[float]:
        with self.streamer.acquire({self.weights[number]: rows for number in numbers}) as buffers:
            assert self.streamer.bytes_held <= self.streamer.streaming.budget
            backend = self.weights[0].backend
            return [float(backend.to_host(buffer)[0]) for buffer in buffers.values()]


def test_weights_used_in_cycles_stay_as_far_as_there_is_room(backend):
    """To drop the least recently used one would read all of them in each cycle."""
    model = Model(backend, 5 * SIZE)
    for _ in range(10):
        for number in range(10):
            assert model.use(number) == [number]
    assert sum(model.reads) <= 10 + 9 * 7
    assert model.streamer.bytes_read == SIZE * sum(model.reads)
    assert model.streamer.most_held == 4 * SIZE, "an eighth of the budget stays free"


def test_acquired_weights_are_not_evicted_for_their_neighbours(backend):
    model = Model(backend, 2 * SIZE)
    assert model.use(0, 1) == [0, 1]
    assert model.use(1, 2) == [1, 2]
    assert model.reads[:3] == [1, 1, 1]
    assert not model.weights[0].loaded


def test_small_weights_stay(backend):
    model = Model(backend, 3 * SIZE, pin_below=SIZE + 1)
    for number in range(3):
        model.use(number)
    for number in range(3):
        model.use(number)
    assert model.reads[:3] == [1, 1, 1]


def test_small_weights_go_before_the_budget_is_broken(backend):
    model = Model(backend, 3 * SIZE, pin_below=SIZE + 1)
    for number in range(10):
        model.use(number)
    assert model.streamer.most_held <= 3 * SIZE


def test_rows_are_read_in_place(backend):
    model = Model(backend, 2 * SIZE)
    assert model.use(0, rows=1) == [0]
    assert model.streamer.bytes_held == 0
    assert not model.weights[0].loaded
    model.use(0)
    assert model.use(0, rows=1) == [0]
    assert model.weights[0].loaded, "it was in memory as a whole"


def test_a_weight_that_is_not_acquired_is_not_kept(backend):
    model = Model(backend, SIZE)
    assert backend.to_host(model.weights[3].buffer())[0] == 3
    assert not model.weights[3].loaded


def test_what_a_derived_weight_is_made_of_needs_room_too(backend):
    model = Model(backend, 3 * SIZE)
    first = model.weights[0]
    derived = Parameter(
        first.type, 99, "d", lambda: np.ones(SIZE // 4, np.float32), backend,
        model.streamer, model.weights[:2],
    )  # fmt: skip
    model.use(5)
    with model.streamer.acquire({derived: None}):
        assert not model.weights[5].loaded, "three weights have to fit"
    with pytest.raises(ModelError, match=f"budget of {3 * SIZE} bytes is too small: `d`"):
        model.streamer.require_room([dict.fromkeys([derived, model.weights[4]])])


def test_the_least_budget_counts_pinned_weights(backend):
    model = Model(backend, 3 * SIZE, pin_below=SIZE)
    model.weights[0].type = TensorType(dtypes.f32, (90,))
    pinned = dict.fromkeys(model.weights[:1])
    pair = dict.fromkeys(model.weights[1:3])
    model.streamer.require_room([pinned, pair])
    triple = dict.fromkeys(model.weights[1:4])
    with pytest.raises(ModelError, match=f"at least {360 + 3 * SIZE} bytes"):
        model.streamer.require_room([pinned, triple])


def test_threads_wait_for_each_other(backend):
    model = Model(backend, 2 * SIZE)
    wrong: list[int] = []

    def work(numbers: range) -> None:
        for number in [*numbers] * 20:
            if model.use(number) != [number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(range(n, 10, 2),)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.streamer.most_held <= 2 * SIZE


def asked(model: Model, number: int) -> bool:
    """Whether the thread comes to a weight, some time."""
    for _ in range(500):
        if model.reads[number]:
            return True
        threading.Event().wait(0.01)
    return False


def test_only_mapped_files_are_prefetched(backend, monkeypatch):
    """A weight that is converted would take memory, and is left to `acquire`."""
    monkeypatch.setattr(streamed_executable, "_disk_reads", itertools.count().__next__)
    model = Model(backend, 5 * SIZE)
    model.weights[1].zero_copy = False
    model.streamer.prefetch(dict(zip(model.weights, [None, None, 4], strict=False)))
    model.streamer.prefetch({model.weights[5]: None})
    assert asked(model, 5)
    assert model.reads[0] == 1
    assert model.reads[1] == model.reads[2] == 0
    assert not any(weight.loaded for weight in model.weights)


def test_nothing_is_prefetched_while_the_disk_rests(backend, monkeypatch):
    reads = iter([7, 7, 7, 9])
    monkeypatch.setattr(streamed_executable, "_disk_reads", lambda: next(reads))
    model = Model(backend, 5 * SIZE)
    for number in range(4):
        model.streamer.prefetch({model.weights[number]: None})
    assert asked(model, 3)
    assert model.reads[:4] == [1, 0, 0, 1], "the first request, and the one after a read"
