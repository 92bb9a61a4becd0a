"""Errors against a reference, and what hidden states look like, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gptrs.errors import ModelError
from gptrs_observe.compare.agreement import agreement, least_cosine, summarize, top_agreement


def f32(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_errors_are_absolute_and_shares_of_the_range():
    found = agreement("logits", f32([1, 2], [3, 4.5]), f32([1, 2], [3, 5]))
    assert (found.name, found.type) == ("logits", "f32[2, 2]")
    assert (found.max_error, found.mean_error, found.scale) == (0.5, 0.125, 4)
    assert (found.relative_max_error, found.relative_mean_error) == (0.125, 0.03125)


def test_numbers_that_are_all_equal_have_their_magnitude_for_a_range():
    assert agreement("x", f32(-4, -3), f32(-4, -4)).relative_max_error == 0.25
    assert agreement("x", f32(0, 1), f32(0, 0)).relative_max_error == math.inf
    assert agreement("x", f32(0, 0), f32(0, 0)).relative_max_error == 0


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_must_be_so_in_both(broken):
    right = f32(1, broken, 3)
    assert agreement("x", right, right.copy()).max_error == 0
    assert agreement("x", right, f32(1, 2, 3)).relative_max_error == math.inf
    assert agreement("x", f32(1, 2, 3), right).relative_max_error == math.inf
    assert agreement("x", right, f32(1, -broken, 3)).max_error == (
        0 if math.isnan(broken) else math.inf
    )


def test_shapes_that_differ_cannot_be_compared():
    message = r"logits cannot be compared: `f32\[2\]` here, `f32\[1, 2\]` in the reference"
    with pytest.raises(ModelError, match=message):
        agreement("logits", f32(1, 2), f32([1, 2]))


def test_the_best_are_those_that_both_have():
    ours = f32([5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5])
    theirs = f32([5, 4, 3, 2, 1, 0], [5, 1, 2, 3, 4, 0])
    assert top_agreement(ours, theirs, 1) == 0.5
    assert top_agreement(ours, theirs, 2) == pytest.approx((1 + 0.5) / 2)
    assert top_agreement(ours, theirs, 9) == 1


def test_the_least_cosine_is_of_the_vectors_that_point_apart_most():
    ours, theirs = f32([3, 0], [1, 1]), f32([1, 0], [0, 2])
    assert least_cosine(ours, theirs) == pytest.approx(math.sqrt(0.5))
    assert math.isnan(least_cosine(f32([0, 0]), f32([1, 0])))


def test_a_state_is_summed_up_over_its_finite_numbers():
    found = summarize("layer.0", f32([3, -4, math.nan, math.inf]))
    assert (found.name, found.type) == ("layer.0", "f32[1, 4]")
    assert (found.mean, found.std, found.min, found.max) == (-0.5, 3.5, -4, 3)
    assert (found.non_finite, found.norm) == (0.5, 5)


def test_a_state_without_finite_numbers_has_no_statistics():
    found = summarize("x", f32(math.nan))
    assert found.non_finite == 1
    assert all(math.isnan(v) for v in (found.mean, found.std, found.min, found.max, found.norm))
