"""The distributions hold what they should, and the trials of `make dist` notice what is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import dist
import dist_contents
import dist_trials
from check_repository import tracked_files
from dist_contents import Project, content_problems, metadata_problems, projects, sdist_names
from dist_trials import SCRIPTS, TRIALS, Step, Trial, TrialError, try_step

ROOT = Path(dist_contents.__file__).resolve().parents[1]
PROJECTS = {project.name: project for project in projects(ROOT)}


@pytest.mark.parametrize("project", PROJECTS.values(), ids=lambda project: project.name)
def test_metadata_is_complete(project: Project):
    assert list(metadata_problems(project)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"keywords": []}, "no `keywords`"),
        (
            {"classifiers": ["Programming Language :: Python :: 3.11"]},
            "no classifier of Python 3.1",
        ),
        ({"optional-dependencies": {"gpu": ["torch==2.13.0"]}}, "pins `torch==2.13.0`"),
        ({"readme": "linked.md"}, "the readme links to `docs/x.md`, which only the repository has"),
    ],
)
def test_what_an_index_would_show_wrongly_is_found(
    change: dict[str, object], problem: str, tmp_path: Path
):
    (tmp_path / "README.md").write_text("[site](https://example.org) [part](#part)\n")
    (tmp_path / "linked.md").write_text("[page](docs/x.md)\n")
    sound = replace(PROJECTS["gptrs-core"], folder=tmp_path)
    assert list(metadata_problems(sound)) == []
    found = list(metadata_problems(replace(sound, table={**sound.table, **change})))
    assert found
    assert all(problem in line for line in found)


@pytest.fixture(scope="module")
def clean_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    dist.copy_tracked(folder)
    return folder


@pytest.mark.parametrize("name", ["gptrs-core", "gptrs-backend-ref"])
def test_the_files_hold_what_git_tracks(name: str, clean_copy: Path, tmp_path: Path):
    project = PROJECTS[name]
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    copy = clean_copy / project.folder.relative_to(ROOT)
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    tracked = tracked_files(ROOT)
    assert list(content_problems(ROOT, [project], tmp_path, tracked)) == []
    if name == "gptrs-core":
        held = sdist_names(tmp_path / f"{project.stem}.tar.gz")
        assert {"docs/ptir.md", "docs/examples/next_token.ptir"} <= held
    source = project.folder.relative_to(ROOT) / "src"
    lost = min(path for path in tracked if path.is_relative_to(source) and path.suffix == ".py")
    known = [*(path for path in tracked if path != lost), lost.with_name("absent.py")]
    found = "\n".join(content_problems(ROOT, [project], tmp_path, known))
    assert f"holds {lost.relative_to(source)}, which git does not track" in found
    assert f"lacks {lost.with_name('absent.py').relative_to(source)}" in found


def test_the_oldest_and_the_newest_python_are_tried(tmp_path: Path):
    for minor, code in ((9, 0), (11, 0), (12, 0), (14, 0), (15, 127)):
        script = tmp_path / f"python3.{minor}"
        script.write_text(f"#!/bin/sh\nexit {code}\n")
        script.chmod(0o755)
    (tmp_path / "python3.16-config").touch()
    environment = tmp_path / "env"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    (environment / "bin" / "python3.17").touch()
    path = f"{environment / 'bin'}:{tmp_path}:{tmp_path / 'absent'}"
    assert list(dist.pythons(path)) == [tmp_path / "python3.11", tmp_path / "python3.14"]
    assert list(dist.pythons(str(environment / "bin"))) == [Path(sys.executable)]


@pytest.mark.parametrize(
    ("step", "works"),
    [
        (Step(("gptrs", "list"), 3, ("nothing", "list")), True),
        (Step(("gptrs", "list"), 0, ("nothing",)), False),
        (Step(("gptrs", "list"), 3, ("pip install",)), False),
    ],
)
def test_a_trial_reads_the_exit_code_and_the_words(step: Step, works: bool, tmp_path: Path):
    command = tmp_path / "env" / "bin" / "gptrs"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho nothing $1 >&2\nexit 3\n")
    command.chmod(0o755)
    trial = Trial("one", (), (step,))
    if works:
        try_step(trial, step, tmp_path / "env", tmp_path)
    else:
        with pytest.raises(TrialError, match="one: `gptrs list` ended with 3"):
            try_step(trial, step, tmp_path / "env", tmp_path)


def test_a_step_without_end_is_an_error_of_the_trial(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(dist_trials, "_STEP_S", 0.1)
    command = tmp_path / "env" / "bin" / "gptrs"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\nexec sleep 1000\n")
    command.chmod(0o755)
    step = Step(("gptrs",))
    with pytest.raises(TrialError, match=r"`.*gptrs` took more than 0\.1 s"):
        try_step(Trial("one", (), (step,)), step, tmp_path / "env", tmp_path)


def test_every_distribution_is_tried_and_every_script_is_there():
    named = {name.partition("[")[0] for trial in TRIALS for name in trial.requirements}
    assert {name for name in named if name.startswith("gptrs")} == set(PROJECTS)
    scripts = {step.words[0] for trial in TRIALS for step in trial.steps} - {"gptrs"}
    assert scripts == {path.name for path in SCRIPTS.glob("*.py")}
