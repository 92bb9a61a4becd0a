"""Build every distribution into dist/, check the files, and try them in clean environments.

What installs the libraries of others comes from pip's own settings.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from check_repository import tracked_files
from dist_contents import NOT_IN_SDISTS, NUMBA, content_problems, projects
from dist_trials import TRIALS, Trial, TrialError, run_trial

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
_PYTHON = re.compile(r"python3\.(\d+)")
_OLDEST = 11


def main() -> int:
    """Return 0 if all distributions build, are sound and work, else 1."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--built", action="store_true", help="take what is in dist/ already")
    options.add_argument("--without-kernels", action="store_true", help="build no packs: quicker")
    options.add_argument("--trial", action="append", metavar="NAME", help="run these trials only")
    asked = options.parse_args()
    try:
        if not asked.built:
            build(with_kernels=not asked.without_kernels)
        check()
        for python in pythons():
            for trial in TRIALS:
                if trial.name in asked.trial if asked.trial else not trial.large:
                    attempt(trial, python)
        if not asked.trial:
            large = [trial.name for trial in TRIALS if trial.large]
            print(f"left out, as it may install gigabytes (--trial): {', '.join(large)}")
    except subprocess.CalledProcessError as error:
        print(f"failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    except TrialError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


def build(*, with_kernels: bool) -> None:
    """Build an sdist of each project, and its wheel out of the sdist, with what is in .venv.

    `with_kernels` builds the wheel with packs of compiled kernels, too, which takes many minutes.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST]
    with tempfile.TemporaryDirectory(prefix="gptrs-dist-") as folder:
        copy_tracked(Path(folder))
        for project in projects(Path(folder)):
            subprocess.run([*command, project.folder], check=True, stdout=subprocess.DEVNULL)
            print(f"built {project.name}", flush=True)
        if with_kernels and has_packs():
            build_packs(Path(folder))
            subprocess.run([*command, "--wheel", Path(folder, NUMBA)], check=True)


def has_packs() -> bool:
    """Return whether packs are for this system: they are compiled on the one that they are for."""
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def build_packs(sources: Path) -> None:
    """Compile the packs for all kinds of processors into the package, with a copy of `sources`.

    What an interrupted build has compiled for the same sources of kernels is taken.
    """
    folders = sorted(sources.glob("packages/*/src"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    out = sources / NUMBA / "src" / "gptrs_backend_numba" / "pack"
    command = [sys.executable, sources / "tools" / "kernel_pack.py", "--all", "--out", out]
    command += ["--work", ROOT / "build" / "kernel-packs"]
    subprocess.run(command, env=environment, check=True)


def copy_tracked(folder: Path) -> None:
    """Copy what git tracks to `folder`, without its settings, which nobody else has use for."""
    for path in tracked_files(ROOT):
        if path.parts[0] not in NOT_IN_SDISTS:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)


def check() -> None:
    """Raise TrialError for files that hold too little or too much, or have bad metadata."""
    files = sorted(DIST.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    problems = list(content_problems(ROOT, projects(ROOT), DIST, tracked_files(ROOT)))
    if problems:
        raise TrialError("\n".join(problems))


def pythons(path: str | None = None) -> Iterator[Path]:
    """Yield the oldest and the newest Python >= 3.11 on `path`, this one if there is none.

    By default `path` is PATH, and what pyenv has installed. Environments are left out, as they hold
    links to what they were made with, and so is what does not start or cannot make environments.
    """
    found: dict[int, Path] = {}
    for folder in map(Path, (path or _everywhere()).split(os.pathsep)):
        if (folder.parent / "pyvenv.cfg").exists() or not folder.is_dir():
            continue
        for file in folder.iterdir():
            match = _PYTHON.fullmatch(file.name)
            minor = int(match[1]) if match else 0
            if minor >= _OLDEST and minor not in found and _makes_environments(file):
                found[minor] = file
    chosen = {found[min(found)], found[max(found)]} if found else {Path(sys.executable)}
    yield from sorted(chosen)


def _everywhere() -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    return os.pathsep.join((os.environ["PATH"], *map(str, pyenv.glob("versions/*/bin"))))


def _makes_environments(python: Path) -> bool:
    command = [python, "-c", "import ensurepip, venv"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def attempt(trial: Trial, python: Path) -> None:
    """Run a trial in an environment of its own, outside of the checkout; print what it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gptrs-dist-") as folder:
        run_trial(trial, python, DIST, Path(folder))
    print(f"{python.name}, {trial.name}: works, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
