"""Why a program had to be compiled is told by what it differs in from those that are kept."""

from __future__ import annotations

import itertools

import pytest

import gptrs
from capture.made_keys import made_key
from gptrs.capture import execute, primitives
from gptrs.capture.caching.program_cache import REASONS, MissReasons
from gptrs.capture.caching.program_key import ASPECTS
from gptrs.ir import dtypes


def _knowing(*keys) -> MissReasons:
    reasons = MissReasons()
    for key in keys:
        reasons.add(key)
    return reasons


def test_the_first_program():
    assert MissReasons().explain(made_key()) == "first"


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_single_aspect_that_differs(aspect):
    assert _knowing(made_key()).explain(made_key(**{aspect: 1})) == aspect


@pytest.mark.parametrize(("most", "least"), list(itertools.pairwise(ASPECTS)))
def test_of_several_aspects_the_most_structural_one(most, least):
    assert _knowing(made_key()).explain(made_key(**{most: 1, least: 1})) == most


def test_a_program_that_differs_in_one_aspect_is_nearer_than_one_that_differs_in_two():
    reasons = _knowing(made_key(shape=1, literal=1), made_key(dtype=1))
    assert reasons.explain(made_key()) == "dtype"


def test_of_several_programs_that_differ_in_one_aspect_the_least_structural():
    reasons = _knowing(made_key(structure=1), made_key(literal=1), made_key(shape=1))
    assert reasons.explain(made_key()) == "literal"


def test_otherwise_the_program_that_agrees_longest_decides():
    near = made_key(attribute=1, literal=1, role=1)
    reasons = _knowing(made_key(binding=1, role=1), near, made_key(dtype=1, shape=1))
    assert reasons.explain(made_key()) == "attribute"


def test_aspects_of_different_programs_are_not_mixed():
    reasons = _knowing(made_key(structure=1, binding=2), made_key(structure=2, binding=1))
    assert reasons.explain(made_key(structure=1, binding=1)) == "binding"
    assert reasons.explain(made_key(structure=3, binding=1)) == "structure"


def test_dropped_programs_are_remembered_and_compared_no_more():
    reasons = _knowing(made_key(), made_key(structure=1, shape=1))
    reasons.drop(made_key())
    assert reasons.explain(made_key()) == "evicted"
    assert reasons.explain(made_key(literal=1)) == "structure"
    reasons.add(made_key())
    assert reasons.explain(made_key(literal=1)) == "literal"


def test_refused_programs_are_remembered():
    reasons = _knowing(made_key(shape=1))
    reasons.refuse(made_key())
    assert reasons.explain(made_key()) == "evicted"


def test_memory_of_dropped_programs_is_bounded():
    reasons = MissReasons()
    for number in range(5000):
        reasons.refuse(made_key(literal=number))
    assert reasons.explain(made_key(literal=0)) == "first"
    assert reasons.explain(made_key(literal=4999)) == "evicted"


def test_all_that_was_added_and_dropped_leaves_nothing():
    keys = [made_key(shape=number, literal=number % 3) for number in range(50)]
    reasons = _knowing(*keys)
    for key in keys:
        reasons.drop(key)
    assert reasons.explain(made_key(shape=-7)) == "first"


def test_reasons_of_captured_graphs(backend):
    """What a user counts: each flush below differs in one thing from one before."""
    cache = execute.program_cache
    cache.clear()
    x, y = gptrs.tensor([[1.0, 2.0], [3.0, 4.0]]), gptrs.tensor([[5.0, 6.0], [7.0, 8.0]])
    half = gptrs.tensor([[1.0, 2.0], [3.0, 4.0]], dtypes.f16)
    graphs = {
        "first": primitives.sub(x, y),
        "structure": primitives.tanh(primitives.sub(x, y)),
        "binding": primitives.sub(x, x),
        "dtype": primitives.sub(half, half),
        "shape": primitives.sub(*[gptrs.tensor([[1.0, 2.0]])] * 2),
    }
    found = {}
    with gptrs.use_backend(backend):
        for name, graph in graphs.items():
            before = cache.statistics.misses_by_reason
            graph.numpy()
            after = cache.statistics.misses_by_reason
            found[name] = [reason for reason in REASONS if after[reason] > before[reason]]
    assert found == {name: [name] for name in graphs}


def test_attributes_and_literals_of_captured_graphs(backend):
    cache = execute.program_cache
    cache.clear()
    x = gptrs.tensor([[1.0, 2.0], [3.0, 4.0]])
    with gptrs.use_backend(backend):
        (primitives.reduce(x, "sum", [0]) + 1).numpy()
        (primitives.reduce(x, "sum", [1]) + 1).numpy()
        (primitives.reduce(x, "sum", [1]) + 2).numpy()
        (primitives.reduce(x, "sum", [1]) + 2).numpy()
    statistics = cache.statistics
    counted = {reason: n for reason, n in statistics.misses_by_reason.items() if n}
    assert counted == {"first": 1, "attribute": 1, "literal": 1}
    assert (statistics.hits, statistics.misses) == (1, 3)
    cache.clear()
