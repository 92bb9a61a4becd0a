"""Release a version: set it everywhere, cut the changelog, check, commit and tag.

python tools/release.py 0.2.0            # or `make release VERSION=0.2.0`
python tools/release.py 0.2.0 --dry-run  # shows what would change, and changes nothing
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from check_repository import tracked_files, version_mismatches

ROOT: Final = Path(__file__).resolve().parents[1]
_OWN_PIN: Final = r"(gptrs(?:-[a-z]+)*(?:\[[a-z,]+\])?==)"
_UNRELEASED: Final = "## [Unreleased]\n"


class ReleaseError(Exception):
    """Why a version cannot be released; the message says what to do."""


def main() -> int:
    """Release the version that is named; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="the new version, such as 0.2.0")
    parser.add_argument("--dry-run", action="store_true", help="show the changes, make none")
    asked = parser.parse_args()
    try:
        release(ROOT, asked.version, dry_run=asked.dry_run)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, version: str, *, dry_run: bool) -> None:
    """Make the two commits and the tag of a release, or show the first of them.

    The second commit sets the version of development that comes after, so that no clone calls
    itself by the name of a release. ReleaseError, before anything changes, for a version that is
    malformed, released, or below the current one, for changes that are not committed, and for a
    changelog without entries.
    """
    new = _checked(root, version)
    today = datetime.datetime.now(datetime.UTC).date()
    changed = dict(versions(root, str(new)))
    changed[root / "CHANGELOG.md"] = changelog(_text(root / "CHANGELOG.md"), str(new), str(today))
    if dry_run:
        _show(root, changed)
        return
    if _git(root, "status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed; commit or stash them")
    _write(root, changed, f"release: {new}")
    _git(root, "tag", "--annotate", f"v{new}", "--message", f"gptrs {new}")
    after = f"{new.major}.{new.minor + 1}.0.dev0"
    _write(root, dict(versions(root, after)), f"release: development goes on as {after}")
    print(f"committed and tagged v{new}; to publish it: git push --follow-tags")


def _checked(root: Path, version: str) -> Version:
    try:
        new = Version(version)
    except InvalidVersion as error:
        raise ReleaseError(f"`{version}` is no version; write one like 0.2.0") from error
    if new.is_devrelease or new.local is not None:
        raise ReleaseError(f"{new} is a version of development; leave out its suffix")
    current = Version(current_version(root))
    if new < current:
        raise ReleaseError(f"{new} comes before {current}, the version of the sources")
    if f"v{new}" in _git(root, "tag", "--list").split():
        raise ReleaseError(f"{new} is released: there is a tag v{new}; take a later version")
    return new


def current_version(root: Path) -> str:
    """Return the version of the meta-distribution, which all distributions share."""
    found = re.search(r'^version = "(.+)"$', _text(root / "pyproject.toml"), re.MULTILINE)
    if found is None:
        raise ReleaseError("pyproject.toml states no version")
    return found[1]


def versions(root: Path, version: str) -> Iterator[tuple[Path, str]]:
    """Yield the files that state the version, with the texts that state the new one."""
    for path in sorted([root / "pyproject.toml", *root.glob("packages/*/pyproject.toml")]):
        text = re.sub(
            r'^version = ".+"$', f'version = "{version}"', _text(path), flags=re.MULTILINE
        )
        yield path, re.sub(rf'"{_OWN_PIN}[^"]+"', rf'"\g<1>{version}"', text)
    path = root / "packages/gptrs-core/src/gptrs/__init__.py"
    yield path, re.sub(r'__version__ = ".+"', f'__version__ = "{version}"', _text(path))


def changelog(text: str, version: str, date: str) -> str:
    """Return the changelog with what was unreleased under the version and its date."""
    before, heading, rest = text.partition(_UNRELEASED)
    entries = rest.partition("\n## [")[0]
    if not heading or not re.search(r"^- ", entries, re.MULTILINE):
        raise ReleaseError("CHANGELOG.md has no entries under `## [Unreleased]`")
    return f"{before}{_UNRELEASED}\n## [{version}] - {date}\n{rest}"


def _write(root: Path, changed: Mapping[Path, str], message: str) -> None:
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    wrong = list(version_mismatches(root, tracked_files(root)))
    if wrong:
        _git(root, "checkout", "--", ".")
        raise ReleaseError(f"nothing was changed: {wrong[0]}")
    _git(root, "commit", "--all", "--quiet", "--message", message)


def _show(root: Path, changed: Mapping[Path, str]) -> None:
    for path, text in changed.items():
        name = path.relative_to(root).as_posix()
        old, new = _text(path).splitlines(keepends=True), text.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=0))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
