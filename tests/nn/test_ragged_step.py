"""Steps of several texts: where rows start and end, and into which slots their keys go."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.nn.ragged_step import pages_for, ragged_step


def test_a_chunk_and_a_decoded_token_share_a_step():
    table = np.array([[4, 0], [7, 2]])
    step = ragged_step([[5, 6, 7], [8]], [30, 33], [table, table + 1])
    assert step.tokens.tolist() == [5, 6, 7, 8]
    assert step.positions.tolist() == [30, 31, 32, 33]
    assert step.row_starts.tolist() == [0, 3, 4]
    assert step.lengths.tolist() == [33, 34]
    # Position 32 of the first text lies in its second page, 33 of the other one in page 2.
    assert step.slots[0].tolist() == [4 * 32 + 30, 4 * 32 + 31, 0, 2 * 32 + 1]
    assert step.slots[1].tolist() == [5 * 32 + 30, 5 * 32 + 31, 32, 3 * 32 + 1]


def test_steps_have_the_types_that_models_are_compiled_for():
    step = ragged_step([[5]], [0], [np.array([[3]])])
    assert (step.tokens.dtype, step.positions.dtype) == (np.int64, np.int64)
    small = [step.row_starts, step.lengths, *step.page_tables, *step.slots]
    assert {array.dtype for array in small} == {np.dtype(np.int32)}


@pytest.mark.parametrize("as_arrays", [False, True])
def test_steps_of_single_tokens_are_those_of_any_tokens(as_arrays: bool):
    tables = [np.array([[4, 0], [7, 2], [3, 0]]), np.array([[1, 6], [5, 2], [9, 8]], np.int32)]
    tokens, cached = [[5], [8], [6]], [31, 32, 0]
    given = (np.array(tokens), np.array(cached)) if as_arrays else (tokens, cached)
    single = ragged_step(*given, tables)
    # With a fourth text of two tokens, the step is made in the way of all others.
    more = ragged_step(
        [*tokens, [1, 2]], [*cached, 0], [np.vstack([table, [[0, 0]]]) for table in tables]
    )
    for found, wanted in zip(single[:2] + single.slots, more[:2] + more.slots, strict=True):
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted[:3].tolist()
    assert single.row_starts.tolist() == more.row_starts[:4].tolist() == [0, 1, 2, 3]
    assert single.lengths.tolist() == more.lengths[:3].tolist() == [32, 33, 1]
    with pytest.raises(IndexError):
        ragged_step([[1]], [64], [np.array([[4, 0]])])


def test_pages_are_counted_up():
    assert [pages_for(count) for count in (0, 1, 32, 33)] == [0, 1, 1, 2]
