"""Hints name commands that work: in a clone, with wheels in a folder, with an index."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from gptrs import install_hints
from gptrs.install_hints import find_links, install_extra, install_libraries, install_own


@dataclass
class Recorded:
    """What pip wrote about gptrs-core."""

    record: str | None
    requires: tuple[str, ...] = ()

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.record


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The words that start pip, in an environment without it on PATH."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    return "'/opt/my python/bin/python' -m pip install"


def recorded(monkeypatch: pytest.MonkeyPatch, place: Path | None) -> None:
    record = None if place is None else json.dumps({"url": place.as_uri()})
    monkeypatch.setattr(install_hints.metadata, "distribution", lambda name: Recorded(record))


def test_from_an_index(monkeypatch: pytest.MonkeyPatch, command: str):
    recorded(monkeypatch, None)
    hint = install_own("gptrs-conformance")
    assert hint.startswith(f"run `{command} gptrs-conformance`")
    assert "`--find-links FOLDER` if gptrs came from wheels" in hint


def test_in_a_clone(monkeypatch: pytest.MonkeyPatch, command: str, tmp_path: Path):
    core = tmp_path / "a clone" / "packages" / "gptrs-core"
    core.mkdir(parents=True)
    (core / "pyproject.toml").touch()
    needed = ["gptrs-core==0.1.0", "gptrs-runtime[chat,images]==0.1.0", "numpy>=2"]
    (tmp_path / "a clone/pyproject.toml").write_text(f"[project]\ndependencies = {needed}\n")
    for name in ("gptrs-runtime", "gptrs-torch"):
        (core.parent / name).mkdir()
        (core.parent / name / "pyproject.toml").touch()
    recorded(monkeypatch, core)
    assert install_own("gptrs-cli") == f"run `{command} './a clone/packages/gptrs-cli'`"
    assert find_links() == ""
    parts = "'./a clone/packages/gptrs-core' './a clone/packages/gptrs-runtime' './a clone'"
    assert install_own("gptrs") == f"run `{command} {parts}`"
    monkeypatch.chdir(core)
    assert install_own("gptrs-cli") == f"run `{command} '{core.parent / 'gptrs-cli'}'`"


def test_no_part_of_gptrs_brings_torch_ray_or_jax(monkeypatch: pytest.MonkeyPatch):
    recorded(monkeypatch, Path(__file__).parents[2] / "packages/gptrs-core")
    hint = install_own("gptrs")
    named = {name for name in re.findall(r"packages/(gptrs-[\w-]+)", hint)}
    assert {"gptrs-core", "gptrs-cli", "gptrs-serve", "gptrs-train"} <= named
    assert not named & {"gptrs-torch", "gptrs-ray", "gptrs-backend-jax"}


def test_from_wheels(monkeypatch: pytest.MonkeyPatch, command: str, tmp_path: Path):
    wheel = tmp_path / "dist" / "gptrs_core-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    recorded(monkeypatch, wheel)
    assert install_own("gptrs") == f"run `{command} --find-links ./dist gptrs`"
    assert find_links() == "--find-links ./dist "


def test_what_is_gone_is_not_named(monkeypatch: pytest.MonkeyPatch, command: str, tmp_path: Path):
    recorded(monkeypatch, tmp_path / "packages" / "gptrs-core")
    assert install_own("gptrs").startswith(f"run `{command} gptrs`")


def test_pip_of_this_environment_goes_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "pip").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert install_libraries(["numpy"]) == "run `pip install numpy`"


def test_uv_where_there_is_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str):
    (tmp_path / "uv").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(install_hints, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    python = "'/opt/my python/bin/python'"
    assert install_libraries(["numpy"]) == f"run `uv pip install --python {python} numpy`"


@pytest.mark.parametrize(
    ("distribution", "extra", "libraries"),
    [
        ("gptrs-runtime", "images", ["pillow"]),
        ("gptrs-runtime", "chat", ["jinja2"]),
        ("gptrs-runtime", "hub", ["huggingface-hub"]),
        ("gptrs-cli", "torch", ["pillow", "torch", "transformers"]),
    ],
)
def test_extras_are_named_by_their_libraries(
    command: str, distribution: str, extra: str, libraries: list[str]
):
    words = install_extra(distribution, extra).removeprefix(f"run `{command} ").rstrip("`").split()
    assert [word.strip("'").partition(">=")[0] for word in words] == libraries
    assert all(word.startswith("'") and ">=" in word for word in words)


def test_an_extra_of_what_has_no_metadata_is_named_itself(
    monkeypatch: pytest.MonkeyPatch, command: str
):
    recorded(monkeypatch, None)
    assert install_extra("gptrs-absent", "fast").startswith(f"run `{command} 'gptrs-absent[fast]'`")
