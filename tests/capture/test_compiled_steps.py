"""The steps of a function by key: found again, counted, and gone when they are dropped."""

from __future__ import annotations

import pytest

from gptrs.capture.jitting import compiled_steps
from gptrs.capture.jitting.compiled_steps import CompiledSteps, StepKey
from gptrs.capture.jitting.pytree import LEAF
from gptrs.ir.dtypes import f32
from gptrs.ir.tensor_type import TensorType


def key(size: int) -> StepKey:
    """A new key, equal to others of that size."""
    return StepKey(("x",), (LEAF,), (TensorType(f32, (size,)),), (), None, ())


def test_steps_are_found_by_equal_keys_in_turns():
    steps = CompiledSteps[str]("f")
    steps.keep(key(1), "one")
    steps.keep(key(2), "two")
    for size, step in ((1, "one"), (1, "one"), (2, "two"), (1, "one"), (3, None), (2, "two")):
        assert steps.find(key(size)) == step
    assert [signature.calls for signature in steps.signatures()] == [4, 3]


def test_a_step_that_was_just_found_is_gone_when_all_are_dropped():
    steps = CompiledSteps[str]("f")
    steps.keep(key(1), "old")
    assert steps.find(key(1)) == "old"
    steps.clear()
    assert steps.find(key(1)) is None
    steps.keep(key(1), "new")
    assert steps.find(key(1)) == "new"


def test_a_step_that_is_kept_anew_replaces_the_one_that_was_found():
    steps = CompiledSteps[str]("f")
    steps.keep(key(1), "old")
    assert steps.find(key(1)) == "old"
    steps.keep(key(1), "new")
    assert steps.find(key(1)) == "new"


def test_the_one_that_was_not_used_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled_steps, "MOST_SIGNATURES", 2)
    steps = CompiledSteps[str]("f")
    for size in (1, 2):
        steps.keep(key(size), str(size))
    assert steps.find(key(1)) == "1"
    steps.keep(key(3), "3")
    assert [steps.find(key(size)) for size in (1, 2, 3)] == ["1", None, "3"]
