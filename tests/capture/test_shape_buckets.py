"""Buckets hold what is asked for, and are few."""

from __future__ import annotations

import pytest

from gptrs.capture.shape_buckets import bucket
from gptrs.errors import UsageError


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 64), (1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (2**40 + 1, 2**41)],
)
def test_buckets_double(size, expected):
    assert bucket(size) == expected


def test_the_first_bucket_is_the_unit():
    assert [bucket(size, first=3) for size in (1, 3, 4, 6, 7, 12, 13)] == [3, 3, 6, 6, 12, 12, 24]


def test_the_limit_is_the_last_bucket():
    assert [bucket(size, first=4, limit=10) for size in (3, 5, 8, 9, 10)] == [4, 8, 8, 10, 10]
    assert bucket(1, first=64, limit=10) == 10


@pytest.mark.parametrize("first", [1, 3, 64])
def test_every_size_gets_the_smallest_bucket_that_holds_it(first):
    buckets = [first * 2**k for k in range(12)]
    for size in range(1000):
        assert bucket(size, first) == min(each for each in buckets if each >= size)


def test_a_growing_size_meets_few_buckets():
    assert len({bucket(size, limit=3000) for size in range(3001)}) == 7


def test_beyond_the_limit_is_an_error():
    with pytest.raises(UsageError, match="a size of 11 is beyond the last bucket, 10"):
        bucket(11, limit=10)


@pytest.mark.parametrize(("size", "first"), [(-1, 64), (1, 0)])
def test_senseless_sizes_are_errors(size, first):
    with pytest.raises(UsageError, match=r"needs a size >= 0 and a first bucket >= 1"):
        bucket(size, first)
