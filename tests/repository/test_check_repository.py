"""Each repository rule bites on a made-up tree, and leaves a correct one alone."""

import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

import check_repository

PACKAGE = """
[project]
name = "{name}"
version = "{version}"
dependencies = [{pins}]
"""
BACKEND_ENTRY = """
[project.entry-points."gptrs.backends"]
fast = "fast.plugin:PLUGIN"
ref = "ref.plugin:PLUGIN"
"""
MODEL_ENTRY = """
[project.entry-points."gptrs.models"]
toy2 = "models.plugin:TOY2"

[project.entry-points."gptrs.demo_models"]
demo = "models.plugin:DEMO"
"""
RUNTIME = "packages/gptrs-runtime/src/gptrs_runtime/load.py"
COMMAND = "packages/gptrs-cli/src/gptrs_cli/main.py"


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def problems(root: Path) -> list[str]:
    files = [PurePosixPath(p.relative_to(root).as_posix()) for p in root.rglob("*") if p.is_file()]
    return check_repository.find_problems(root, sorted(files))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of two packages that keeps every rule."""
    core = PACKAGE.format(name="gptrs-core", version="1.2", pins="") + BACKEND_ENTRY
    cli = PACKAGE.format(name="gptrs-cli", version="1.2", pins='"gptrs-core==1.2"') + MODEL_ENTRY
    meta_pins = '"gptrs-core[extra]==1.2", "gptrs-cli==1.2", "numpy>=1"'
    write(tmp_path, "pyproject.toml", PACKAGE.format(name="gptrs", version="1.2", pins=meta_pins))
    write(tmp_path, "packages/gptrs-core/pyproject.toml", core)
    write(tmp_path, "packages/gptrs-cli/pyproject.toml", cli)
    for folder in ("", "packages/gptrs-core/", "packages/gptrs-cli/"):
        write(tmp_path, folder + "LICENSE", "the license\n")
    write(
        tmp_path, RUNTIME, '"""Load the demo model by reference, fast2 and breakfast."""\nref = 1\n'
    )
    write(tmp_path, COMMAND, "fast = 2  # refresh\n")
    return tmp_path


def test_a_correct_tree_has_no_problems(tree: Path):
    assert problems(tree) == []


def test_a_long_file_is_a_problem_and_one_at_the_limit_is_not(tree: Path):
    write(tree, "tools/long.py", "x = 1\n" * 800)
    assert problems(tree) == []
    write(tree, "tools/long.py", "x = 1\n" * 801)
    assert problems(tree) == ["tools/long.py: 801 lines, more than 800; split it by subject"]


@pytest.mark.parametrize("path", ["tools/utils.py", "tools/_common.py", "packages/a/misc/x.py"])
def test_a_name_that_says_nothing_is_a_problem(tree: Path, path: str):
    write(tree, path, "")
    [problem] = problems(tree)
    assert problem.startswith(f"{path}: `")


@pytest.mark.parametrize("path", ["tools/pass_base.py", "docs/utils.md", "tools/commonality.py"])
def test_a_name_that_only_contains_a_forbidden_one_is_allowed(tree: Path, path: str):
    write(tree, path, "")
    assert problems(tree) == []


def test_a_large_file_is_a_problem(tree: Path):
    write(tree, "docs/photo.bin", "x" * 1_000_001)
    assert problems(tree) == [
        "docs/photo.bin: 1000001 bytes, more than 1000000; keep it out of git"
    ]


def test_the_demo_model_may_be_large_but_not_too_large(tree: Path):
    weights = f"{check_repository.DEMO_MODEL}/model.safetensors"
    write(tree, weights, "x" * 8_000_000)
    assert problems(tree) == []
    write(tree, weights, "x" * 8_000_001)
    [problem] = problems(tree)
    assert problem.endswith("8000001 bytes in all, more than 8000000")


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (
            "packages/gptrs-core/pyproject.toml",
            'version = "1.2"',
            'version = "1.3"',
            "packages/gptrs-core/pyproject.toml: version 1.3, but `gptrs` is 1.2",
        ),
        (
            "packages/gptrs-cli/pyproject.toml",
            "gptrs-core==1.2",
            "gptrs-core>=1.2",
            "packages/gptrs-cli/pyproject.toml: depends on `gptrs-core>=1.2`; pin it as `==1.2`",
        ),
        (
            "pyproject.toml",
            '"gptrs-cli==1.2", ',
            "",
            "pyproject.toml: `gptrs-cli==1.2` is not a dependency",
        ),
    ],
)
def test_versions_that_disagree_are_a_problem(
    tree: Path, path: str, old: str, new: str, expected: str
):
    text = (tree / path).read_text(encoding="utf-8")
    assert old in text
    write(tree, path, text.replace(old, new))
    assert problems(tree) == [expected]


def test_a_stale_pin_of_the_meta_distribution_is_named_with_the_one_it_needs(tree: Path):
    text = (tree / "pyproject.toml").read_text(encoding="utf-8")
    write(tree, "pyproject.toml", text.replace("gptrs-cli==1.2", "gptrs-cli==1.1"))
    assert problems(tree) == [
        "pyproject.toml: `gptrs-cli==1.1` differs from version 1.2",
        "pyproject.toml: `gptrs-cli==1.2` is not a dependency",
    ]


def test_a_changed_or_missing_license_copy_is_a_problem(tree: Path):
    write(tree, "packages/gptrs-core/LICENSE", "another license\n")
    (tree / "packages/gptrs-cli/LICENSE").unlink()
    assert [problem.partition(":")[0] for problem in problems(tree)] == [
        "packages/gptrs-cli/LICENSE",
        "packages/gptrs-core/LICENSE",
    ]


@pytest.mark.parametrize("path", [RUNTIME, COMMAND])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('BACKEND = "ref"\n', "ref"),
        ('HINT = "pip install gptrs-backend-fast"\n', "fast"),
        ('MODULE = "gptrs_backend_fast"\n', "fast"),
        ('def load(kind):\n    return f"{kind} is not toy2"\n', "toy2"),
        ('"""Load TOY2."""\n', "TOY2"),
        ("x = 1  # fast is the default\n", "fast"),
    ],
)
def test_a_plugin_name_in_a_neutral_source_is_a_problem(
    tree: Path, path: str, source: str, name: str
):
    write(tree, path, source)
    line = source.count("\n", 0, source.index(name)) + 1
    assert problems(tree) == [
        f"{path}:{line}: spells the plugin name `{name}`; ask the plugins for it"
    ]


def test_programs_and_tokenizers_may_be_called_as_kinds_are(tree: Path, monkeypatch):
    monkeypatch.setattr(check_repository, "FOREIGN_NAMES", ("toy2.cpp",))
    monkeypatch.setattr(check_repository, "NAMES_OF_TOKENIZERS", PurePosixPath(COMMAND))
    write(tree, RUNTIME, "# As toy2.cpp has it.\n# Not toy2 itself.\n")
    write(tree, COMMAND, 'TOKENIZERS = ["toy2"]\n')
    (problem,) = problems(tree)
    assert problem.startswith(f"{RUNTIME}:2: spells the plugin name `toy2`")


def test_other_sources_may_name_plugins(tree: Path):
    write(tree, "packages/gptrs-models/src/gptrs_models/plugin.py", 'NAMES = ["toy2", "ref"]\n')
    assert problems(tree) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on PATH")
def test_tracked_files_are_those_that_git_has_or_would_take(tmp_path: Path):
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name in (".gitignore", "added.py", "deleted.py", "new.py", "ignored.py"):
        write(tmp_path, name, "ignored.py\n")
    subprocess.run(["git", "add", "added.py", "deleted.py"], cwd=tmp_path, check=True)
    (tmp_path / "deleted.py").unlink()
    names = [str(path) for path in check_repository.tracked_files(tmp_path)]
    assert names == [".gitignore", "added.py", "new.py"]


def test_the_rules_point_at_what_this_repository_has():
    root = Path(check_repository.__file__).parents[1]
    for folder in (*check_repository.NEUTRAL_SOURCES, check_repository.DEMO_MODEL):
        assert (root / folder).is_dir()
    tomls = [PurePosixPath(p.relative_to(root)) for p in root.glob("packages/*/pyproject.toml")]
    assert {"gpt2", "numba", "ref"} <= set(check_repository.plugin_names(root, tomls))
