"""A ring has what its window reads, whatever the steps are, and never more than it needs."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.errors import UsageError
from gptrs.nn import CacheSpec

WINDOWS = [1, 2, 7, 15, 16, 17, 100, 127, 128, 255, 256, 257, 300, 512, 1000, 4096]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_ring_is_a_little_larger_than_its_window(window):
    layer = CacheSpec(2, 4, window)
    assert window < layer.slots(10**6) <= window + 256
    assert layer.slots(window // 2 + 1) == window // 2 + 1


def test_without_a_window_there_is_a_slot_for_each_position():
    layer = CacheSpec(2, 4)
    assert layer.slots(1000) == 1000
    assert layer.step_size(10, 700, 1000) == 700
    assert layer.holds(3, 1000, 1000)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 256, 5000])
def test_no_step_wraps_or_overwrites_what_it_reads(window, chunk):
    layer, limit, length = CacheSpec(1, 1, window), 3 * window + 1200, 0
    size = layer.slots(limit)
    contents = np.full(size, -1)
    while length < limit:
        asked = min(chunk, limit - length)
        count = layer.step_size(length, asked, limit)
        assert 1 <= count <= asked
        first = length % size
        assert first + count <= size
        contents[first : first + count] = np.arange(length, length + count)
        read = np.arange(max(0, length - window + 1), length + count)
        assert np.isin(read, contents).all()
        length += count


@pytest.mark.parametrize(("window", "aligned"), [(256, 256), (4096, 256), (128, 128), (512, 256)])
def test_usual_chunks_stay_whole(window, aligned):
    layer = CacheSpec(1, 1, window)
    for length in range(0, 20 * aligned, aligned):
        assert layer.step_size(length, aligned, 10**6) == aligned


@pytest.mark.parametrize("window", [1, 2, 7, 40])
def test_holds_tells_what_the_slots_have(window):
    limit = 400
    layer = CacheSpec(1, 1, window)
    size = layer.slots(limit)
    for length in (0, 1, size - 1, size, size + 1, 3 * size + 5):
        kept = set(range(max(0, length - size), length))
        for position in range(length + 1):
            read = set(range(max(0, position - window + 1), position))
            assert layer.holds(position, length, limit) == (read <= kept)


@pytest.mark.parametrize("sizes", [(0, 1, None), (1, 0, None), (1, 1, 0)])
def test_sizes_below_1_are_refused(sizes):
    with pytest.raises(UsageError, match="of at least 1, got 0"):
        CacheSpec(*sizes)
