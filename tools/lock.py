"""Write the versions of everything that development uses here to requirements/dev.lock."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "dev.lock"
_DEVELOPMENT = ("test", "docs", "check", "dist")
_HEAD = """\
# Versions with which the tests of this commit pass; written by `make lock`, not by hand.
# To have the same: pip install --constraint requirements/dev.lock -r requirements/check.txt
"""


def main() -> int:
    """Write the lock of the environment that runs this; return 0."""
    LOCK.parent.mkdir(exist_ok=True)
    LOCK.write_text(_HEAD + "".join(f"{line}\n" for line in locked(asked())))
    return 0


def asked() -> list[Requirement]:
    """Return what the projects of this repository and their development ask for."""
    found: list[str] = []
    for path in [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        optional = project.get("optional-dependencies", {})
        found += project.get("dependencies", [])
        found += [text for extra in optional.values() for text in extra]
    for name in _DEVELOPMENT:
        lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        found += [line for line in lines if line and not line.startswith(("#", "-r "))]
    return [Requirement(text) for text in found]


def locked(requirements: Iterable[Requirement]) -> list[str]:
    """Return `NAME==VERSION` of what these need and have here, gptrs's packages left out."""
    found: dict[str, str] = {}
    left = [(canonicalize_name(each.name), frozenset(each.extras)) for each in requirements]
    seen = set[tuple[str, frozenset[str]]]()
    while left:
        name, wanted = left.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra of somebody else that is not installed here
        if not name.startswith("gptrs"):
            found[name] = distribution.version.partition("+")[0]  # `+cpu` is how it was built
        left += _needed(distribution, wanted)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _needed(
    distribution: importlib.metadata.Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in (*extras, "")]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


if __name__ == "__main__":
    sys.exit(main())
