"""The map is compared with the folders and modules of the packages."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

import map_rules

TREE = """\
# Map

```text
gptrs/
  errors.py, spans.py   all of them
                 -- then --
  nn/         layers, page_pool
    pages/    a pool,
              and more
gptrs_x/      one_module
  run/        a few
```

| pages | `nn/pages/`, `page_pool.py` |
"""
FILES = ("__init__.py", "errors.py", "spans.py", "nn/__init__.py", "nn/pages/page_pool.py")
OTHER = [
    PurePosixPath("packages/gptrs-x/src/gptrs_x", name)
    for name in ("one_module.py", "run/a.py", "more/b.py")
]


def problems(
    root: Path, tree: str, *files: str, other: Sequence[PurePosixPath] = OTHER
) -> list[str]:
    path = root / map_rules.MAP
    path.parent.mkdir()
    path.write_text(tree)
    core = [map_rules.CORE / name for name in files]
    return list(map_rules.map_problems(root, [*core, *other]))


def test_a_tree_that_matches(tmp_path: Path) -> None:
    assert problems(tmp_path, TREE, *FILES) == []
    assert list(map_rules.map_problems(tmp_path, [PurePosixPath("tools/x.py")])) == []


@pytest.mark.parametrize(
    ("tree", "files", "problem"),
    [
        (TREE, (*FILES, "nn/new/layer.py"), "its tree lacks `nn/new`"),
        (TREE, (*FILES, "ports.py"), "its tree lacks `ports.py`"),
        (TREE, FILES[1:4], "its tree has `nn/pages`, which does not exist"),
        (TREE.replace("`nn/", "`old/"), FILES, "it names `old/pages/`, which does not exist"),
        (TREE.replace("layers", "old_name"), FILES, "its tree names `old_name`"),
        (TREE + "\n" * 150, FILES, "more than 150"),
        ("# Map\n", FILES, "the tree of `gptrs/` is not there"),
    ],
)
def test_what_differs_is_told(
    tmp_path: Path, tree: str, files: tuple[str, ...], problem: str
) -> None:
    assert any(problem in line for line in problems(tmp_path, tree, *files))


def test_trees_of_other_packages_may_leave_out_folders_but_invent_none(tmp_path: Path) -> None:
    lines = problems(tmp_path, TREE, *FILES, other=())
    assert len(lines) == 2
    assert "its tree has `run`, which does not exist" in lines[0]
    assert "no module or folder of `gptrs_x` is called so" in lines[1]
