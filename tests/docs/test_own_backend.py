"""The tutorial on a backend of one's own, followed to the letter but for its `pip install`s."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import doc_examples

TUTORIAL = Path(doc_examples.__file__).parents[1] / "docs" / "plugins" / "own_backend.md"
BLOCK = re.compile(r"```(?P<kind>sh|python no-run)\n(?P<text>.*?)```", re.DOTALL)
EXIT = re.compile(r"  # exits with (\d+)$")
FILES_TO_TOUCH = 3


def run(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_it_works_as_written(tmp_path: Path) -> None:
    package, plain = tmp_path / "gptrs-backend-acme", dict(os.environ)
    environment = {**plain, "GPTRS_CACHE_DIR": str(tmp_path / "cache")}
    commands = 0
    for block in BLOCK.finditer(TUTORIAL.read_text(encoding="utf-8")):
        if block["kind"] != "sh":
            path, _, code = block["text"].partition("\n")
            with (package / path.removeprefix("# ")).open("a", encoding="utf-8") as file:
                file.write(f"\n{code}")
            continue
        for line in block["text"].splitlines():
            wanted = EXIT.search(line)
            words = shlex.split(line, comments=True)
            if words[:2] == ["pip", "install"] and "-e" in words:
                # As `-e` does it: the sources are on the path, with metadata of the package.
                target = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
                target += ["--no-build-isolation", "--target", str(tmp_path / "found"), "."]
                assert run(target, package, environment)[0] == 0
                paths = [str(package / "src"), str(tmp_path / "found")]
                environment["PYTHONPATH"] = os.pathsep.join(paths)
            elif words[0] == "gptrs":  # `pytest` is run by tests/new
                folder = package if package.exists() else tmp_path
                command = [sys.executable, "-m", "gptrs_cli", *words[1:]]
                code, output = run(command, folder, environment)
                assert code == (int(wanted[1]) if wanted else 0), f"{line}\n{output}"
                commands += 1
    assert commands == 8


def test_the_files_to_change_are_named() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    (sentence,) = re.findall(r"You will change three files\.(.*?)`src/\S+plugin\.py`", text, re.S)
    named = set(re.findall(r"`(\S+/\S+\.py)`", sentence))
    assert len(named) == FILES_TO_TOUCH
