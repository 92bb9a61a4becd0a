"""Intermediates that are alive together never share scratch memory, and others do."""

import numpy as np
import pytest

from gptrs.ir import dtypes
from gptrs_backend_numba import compiler
from gptrs_backend_numba.compiler import place_scratch
from gptrs_backend_numba.cost_model import Jump, Label
from gptrs_backend_numba.schedule import KernelCall, ScheduleStep
from gptrs_backend_numba.views import MemorySpace, Storage, View


def storage(nbytes: int) -> Storage:
    return Storage(MemorySpace.SCRATCH, 0, nbytes)


def call(reads: list[Storage], write: Storage) -> KernelCall:
    views = [View(s, dtypes.ui8, (s.nbytes,), (1,)) for s in (*reads, write)]
    return KernelCall(lambda *_: 0, tuple(views[:-1]), views[-1], ())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("by_size", [False, True])
def test_alive_together_means_apart(
    seed: int, by_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_size:
        monkeypatch.setattr(compiler, "_SMALL", 0)
        monkeypatch.setattr(compiler, "_WASTED", 10**9)
        monkeypatch.setattr(compiler, "_LARGEST", 3)
    rng = np.random.default_rng(seed)
    storages = [storage(int(rng.integers(0, 500))) for _ in range(30)]
    calls = [
        call([storages[int(i)] for i in rng.integers(max(0, at - 6), at, 2)], storages[at])
        for at in range(1, 30)
    ]
    needed = place_scratch(calls)
    spans = {
        s: [at for at, c in enumerate(calls) if s in [view.storage for view in c.views]]
        for s in storages
    }
    for first in storages:
        assert first.index + first.nbytes <= needed
        assert first.index % 64 == 0
        for second in storages:
            if first is second or not spans[first] or not spans[second]:
                continue
            together = min(spans[first]) <= max(spans[second]) and (
                min(spans[second]) <= max(spans[first])
            )
            apart = (
                first.index + first.nbytes <= second.index
                or second.index + second.nbytes <= first.index
            )
            assert apart or not together


def test_a_chain_needs_two_slots() -> None:
    chain = [storage(100) for _ in range(10)]
    calls = [call([chain[i]], chain[i + 1]) for i in range(9)]
    assert place_scratch(calls) == 128 + 100


def test_large_storages_find_room_beside_small_ones_that_stay() -> None:
    first, small, large = (storage(size << 20) for size in (10, 1, 15))
    # Behind `first`, `small` would leave a gap of 10 MiB, into which `large` does not fit.
    calls = [call([], first), call([first], small), call([small], large), call([large], small)]
    assert place_scratch(calls) == 16 << 20


def loop_schedule(rng: np.random.Generator) -> tuple[list[ScheduleStep], list[Storage]]:
    """Calls around and in two nested loops; each reads what was certainly written before."""
    outer, inner = Label(), Label()
    controls: dict[int, ScheduleStep] = {6: outer, 12: inner, 18: Jump(inner), 24: Jump(outer)}
    scopes: list[list[Storage]] = [[]]
    steps: list[ScheduleStep] = []
    storages: list[Storage] = []
    for position in range(30):
        control = controls.get(position)
        if control is not None:
            steps.append(control)
            if isinstance(control, Label):
                scopes.append([])
            continue
        visible = [s for scope in scopes for s in scope]
        reads = [visible[int(i)] for i in rng.integers(0, len(visible), 2)] if visible else []
        again = bool(visible) and rng.random() < 0.3
        write = visible[int(rng.integers(0, len(visible)))] if again else storage(64)
        if not again:
            scopes[-1].append(write)
            storages.append(write)
        steps.append(call(reads, write))
    return steps, storages


@pytest.mark.parametrize("seed", range(50))
def test_loops_find_what_they_left(seed: int) -> None:
    steps, _ = loop_schedule(np.random.default_rng(seed))
    place_scratch(steps)
    starts = {step: at for at, step in enumerate(steps) if isinstance(step, Label)}
    turns = dict.fromkeys(starts, 0)
    memory: dict[int, tuple[Storage, int]] = {}
    written: dict[Storage, int] = {}
    at = clock = 0
    while at < len(steps):
        step = steps[at]
        at, clock = at + 1, clock + 1
        if isinstance(step, KernelCall):
            for view in step.reads:
                assert memory[view.storage.index] == (view.storage, written[view.storage])
            target = step.write.storage
            memory[target.index] = target, clock
            written[target] = clock
        elif isinstance(step, Jump) and turns[step.target] < 2:
            turns[step.target] += 1
            at = starts[step.target]
        elif isinstance(step, Jump):
            turns[step.target] = 0
