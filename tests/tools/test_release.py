"""Releases: the version everywhere, the changelog, commits and tag; refusals change nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import release

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path):
    """A repository with the files that a release reads."""
    for name in ("pyproject.toml", "packages/gptrs-core/src/gptrs/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for path in ROOT.glob("packages/*/pyproject.toml"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- One.\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    for key, value in (("user.name", "x"), ("user.email", "x@example.org")):
        git(tmp_path, "config", key, value)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "start")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    return done.stdout.decode()


def test_a_release_is_a_tag_and_development_goes_on(clone):
    release.release(clone, "7.1.0", dry_run=False)
    tagged = git(clone, "show", "v7.1.0:pyproject.toml")
    assert 'version = "7.1.0"' in tagged
    assert '"gptrs-runtime[chat,images]==7.1.0"' in tagged
    log = git(clone, "show", "v7.1.0:CHANGELOG.md")
    assert log.startswith("# Changelog\n\n## [Unreleased]\n\n## [7.1.0] - 2")
    assert log.endswith("\n\n- One.\n")
    assert release.current_version(clone) == "7.2.0.dev0"
    init = clone / "packages/gptrs-core/src/gptrs/__init__.py"
    assert '__version__ = "7.2.0.dev0"' in init.read_text()
    assert not git(clone, "status", "--porcelain")
    with pytest.raises(release.ReleaseError, match=r"CHANGELOG.md has no entries"):
        release.release(clone, "7.2.0", dry_run=False)
    with pytest.raises(release.ReleaseError, match=r"7\.1\.0 comes before 7\.2\.0\.dev0"):
        release.release(clone, "7.1.0", dry_run=False)


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.0.1", "comes before"), ("7", "not committed"), ("7.0.dev1", "development"), ("x", "no ")],
)
def test_a_refusal_changes_nothing(clone, version, why):
    (clone / "note").write_text("not committed")
    with pytest.raises(release.ReleaseError, match=why):
        release.release(clone, version, dry_run=False)
    assert git(clone, "status", "--porcelain").split() == ["??", "note"]
    assert not git(clone, "tag", "--list")


def test_a_dry_run_shows_the_changes_and_makes_none(clone, capsys):
    release.release(clone, "7.1.0", dry_run=True)
    shown = capsys.readouterr().out
    assert shown.count('+version = "7.1.0"') == 1 + len(
        list(ROOT.glob("packages/*/pyproject.toml"))
    )
    assert "+## [7.1.0] - " in shown
    assert not git(clone, "status", "--porcelain")


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda p: p.stem)
def test_hosted_workflows_call_targets_of_the_makefile(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        tool, target = command.split()
        assert (tool, f"\n{target}:" in makefile) == ("make", True)
