"""`make test` takes a part of the cases that a test has on a backend; CI takes more of them.

Of a product CI takes each value of each parameter where it compiles, `make exhaustive` the rest.
"""

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

@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.alike
@pytest.mark.parametrize("x", range(20))
@pytest.mark.parametrize("y", range(3))
def test_alike(backend, x, y): pass

@pytest.mark.few(2)
@pytest.mark.parametrize("x", range(10))
@pytest.mark.parametrize("y", range(10))
def test_few_of_a_product(x, y): pass

@pytest.mark.whole
@pytest.mark.parametrize("x", range(100))
def test_whole(backend, x): pass

@pytest.mark.parametrize("x", range(100))
def test_without_a_backend(x): pass

@pytest.mark.many
@pytest.mark.parametrize("x", range(80))
def test_of_alike_cases(x): pass

@pytest.mark.few(7)
@pytest.mark.parametrize("x", range(30))
def test_of_which_a_few_stay(x): pass

@pytest.mark.few(0)
@pytest.mark.parametrize("x", range(5))
def test_of_which_a_few_stay_where_it_compiles(backend, x): pass
"""


def collected(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(Path(conftest.__file__).parents[1] / "pyproject.toml")]
    command += ["--backends", "ref,numba", "--confcutdir", str(folder), *options, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.long
def test_a_part_of_very_many_cases_is_kept_on_each_backend(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(Path(conftest.__file__).read_text(encoding="utf-8"))
    (tmp_path / "test_it.py").write_text(MODULE.format(enough=conftest._ENOUGH))
    everything, kept = collected(tmp_path, "-m", ""), collected(tmp_path, "-m", "not slow")
    several = 200 + conftest._ENOUGH + 300 + 100 + 60 + 100 + 5
    assert len(everything) == 2 * several + 100 + 100 + 80 + 30
    assert set(kept) <= set(everything)
    counts = {"test_many": 33 + 12, "test_few": conftest._ENOUGH + conftest._FEWER}
    counts |= {
        "test_product": 50 + 18,
        "test_subjects": 16 + 6,
        "test_alike": 0,
        "test_few_of_a_product": 2,
        "test_whole": 200,
        "test_without_a_backend": 100,
        "test_of_alike_cases": 80,
    }
    counts |= {"test_of_which_a_few_stay": 7, "test_of_which_a_few_stay_where_it_compiles": 5}
    for name, count in counts.items():
        assert sum(each.startswith(f"{name}[") for each in kept) == count
    numba = {each for each in kept if each.startswith("test_many[numba")}
    assert len(numba) == 12
    assert kept == collected(tmp_path, "-m", "not slow"), "the same in every process"
    quick = collected(tmp_path, "-m", "not slow and not long")
    assert set(kept) - set(quick) < {f"test_of_alike_cases[{x}]" for x in range(80)}
    assert len(kept) - len(quick) == 70


@pytest.mark.long
def test_of_a_product_where_it_compiles_ci_takes_each_value_of_each_parameter(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(Path(conftest.__file__).read_text(encoding="utf-8"))
    (tmp_path / "test_it.py").write_text(MODULE.format(enough=conftest._ENOUGH))
    everything, in_ci = collected(tmp_path, "-m", ""), collected(tmp_path)
    left_out = collected(tmp_path, "-m", "exhaustive")
    assert sorted([*in_ci, *left_out]) == sorted(everything)
    found = {name.partition("-")[0] for name in left_out}
    assert {name for name in found if not name.startswith("test_few_of_a_product[")} == {
        "test_product[numba", "test_alike[numba",
    }  # fmt: skip
    assert set(left_out).isdisjoint(collected(tmp_path, "-m", "not slow"))
    kept = [name for name in in_ci if name.startswith("test_product[numba-")]
    assert 4 * 18 <= len(kept) <= 4 * 18 + 40
    _require_all_values(kept, 10, 30)
    kept = [name for name in in_ci if name.startswith("test_alike[numba-")]
    assert 20 <= len(kept) <= 22
    _require_all_values(kept, 3, 20)
    kept = [name for name in in_ci if name.startswith("test_few_of_a_product[")]
    assert 10 <= len(kept) <= 8 + 20
    _require_all_values([name.replace("[", "-") for name in kept], 10, 10)


def _require_all_values(names: list[str], *counts: int) -> None:
    values = [name.rstrip("]").split("-")[1:] for name in names]
    for place, count in enumerate(counts):
        assert {each[place] for each in values} == {str(value) for value in range(count)}
