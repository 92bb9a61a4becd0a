"""The policy `benchmark` in programs with symbolic sizes, on disk, and where it is told."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from functionals.races import Race, slowly
from gptrs.capture.caching.optimized_programs import OptimizedPrograms
from gptrs.functionals.dispatch import benchmark_policy
from gptrs_observe.profile import Profile, recording
from gptrs_runtime.functional_listing import list_functionals

pytestmark = pytest.mark.usefixtures("on_reference")


def rows(count: int, width: int = 3) -> gptrs.Tensor:
    return gptrs.tensor(np.arange(count * width, dtype=np.float32).reshape(count, width))


def called(step, count: int) -> None:
    x = rows(count)
    np.testing.assert_allclose(step(x).numpy(), x.numpy() * 2)


def test_each_class_of_sizes_is_timed_once(race: Race):
    seen: list[tuple[int, ...]] = []

    def fast(x):
        seen.append(x.shape)
        return x + x

    race.add("fast", fast)
    step = gptrs.jit(lambda x: race.call(x), dynamic={"x": ("n", None)})
    with race.overrides():
        for counts in ((1,), (2, 3, 16), (17, 40, 256), (257, 300)):
            before = step.compiled
            for count in counts:
                called(step, count)
            assert step.compiled == before + 1, counts
        assert step.compiled == 4
        raced = [shape for shape in seen if all(type(size) is int for size in shape)]
        assert {shape[0] for shape in raced} == {1, 2, 17, 257}, "of the first call of a class"
        before = len(seen)
        called(step, 11)
        assert len(seen) == before
    (one, few, many, most) = [
        each.operands for each in benchmark_policy.choices() if each.functional == race.name
    ]
    assert {one, few, many, most} == {
        ("f32[1, 3]",), ("f32[2..16, 3]",), ("f32[17..256, 3]",), ("f32[257.., 3]",)
    }  # fmt: skip


def test_the_class_decides_which_one_is_used(make_race: Callable[..., Race]):
    def portable(x):
        return slowly(x) if x.shape[0] >= 17 else x + x

    def for_many(x):
        return x + x if x.shape[0] >= 17 else slowly(x)

    race = make_race(portable=portable)
    race.add("for_many", for_many)
    step = gptrs.jit(lambda x: race.call(x), dynamic={"x": ("n", None)})
    with race.overrides():
        for count in (3, 100, 5, 80, 1):
            called(step, count)
    chosen = {
        each.operands[0]: each.implementation
        for each in benchmark_policy.choices()
        if each.functional == race.name
    }
    assert chosen == {
        "f32[1, 3]": "portable", "f32[2..16, 3]": "portable", "f32[17..256, 3]": "for_many"
    }  # fmt: skip


def test_the_fastest_is_asked_about_other_sizes_of_its_class(race: Race):
    race.add("few", lambda x: x + x, declines=lambda x: "many" if x.shape[0] >= 10 else None)
    step = gptrs.jit(lambda x: race.call(x), dynamic={"x": ("n", None)})
    with race.overrides():
        called(step, 3)
        before = dict(race.calls)
        called(step, 12)
    assert race.calls == {**before, "portable": before["portable"] + 1}


def test_sizes_among_the_arguments_have_values_in_the_race(make_race: Callable[..., Race]):
    seen: list[object] = []

    def portable(x, *, sizes):
        return slowly(x).reshape(*sizes[0])

    def fast(x, *, sizes):
        seen.append(sizes[0][0])
        return (x + x).reshape(*sizes[0])

    race = make_race(portable=portable)
    race.add("fast", fast)
    step = gptrs.jit(lambda x: race.call(x, sizes=[(x.shape[0] * 3,)]), dynamic={"x": ("n", None)})
    with race.overrides():
        for count in (2, 5):
            np.testing.assert_allclose(
                step(rows(count)).numpy(), np.arange(3 * count, dtype=np.float32) * 2
            )
    assert 6 in seen
    assert step.compiled == 1


def test_without_examples_the_portable_one_is_used_and_that_is_said(
    race: Race, caplog, monkeypatch
):
    caplog.set_level("INFO", "gptrs")
    race.add("fast", lambda x: x + x)
    monkeypatch.setattr(benchmark_policy, "example_sizes", dict)
    with race.overrides():
        called(gptrs.jit(lambda x: race.call(x), dynamic={"x": ("n", None)}), 3)
    assert race.calls == {"portable": 1}
    (record,) = caplog.records
    assert record.getMessage().endswith("for a call: no example of its sizes is known")


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """Choices are kept in a folder of the test; gives a store that has forgotten nothing."""
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(benchmark_policy, "optimized_programs", lambda: OptimizedPrograms(folder))
    return folder


def test_a_choice_is_kept_for_later_processes(race: Race, on_disk, monkeypatch):
    race.add("fast", lambda x: x + x)
    with race.overrides():
        assert race.runs("fast", rows(2)) > 1
        monkeypatch.setattr(benchmark_policy, "_decisions", {})
        assert race.runs("fast", rows(2)) == 1
        race.add("other", lambda x: x + x)  # not the same implementations
        assert race.runs("fast", rows(2)) > 1
        assert race.runs("fast", rows(3)) > 1
    assert len(list(on_disk.iterdir())) == 3
    monkeypatch.setattr(benchmark_policy, "_decisions", {})
    kept = [each for each in benchmark_policy.choices() if each.functional == race.name]
    assert {each.operands for each in kept} == {("f32[2, 3]",), ("f32[3, 3]",)}
    for each in kept:
        assert each.implementation in dict(each.seconds)
        assert each.backend == "ref"
        assert (
            min(seconds for _, seconds in each.seconds) == dict(each.seconds)[each.implementation]
        )


def test_choices_are_told_by_dump_profile_and_list(race: Race, tmp_path):
    race.add("fast", lambda x: x + x)
    step = gptrs.jit(lambda x: race.call(x), dynamic={"x": ("n", None)})
    profile = Profile()
    with race.overrides(), gptrs.dumping(tmp_path / "dump"), recording(profile):
        called(step, 5)
        called(gptrs.jit(lambda x: race.call(x), dynamic={"x": ("n", None)}), 5)
        listed = {each.name: each for each in list_functionals()}
    (line,) = (tmp_path / "dump" / "choices.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert told["functional"] == race.name
    assert (told["implementation"], told["operands"]) == ("fast", ["f32[2..16, 3]"])
    assert set(told["seconds"]) == {"fast", "portable"}
    (choice,) = listed[race.name].choices
    assert choice.implementation == "fast"
    assert [each.functional for each in profile.choices] == [race.name]
    assert f"  {race.name} by fast of f32[2..16, 3]: portable " in profile.table()
    assert profile.as_json()["choices"] == [{key: told[key] for key in told if key != "run"}]


def test_a_language_model_runs_with_it(race: Race):
    """Its programs have symbols for the number of tokens."""
    with gptrs.overrides({"gelu": "portable"}):
        expected = gptrs.load_model("demo", backend="ref").forward([[1, 2, 3]])

    @gptrs.functionals.implement("gelu", name=race.name)
    def other(x, approximate="none"):
        return gptrs.functionals.gelu(x, approximate) * 1.0

    for policy in ("benchmark", "benchmark(cache=2)"):
        with gptrs.overrides({"gelu": policy}):
            model = gptrs.load_model("demo", backend="ref")
            found = model.forward([[1, 2, 3]])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    chosen = [each for each in benchmark_policy.choices() if each.functional == "gelu"]
    assert chosen


def test_an_implementation_that_is_preferred_and_not_there_is_told_of(race: Race, caplog):
    with race.overrides("prefer=gone"):
        assert race.runs("portable", rows(2)) == 1
    with race.overrides("prefer=gone"):
        pass
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"`{race.name}` uses `portable`: functional `{race.name}` has no implementation `gone`"
    )
    with (
        pytest.raises(gptrs.api.UsageError, match="no implementation `gone`"),
        race.overrides("gone"),
    ):
        pass
