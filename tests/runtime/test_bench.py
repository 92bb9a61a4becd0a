"""Measurements: who alternates, what becomes of seconds, how much work a step is."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import asdict

import gptrs
from gptrs.errors import CacheBudgetError, ContextLengthError, UsageError
from gptrs_observe.measure.bench import ModelBench, alternating, new_lengths
from gptrs_observe.measure.bench_cases import (
    Decode,
    KnownPrefill,
    Prefill,
    random_prompts,
)
from gptrs_observe.measure.step_work import (
    MachineLimits,
    Measure,
    WorkOfStep,
    first_run,
    measure_limits,
)
from gptrs_runtime.generation.paged_cache import PagedCache
from runtime.tiny_gpt2 import save_tiny_gpt2

LIMITS = MachineLimits(read_gb_per_s=10.0, gflop_per_s=100.0, measured_by="hand", threads=2)


@pytest.fixture
def model(tmp_path):
    return gptrs.load_model(save_tiny_gpt2(tmp_path / "tiny"), "ref")


class Listed:
    """Writes down what it was asked for."""

    def __init__(self, name, events):
        self.name = name
        self.events = events
        self.gaps: list[float] = []

    def prepare(self):
        self.events.append(f"prepare {self.name}")

    def run(self):
        self.events.append(self.name)


def test_cases_alternate_and_the_first_round_does_not_count():
    events = []
    seconds = alternating({name: Listed(name, events) for name in "ab"}, rounds=2)
    assert events == ["prepare a", "a", "prepare b", "b"] * 3
    assert seconds.keys() == {"a", "b"}


def test_the_median_counts(monkeypatch):
    ticks = iter([0, 100, 0, 3, 0, 1, 0, 2])  # the round before, and then 3, 1, 2
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert alternating({"a": Listed("a", [])}, rounds=3) == {"a": 2}


def test_rates_and_ratios():
    measure = Measure("decode", 2, "tok/s", units=8, steps=4, step=WorkOfStep(10**9, 5 * 10**9))
    (row,) = measure.rows({"ours": 2.0, "peer": 4.0}, LIMITS)
    assert (row.ours, row.peer, row.peer_name, row.ratio) == (4.0, 2.0, "peer", 2.0)
    assert (row.gb_per_s, row.gflop_per_s) == (2.0, 10.0)
    assert row.share_of_limit == 0.2, "reading is closer to its limit than computing"
    assert asdict(row).keys() >= {"work", "threads", "ours", "peer", "peer_name", "ratio"} | {
        "unit",
        "share_of_limit",
    }


def test_seconds_are_better_when_they_are_fewer():
    (row,) = Measure("load", None).rows({"ours": 2.0, "peer": 3.0}, LIMITS)
    assert (row.ours, row.unit, row.peer, row.ratio) == (2.0, "s", 3.0, 1.5)
    assert row.share_of_limit is None
    (alone,) = Measure("load", None).rows({"ours": 2.0})
    assert (alone.peer, alone.peer_name, alone.ratio) == (None, None, None)


def test_the_work_of_a_step_is_that_of_its_layers(model):
    width, layers, vocabulary = 32, 2, model.causal_lm().vocab_size
    _, works = first_run(Decode(model, context=8, count=2))
    in_layers = layers * 12 * width * width
    multiplied = in_layers + vocabulary * width
    small = layers * (13 * width) + 2 * width
    assert works[-1].weight_bytes == 4 * (multiplied + small), "positions are looked up"
    # Attention on ref computes with all positions of a table of 4 pages.
    assert 2 * multiplied <= works[-1].operations <= 2 * multiplied * 2
    _, prefill = first_run(Prefill(model, random_prompts([9], 50)))
    assert prefill[0].operations > 5 * works[-1].operations


def test_generation_measures_every_phase(model):
    told = []
    bench = ModelBench(model, 1, rounds=1, limits=LIMITS, step=told.append)
    rows = bench.generation([4, 9], context=8, new_tokens=3)
    assert [(row.work, row.unit) for row in rows] == [
        ("load", "s"),
        ("compile and first prefill of 4 tokens", "s"),
        ("first token after 4", "s"),
        ("prefill of 4 tokens", "tok/s"),
        ("compile and first prefill of 9 tokens", "s"),
        ("prefill of 9 tokens", "tok/s"),
        ("compile and first decode after 8 tokens", "s"),
        ("decode after 8 tokens", "tok/s"),
    ]
    assert told == ["prefill of 4 tokens", "prefill of 9 tokens", "decode after 8 tokens"]
    assert all(row.ours > 0 for row in rows)
    assert rows[-1].share_of_limit > 0


def test_new_lengths_are_read_beside_the_same_lengths_again(model):
    bench = ModelBench(model, 1, rounds=1, peers={"slow": SlowPeer()})
    rows = bench.new_lengths(4, longest=12)
    lengths = new_lengths(4, 12)
    work = f"first token, 4 new lengths of {min(lengths)} to {max(lengths)}"
    assert [(row.work, row.peer_name) for row in rows] == [
        (work, "the same lengths again"),
        (work, "slow"),
        ("slowest new length beyond its repeat", "a known length beyond its repeat"),
    ]
    assert rows[0].ratio < 1, "ref compiles each length"


def test_new_lengths_are_different_and_the_same_each_time():
    assert sorted(new_lengths(8, 12)) == list(range(5, 13))
    assert new_lengths(40, 700) == new_lengths(40, 700)
    with pytest.raises(UsageError, match="8 lengths from 5 to 12, asked for 9"):
        new_lengths(9, 12)


def test_gaps_are_those_of_one_text(model):
    bench = ModelBench(model, 1, rounds=1, peers={"slow": SlowPeer()})
    median, most, longest = bench.gaps(context=4, count=9)
    assert [row.work for row in (median, most, longest)] == [
        f"gap between 9 tokens, {which}" for which in ("median", "99 %", "longest")
    ]
    assert 0 < median.ours <= most.ours <= longest.ours
    assert longest.peer == 0.5


class SlowPeer:
    """A model that does nothing, and that slowly."""

    load_seconds = 5.0

    def prefill(self, prompts):
        return Listed("prefill", [])

    def decode(self, context, count, texts=1):
        case = Listed(f"decode {texts}", [])
        case.gaps = [0.5] * count
        return case


def test_forward_stands_alone(model):
    rows = ModelBench(model, 1, rounds=1).forward(np.array([[1, 2, 3, 4]]))
    assert [(row.work, row.peer_name, row.unit) for row in rows] == [
        ("load", None, "s"),
        ("compile and first forward of [1, 4]", None, "s"),
        ("forward of [1, 4]", None, "s"),
        ("forward of [1, 4], rate", None, "tok/s"),
    ]
    assert rows[3].ours == pytest.approx(4 / rows[2].ours)


def test_peers_stand_beside_us(model):
    bench = ModelBench(model, 1, rounds=1, peers={"slow": SlowPeer()})
    load, *_ = bench.generation([4], context=4, new_tokens=2)
    assert (load.work, load.peer_name, load.ratio) == ("load", "slow", 5.0 / model.load_seconds)
    rows = bench.decode(4, 3, texts=2)
    assert [(row.work, row.peer_name, row.unit) for row in rows] == [
        ("compile and first decode of 2 texts after 4 tokens", None, "s"),
        ("decode of 2 texts after 4 tokens", "slow", "tok/s"),
    ]


def test_texts_decode_together(model):
    decode = Decode(model, context=8, count=3, texts=4)
    _, works = first_run(decode)
    assert len(decode.gaps) == 3
    assert len(works) == 4, "one step reads all contexts"
    one = first_run(Decode(model, context=8, count=3))[1]
    assert works[-1].operations > 3.5 * one[-1].operations
    with pytest.raises(UsageError, match="1 or more texts, got 0"):
        Decode(model, 8, 3, texts=0)


def test_texts_that_the_cache_does_not_hold_together(model, monkeypatch):
    monkeypatch.setenv("GPTRS_CACHE_BUDGET", "100000")
    with pytest.raises(CacheBudgetError, match="does not hold 99 such texts together"):
        Decode(model, 30, 3, texts=99).prepare()


def test_unequal_prompts_stand_beside_one_text(model):
    _, row = ModelBench(model, 1, rounds=1).ragged_prefill([3, 9, 1])
    assert row.work == "prefill of 3 texts of 1 to 9 tokens"
    assert (row.peer_name, row.unit) == ("one text of 13", "tok/s")
    with pytest.raises(ContextLengthError):
        ModelBench(model, 1).ragged_prefill([40, 40])


def test_what_is_known_is_not_read_again(model, monkeypatch):
    (row,) = ModelBench(model, 1, rounds=1).known_prefill(33, 5)
    assert row.work == "prefill of 5 tokens after 33 known ones"
    assert row.peer_name == "5 tokens alone"
    read = []
    run = PagedCache.run
    monkeypatch.setattr(
        PagedCache, "run", lambda cache, rows: read.append(len(rows[0][1])) or run(cache, rows)
    )
    case = KnownPrefill(model, 34, 6)  # other prompts than those of the row
    case.prepare()
    case.run()
    assert read == [40, 6]


@pytest.mark.parametrize(("context", "count", "error"), [(60, 5, ContextLengthError),
                                                        (0, 0, UsageError)])  # fmt: skip
def test_what_cannot_be_measured_is_said_at_once(model, context, count, error):
    with pytest.raises(error):
        Decode(model, context, count)


def test_prompts_differ_and_are_the_same_each_time(model):
    prompts, again = random_prompts([5, 2], 50), random_prompts([5, 2], 50)
    found = [next(prompts) for _ in range(4)]
    assert [len(prompt) for prompt in found] == [5, 2, 5, 2]
    assert found[0] != found[2]
    assert found == [next(again) for _ in range(4)]
    assert next(random_prompts([5, 2], 50, seed=1)) != found[0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["ref", "numba"])
def test_limits_are_measured_by_whoever_can(name):
    if name == "numba":
        pytest.importorskip("gptrs_backend_numba")
    limits = measure_limits(gptrs.get_backend(name, 2))
    assert limits.measured_by == ("numba" if name == "numba" else "numpy")
    assert limits.threads == (2 if name == "numba" else None)
    assert 0.1 < limits.read_gb_per_s < 10_000
    assert 0.1 < limits.gflop_per_s < 100_000
