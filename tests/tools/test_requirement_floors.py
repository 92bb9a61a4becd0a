"""Every dependency has a floor that `make floors` tries, and no bound that nobody knows why."""

from __future__ import annotations

from pathlib import Path

import pytest

import requirement_floors
from requirement_floors import FloorError, floors

LOCK = Path(requirement_floors.__file__).parents[1] / "requirements" / "dev.lock"


def written(root: Path, dependencies: str, extras: str = "") -> Path:
    (root / "packages" / "a").mkdir(parents=True)
    for folder, text in ((root, "dependencies = []"), (root / "packages" / "a", dependencies)):
        (folder / "pyproject.toml").write_text(f"[project]\n{text}\n{extras}")
    return root


def test_the_dependencies_of_the_packages_have_floors():
    found = floors()
    assert {"numpy", "tokenizers", "numba", "jinja2", "pillow", "huggingface_hub"} <= found.keys()
    assert all(version[0].isdigit() for version in found.values())


def test_the_highest_floor_and_the_extras_of_users_count(tmp_path):
    root = written(
        tmp_path,
        'dependencies = ["x>=1.9", "x>=1.10", "gptrs-core[chat]==0.1.0"]',
        '[project.optional-dependencies]\nhub = ["y>=2"]\ntest = ["z<1"]\n',
    )
    assert floors(root) == {"x": "1.10", "y": "2"}
    assert floors(root, without={"a"}) == {"y": "2"}


@pytest.mark.parametrize("requirement", ["x", "x>=1,<2", "x==1", "x~=1.0", "x ; y"])
def test_other_bounds_are_errors(tmp_path, requirement):
    with pytest.raises(FloorError):
        floors(written(tmp_path, f'dependencies = ["{requirement}"]'))


def test_the_lock_has_the_dependencies_at_or_above_their_floors():
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    assert list(locked) == sorted(locked)
    assert "://" not in LOCK.read_text()
    assert "torch" in locked
    for name, floor in floors().items():
        version = locked[name.replace("_", "-").lower()]
        numbers = [int(part) for part in version.split(".")[:3]]
        assert numbers >= [int(part) for part in floor.split(".")], name
