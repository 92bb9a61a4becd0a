"""Decisions about symbolic sizes, and what they promise for other sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gptrs.errors import ProgramError
from gptrs.ir.size_guards import SizeGuards, deciding, greatest, least, select
from gptrs.ir.symbolic_dim import evaluated, symbol

N, B = symbol(0), symbol(1)


def test_a_comparison_is_decided_by_the_example_and_remembered():
    with deciding(SizeGuards({0: 37})) as guards:
        assert N > 16
        assert not N <= 16
        assert N < 100
    assert [str(guard) for guard in guards.guards] == ["?0-17", "-?0+99"]
    assert guards.words() == ["?0 >= 17", "?0 <= 99"]
    assert guards.accept({0: 17})
    assert guards.accept({0: 99})
    assert not guards.accept({0: 16})
    assert not guards.accept({0: 100})


def test_nothing_is_recorded_that_follows_from_sizes_of_at_least_1():
    with deciding(SizeGuards({0: 5, 1: 2})) as guards:
        assert N >= 1
        assert N * B + N > 1
        assert N
        assert not N < 1
    assert guards.guards == ()


def test_a_weaker_question_adds_no_guard():
    with deciding(SizeGuards({0: 37})) as guards:
        assert N > 4
        assert N > 16
        assert N > 8
        assert N < 100
    assert [str(guard) for guard in guards.guards] == ["?0-17", "-?0+99"]


def test_a_limit_that_no_size_of_64_bits_passes_is_no_guard():
    with deciding(SizeGuards({0: 3}, derive=True)) as guards:
        assert not N > 2**63
        assert not N > 2**62
    assert guards.words() == [f"?0 <= {2**62}"]


def test_equality_is_that_of_polynomials_and_records_nothing():
    with deciding(SizeGuards({0: 3, 1: 3})) as guards:
        assert N != B
        assert N != 3
        assert 2 * N == N + N
    assert guards.guards == ()


def test_questions_have_no_answer_outside():
    with pytest.raises(ProgramError, match=r"cannot tell whether `\?0` > 16"):
        bool(N > 16)
    with deciding(SizeGuards({0: 3})), pytest.raises(ProgramError, match="cannot divide"):
        5 // N
    with deciding(SizeGuards({0: 3})), pytest.raises(ProgramError, match="has no value"):
        range(N)


def test_no_size_is_accepted_below_1():
    with deciding(SizeGuards({0: 3})) as guards:
        pass
    assert not guards.accept({0: 0})
    with pytest.raises(ProgramError, match=r"sizes of at least 1, got \?0 = 0"):
        SizeGuards({0: 0})


def test_bounds_of_quotients_answer_without_guards():
    with deciding(SizeGuards({0: 37}, derive=True)) as guards:
        tiles = -(-N // 12)
        assert tiles >= 1
        assert least(tiles, 4) >= 1
        assert greatest(tiles - 5, 2) >= 2
    assert guards.guards == ()


def _step(kind: int, x: int, y: int, constant: int) -> int:
    match kind:
        case 0:
            return x + y
        case 1:
            return x - y
        case 2:
            return x // constant
        case 3:
            return -(-x // constant)
        case 4:
            return x % constant
        case 5:
            return least(x, y)
        case 6:
            return greatest(x, y)
        case 7:
            return select(x - y, x, y + 1)
        case 8:
            return x if x > y else y - 1
        case _:
            return x if x <= constant else constant


@pytest.mark.sample(16)
@pytest.mark.parametrize("seed", range(200))
def test_derived_sizes_have_the_values_of_integers(seed: int):
    """The same arithmetic on symbols, then on numbers that the guards accept."""

    def compute(n: int, b: int) -> list[int]:
        choose = random.Random(seed)
        sizes = [n, b, 7, n * b + 3]
        for _ in range(12):
            x, y = choose.choice(sizes), choose.choice(sizes)
            constant = choose.randint(1, 20)
            made = _step(choose.randrange(10), x, y, constant)
            sizes.append(made)
        return sizes

    example = {0: 1 + seed % 40, 1: 1 + seed % 3}
    with deciding(SizeGuards(example, derive=True)) as guards:
        symbolic = compute(N, B)
    accepted = 0
    for n in range(1, 60):
        for b in (1, 2, 3, 8):
            if guards.accept({0: n, 1: b}):
                accepted += 1
                known = guards.completed({0: n, 1: b})
                assert [evaluated(size, known) for size in symbolic] == compute(n, b)
    assert accepted, "the example itself is accepted"


def test_what_lowering_decides_is_kept_by_the_guards_it_was_given():
    with deciding(SizeGuards({0: 37})) as guards:
        assert N > 4
    with deciding(guards.deriving()):
        tiles = N // 12
        assert tiles > 2
        assert least(tiles, 9) > 2
    assert len(guards.derived) == 1
    assert not guards.accept({0: 35})
    assert guards.accept({0: 36})


def test_sizes_that_break_a_guard_are_not_accepted_though_derived_ones_have_no_value_for_them():
    with deciding(SizeGuards({0: 9}, derive=True)) as guards:
        assert N > 1
        blocks = 40 // (N - 1)
        assert blocks > 3
    assert not guards.accept({0: 1})
    assert guards.accept({0: 11})
    assert not guards.accept({0: 12})


def test_an_assumed_quotient_is_written_as_what_it_equals():
    half: Any = (N + 1) // 2
    whole = (N + 3) // 4
    with deciding(SizeGuards({0: 16})) as guards:
        (quotient,) = half.atoms()
        guards.assume(quotient, 2 * whole)
        assert (N + 1) // 2 == 2 * ((N + 3) // 4)
        assert (N + 3) // 2 == 2 * ((N + 3) // 4) + 1
    with deciding(guards.deriving()):
        assert (N + 1) // 2 == 2 * ((N + 3) // 4)
    assert guards.accept({0: 31})
    assert not guards.accept({0: 17})
    with pytest.raises(ProgramError, match=r"is not `\?0` for the example sizes"):
        guards.assume(quotient, N)
