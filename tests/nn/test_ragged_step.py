"""Steps of several texts: where rows start and end, and into which slots their keys go."""

from __future__ import annotations

import numpy as np

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


def test_pages_are_counted_up():
    assert [pages_for(count) for count in (0, 1, 32, 33)] == [0, 1, 1, 2]
