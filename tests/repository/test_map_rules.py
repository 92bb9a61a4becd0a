"""The tree of the map is compared with the folders and modules of core."""

from pathlib import Path, PurePosixPath

import pytest

import map_rules

TREE = """\
# Map

```text
gptrs/
  errors.py   all of them
                 -- then --
  nn/         layers, page_pool
    pages/    a pool,
              and more
```
"""
FILES = ("__init__.py", "errors.py", "nn/__init__.py", "nn/pages/page_pool.py")


def problems(root: Path, tree: str, *files: str) -> list[str]:
    path = root / map_rules.MAP
    path.parent.mkdir()
    path.write_text(tree)
    return list(map_rules.map_problems(root, [map_rules.CORE / name for name in files]))


def test_a_tree_that_matches(tmp_path: Path) -> None:
    assert problems(tmp_path, TREE, *FILES) == []
    assert list(map_rules.map_problems(tmp_path, [PurePosixPath("tools/x.py")])) == []


@pytest.mark.parametrize(
    ("tree", "files", "problem"),
    [
        (TREE, (*FILES, "nn/new/layer.py"), "its tree lacks `nn/new`"),
        (TREE, (*FILES, "spans.py"), "its tree lacks `spans.py`"),
        (TREE, FILES[1:3], "its tree has `nn/pages`, which does not exist"),
        (TREE.replace("layers", "old_name"), FILES, "its tree names `old_name`"),
        ("# Map\n", FILES, "the tree of `gptrs/` is not there"),
    ],
)
def test_what_differs_is_told(
    tmp_path: Path, tree: str, files: tuple[str, ...], problem: str
) -> None:
    assert any(problem in line for line in problems(tmp_path, tree, *files))
