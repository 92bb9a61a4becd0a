"""Two tiers of tests: by default a sample of many cases, the rest by `--exhaustive`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

@pytest.mark.exhaustive
def test_marked(backend): pass

def test_where_it_compiles(compiling): pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(Path(conftest.__file__).read_text(encoding="utf-8"))
    (folder / "test_it.py").write_text(MODULE.format(enough=conftest._ENOUGH))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(Path(conftest.__file__).parents[1] / "pyproject.toml")]
    command += ["--backends", "ref,numba", "--confcutdir", str(folder), *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def collected(folder: Path, *options: str) -> list[str]:
    done = run(folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.long
def test_the_default_tier_has_all_cases_on_ref_and_a_sample_where_it_compiles(tmp_path: Path):
    everything, kept = collected(tmp_path, "--exhaustive", "all"), collected(tmp_path)
    several = 200 + conftest._ENOUGH + 300 + 100 + 100 + 5 + 1
    assert len(everything) == 2 * several + 100 + 100 + 30 + 1
    assert set(kept) <= set(everything)
    counts = {
        "test_many": 200 + 12,
        "test_few": 2 * conftest._ENOUGH,
        "test_subjects": 100 + 6,
        "test_whole": 200,
        "test_without_a_backend": 100,
        "test_sampled": 7,
        "test_on_the_reference_only": 5,
        "test_marked": 0,
        "test_where_it_compiles": 1,
    }
    for name, count in counts.items():
        assert sum(each.startswith(f"{name}[") for each in kept) == count, name
    assert kept == collected(tmp_path), "the same in every process"
    product = [name for name in kept if name.startswith("test_product[numba-")]
    assert 30 <= len(product) <= 18 + 30
    _require_all_values(product, 10, 30)
    product = [name for name in kept if name.startswith("test_sampled_product[")]
    assert 10 <= len(product) <= 2 + 20
    _require_all_values([name.replace("[", "-") for name in product], 10, 10)


@pytest.mark.long
def test_the_parts_of_the_exhaustive_cases_are_all_of_them_once(tmp_path: Path):
    everything, kept = collected(tmp_path, "--exhaustive", "all"), set(collected(tmp_path))
    parts = [set(collected(tmp_path, "--exhaustive", f"{k}/3")) - kept for k in (1, 2, 3)]
    assert sum(map(len, parts)) == len(everything) - len(kept)
    assert set.union(*parts) == set(everything) - kept
    assert min(map(len, parts)) > 0.2 * sum(map(len, parts))
    shown = run(tmp_path, "--exhaustive", "today", "-v").stdout
    day = shown.partition("exhaustive cases: --exhaustive ")[2].split("\n")[0]
    assert day in {f"{k}/{conftest._DAYS}" for k in range(1, conftest._DAYS + 1)}


def test_nothing_compiles_on_the_reference(tmp_path: Path):
    kept = collected(tmp_path, "--backends", "ref")
    assert not [name for name in kept if name.startswith("test_where_it_compiles")]
    assert [name for name in kept if name.startswith("test_few")]


@pytest.mark.parametrize("part", ["some", "0/3", "4/3", "1/"])
def test_a_part_that_is_none_is_refused(tmp_path: Path, part: str):
    done = run(tmp_path, "--exhaustive", part)
    assert done.returncode == 4
    assert f"K/N with 1 <= K <= N, got `{part}`" in done.stdout + done.stderr


def _require_all_values(names: list[str], *counts: int) -> None:
    values = [name.rstrip("]").split("-")[1:] for name in names]
    for index, count in enumerate(counts):
        assert {each[index] for each in values} == {str(value) for value in range(count)}
