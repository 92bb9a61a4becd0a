"""Links of the docs, which hold in the repository, as links of the site.

Links to sources become plain text, since the site has no sources; what they name must exist.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

RESULTS = "benchmarks/results"


def _newest_results() -> str:
    root = Path(__file__).resolve().parents[2]
    return max(path.relative_to(root).as_posix() for path in (root / RESULTS).glob("*.md"))


PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
    _newest_results(): "project/results.md",
}
"""Pages of the site that are files of the repository outside of `docs`."""
_PLACES = {place: name for name, place in PAGES.items()}
_FENCE_LINK_OR_CODE = re.compile(
    r"^ *(?P<fence>`{3,})[^`\n]*\n.*?^ *(?P=fence)$"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]`]|`[^`]*`)*)\]\((?P<to>[^)\s]+)\)"
    r"|`+[^`]+`+",
    re.MULTILINE | re.DOTALL,
)
_ELSEWHERE = re.compile(r"[a-z]+:|#")


class LinkError(Exception):
    """An error for a link to what the repository does not have."""


def relinked(markdown: str, place: str, root: Path) -> str:
    """Return the page at `place` of the site with its links changed; LinkError for a dead one."""
    name = _PLACES.get(place, f"docs/{place}")
    return _FENCE_LINK_OR_CODE.sub(lambda match: _changed(match, place, name, root), markdown)


def _changed(match: re.Match[str], place: str, name: str, root: Path) -> str:
    target = match["to"]
    if target is None or _ELSEWHERE.match(target):
        return match[0]
    path, _, part = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    is_made = name.startswith("docs/reference/") or file.startswith("docs/reference/")
    if not is_made and not (root / file).exists():
        raise LinkError(f"{name} links to {target}, which is not there")
    shown = _place_of(file)
    if shown is None:
        return match["text"]
    to = posixpath.relpath(shown, posixpath.dirname(place) or ".") + (f"#{part}" if part else "")
    return f"{match['image']}[{match['text']}]({to})"


def _place_of(file: str) -> str | None:
    """Return where the site has a file of the repository, None for a source."""
    if file in PAGES:
        return PAGES[file]
    is_page = file.startswith("docs/") and not file.startswith("docs/examples/")
    return file.removeprefix("docs/") if is_page and posixpath.splitext(file)[1] else None
