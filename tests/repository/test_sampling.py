"""Two tiers of tests: by default a sample of many cases, the rest by `--exhaustive`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conftest

MODULE = """
import pytest

@pytest.mark.parametrize("x", range(200))
def test_many(backend, x): pass

@pytest.mark.parametrize("x", range({enough}))
def test_few(backend, x): pass

@pytest.mark.parametrize("x", range(30))
@pytest.mark.parametrize("y", range(10))
def test_product(backend, x, y): pass

@pytest.mark.parametrize("case", [(x, [y]) for x in range(20) for y in range(5)])
def test_subjects(backend, case): pass

@pytest.mark.sample(2)
@pytest.mark.parametrize("x", range(10))
@pytest.mark.parametrize("y", range(10))
def test_sampled_product(x, y): pass

@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("x", range(4))
def test_drawn_product(seed, x): pass

@pytest.mark.whole
@pytest.mark.parametrize("x", range(100))
def test_whole(backend, x): pass

@pytest.mark.parametrize("x", range(100))
def test_without_a_backend(x): pass

@pytest.mark.sample(7)
@pytest.mark.parametrize("x", range(30))
def test_sampled(x): pass

@pytest.mark.sample(0)
@pytest.mark.parametrize("x", range(5))
def test_on_the_reference_only(backend, x): pass

@pytest.mark.long
@pytest.mark.parametrize("x", range(30))
def test_long(backend, x): pass

@pytest.mark.long
@pytest.mark.parametrize("x", range(5))
@pytest.mark.parametrize("y", range(4))
def test_long_product(backend, x, y): pass

@pytest.mark.long
@pytest.mark.parametrize("x", range(5))
def test_long_without_a_backend(x): pass

@pytest.mark.long
@pytest.mark.parametrize(
    "x", [3, *(pytest.param(x, marks=pytest.mark.exhaustive) for x in range(10, 40))]
)
def test_long_with_marked_ones(x): pass

@pytest.mark.exhaustive
def test_marked(backend): pass

def test_where_it_compiles(compiling): pass

@pytest.mark.parametrize("x", range(20))
def test_many_where_it_compiles(compiling, x): pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(Path(conftest.__file__).read_text(encoding="utf-8"))
    (folder / "test_it.py").write_text(MODULE.format(enough=conftest._ENOUGH))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(Path(conftest.__file__).parents[1] / "pyproject.toml")]
    command += ["--backends", "ref,numba", "--confcutdir", str(folder), *options, str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def collected(folder: Path, *options: str) -> list[str]:
    done = run(folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return collected(tmp_path_factory.mktemp("all"), "--exhaustive", "all")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return collected(tmp_path_factory.mktemp("none"))


@pytest.mark.long
def test_the_default_tier_has_a_sample_of_the_cases(everything: list[str], kept: list[str]):
    several = 200 + conftest._ENOUGH + 300 + 100 + 100 + 5 + 30 + 20 + 1
    assert len(everything) == 2 * several + 100 + 40 + 100 + 30 + 5 + 31 + 1 + 20
    assert set(kept) <= set(everything)
    counts = {
        "test_many": 200 + 25,
        "test_few": 2 * conftest._ENOUGH,
        "test_subjects": 100 + 12,
        "test_whole": 200,
        "test_without_a_backend": 100,
        "test_sampled": 7,
        "test_on_the_reference_only": 5,
        "test_long": 3,
        "test_long_without_a_backend": 1,
        "test_long_with_marked_ones": 1,
        "test_marked": 0,
        "test_where_it_compiles": 1,
        "test_many_where_it_compiles": conftest._ENOUGH,
    }
    assert "test_long_with_marked_ones[3]" in kept
    for name, count in counts.items():
        assert sum(each.startswith(f"{name}[") for each in kept) == count, name
    assert len([name for name in kept if name.startswith("test_product[ref-")]) == 300
    product = [name for name in kept if name.startswith("test_product[numba-")]
    assert 37 <= len(product) <= 37 + 30
    _require_all_values(product, 10, 30)
    product = [name for name in kept if name.startswith("test_sampled_product[")]
    assert 10 <= len(product) <= 2 + 20
    _require_all_values([name.replace("[", "-") for name in product], 10, 10)
    product = [name for name in kept if name.startswith("test_drawn_product[")]
    assert 4 <= len(product) <= 2 + 3
    # Each case of a long test is on one of the backends.
    product = [name for name in kept if name.startswith("test_long_product[")]
    backends, cases = zip(*(name.partition("[")[2].split("-", 1) for name in product), strict=True)
    assert {*backends} == {"ref", "numba"}
    assert 5 <= len(cases) == len({*cases}) <= 2 + 4 + 3


@pytest.mark.long
def test_each_exhaustive_case_runs_on_one_day_of_the_period(
    tmp_path: Path, everything: list[str], kept: list[str]
):
    done = run(tmp_path, "--exhaustive", "today", "-v")
    day, days = re.findall("exhaustive cases: --exhaustive ([0-9]+)/([0-9]+)\n", done.stdout)[0]
    assert int(days) == conftest._DAYS
    names = {name: f"test_it.py::{name}" for name in everything if name not in set(kept)}
    parts = {name: zlib.crc32(each.encode()) % conftest._DAYS + 1 for name, each in names.items()}
    assert set(parts.values()) == set(range(1, conftest._DAYS + 1))
    of_today = {name for name, part in parts.items() if part == int(day)}
    found = set(re.findall("<Function (.*)>", done.stdout))
    assert found == {*kept, *of_today}, "the sample is the same in every process"


@pytest.mark.long
def test_shares_are_the_whole_and_come_by_date(tmp_path: Path, kept: list[str]):
    done = run(tmp_path, "--share", "today/2", "-v")
    (today,) = re.findall(" --share ([12])/2\n", done.stdout)
    one = re.findall("<Function (.*)>", done.stdout)
    other = collected(tmp_path, "--share", f"{3 - int(today)}/2")
    assert sorted(one + other) == sorted(kept)
    assert min(len(one), len(other)) > len(kept) / 3


def test_nothing_compiles_on_the_reference(tmp_path: Path):
    kept = collected(tmp_path, "--backends", "ref")
    assert not [name for name in kept if "where_it_compiles" in name]
    assert [name for name in kept if name.startswith("test_few")]


@pytest.mark.parametrize("part", ["some", "0/3", "4/3", "1/"])
def test_a_part_that_is_none_is_refused(part: str):
    config: Any = SimpleNamespace(option=SimpleNamespace(exhaustive=part))
    with pytest.raises(pytest.UsageError, match=f"K/N with 1 <= K <= N, got `{part}`"):
        conftest._part(config)


def _require_all_values(names: list[str], *counts: int) -> None:
    values = [name.rstrip("]").split("-")[1:] for name in names]
    for index, count in enumerate(counts):
        assert {each[index] for each in values} == {str(value) for value in range(count)}
