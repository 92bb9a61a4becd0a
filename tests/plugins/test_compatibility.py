"""What docs/plugins/compatibility.md promises of `gptrs.api`: no name goes within a version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gptrs import api
from gptrs.plugins.hookspecs import EXTENSION_POINTS

HERE = Path(__file__).parent
MODULES = (api.backends, api.models, api.passes, api.importers, api.programs)
NAMES = [(module.__name__.rpartition(".")[2], name) for module in MODULES for name in dir(module)]
LISTS = {path.stem.removeprefix("api-"): path for path in HERE.glob("api-*.txt")}


def test_no_name_of_this_version_has_gone() -> None:
    promised = set(LISTS[api.API_VERSION].read_text(encoding="utf-8").split())
    found = {*dir(api), *(f"{name}.{each}" for name, each in NAMES)}
    assert promised <= found, "only a new `API_VERSION` may take names away"


def test_there_is_a_list_for_each_version_and_none_for_others() -> None:
    newest = max(tuple(map(int, version.split("."))) for version in LISTS)
    assert newest == tuple(map(int, api.API_VERSION.split(".")))


@pytest.mark.parametrize("path", sorted(HERE.glob("*/pyproject.toml")), ids=lambda p: p.parent.name)
def test_the_examples_enter_by_groups_that_exist(path: Path) -> None:
    groups = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["entry-points"]
    assert groups.keys() <= {point.group for point in EXTENSION_POINTS}


def test_every_extension_point_has_its_example() -> None:
    page = Path(HERE.parents[1] / "docs/plugins/extension_points.md").read_text(encoding="utf-8")
    for point in EXTENSION_POINTS:
        row = re.search(rf"^\| `{point.group}` \| `{point.description.__name__}` \|", page, re.M)
        assert row, point.group
        assert page.count(point.description.__name__) > 1, point.group
