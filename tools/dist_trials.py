"""Clean environments with some of our wheels, and what must work there or say what is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).with_name("dist_smoke")
_STEP_S = 600
_INSTALL_S = 3600
"""Limits: what is tried must be quick, while an installation unpacks hundreds of megabytes."""


class TrialError(Exception):
    """An error for what does not work out of the built distributions."""


@dataclass(frozen=True)
class Step:
    """A command that must end with `code` and say `said`, on standard output or error.

    Words that end in `.py` are scripts of `dist_smoke`; others are run from the environment.
    """

    words: tuple[str, ...]
    code: int = 0
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """What is installed, and what is then tried; `lacks` must not come along.

    One that is `large` may install gigabytes, and runs only where it is named.
    """

    name: str
    requirements: tuple[str, ...]
    steps: tuple[Step, ...]
    lacks: tuple[str, ...] = ()
    large: bool = False


def gptrs(command: str, code: int = 0, *said: str) -> Step:
    """Return a step that runs the command line."""
    return Step(("gptrs", *command.split()), code, said)


def script(name: str, *arguments: str) -> Step:
    """Return a step that runs a script, which fails where something is not as it should be."""
    return Step((f"{name}.py", *arguments))


_GENERATE = "generate --prompt-ids 1,2,3 --max-tokens 4 --greedy --json"
TRIALS = (
    Trial(
        "core alone",
        ("gptrs-core",),
        (script("core_alone"),),
        ("gptrs-cli", "gptrs-runtime", "numba", "scipy"),
    ),
    Trial(
        "the reference backend alone",
        ("gptrs-backend-ref",),
        (script("runs_a_program", "ref"),),
        ("gptrs-backend-numba", "gptrs-cli", "numba"),
    ),
    Trial(
        "the numba backend alone",
        ("gptrs-backend-numba",),
        (script("runs_a_program", "numba"),),
        ("gptrs-backend-ref", "gptrs-cli", "scipy"),
    ),
    Trial(
        "the command line alone",
        ("gptrs-cli",),
        (
            gptrs("--help", 0, "generate"),
            gptrs("list backends", 0, "no backend is installed", "pip install"),
            gptrs("list models", 0, "no model is installed", "pip install"),
            gptrs("generate --max-tokens 1", 4, "no demo model", "gptrs-models`"),
            gptrs("conformance run", 4, "gptrs-conformance`"),
        ),
        ("gptrs-models", "numba", "scipy", "torch"),
    ),
    Trial(
        "models and the runtime alone",
        ("gptrs-models", "gptrs-runtime"),
        (script("models_alone"),),
        ("gptrs-cli", "gptrs-observe", "scipy"),
    ),
    Trial(
        "what is observed, from Python",
        ("gptrs-observe", "gptrs-backend-ref"),
        (script("observes"),),
        ("gptrs-cli", "gptrs-models", "numba"),
    ),
    Trial(
        "the conformance kit and a backend",
        ("gptrs-conformance", "gptrs-backend-ref"),
        (script("conforms", "ref"),),
        ("gptrs-cli", "pytest"),
    ),
    Trial(
        "the command line, the reference backend and models",
        ("gptrs-cli", "gptrs-backend-ref", "gptrs-models"),
        (
            gptrs(_GENERATE, 0, '"token_ids"'),
            gptrs("conformance run --backend ref", 4, "gptrs-conformance`"),
            gptrs("validate --model demo", 4, "torch>="),
        ),
        ("gptrs-backend-numba", "gptrs-conformance", "jinja2", "pillow"),
    ),
    Trial(
        "an author's package",
        ("gptrs-new", "gptrs-cli"),
        (
            gptrs("new backend acme", 0, "gptrs-backend-acme/src/gptrs_backend_acme/kernels.py"),
            gptrs("list plugins", 0, "gptrs-new"),
        ),
        ("gptrs-conformance", "gptrs-models", "numba"),
    ),
    Trial(
        "the JAX backend alone",
        ("gptrs-backend-jax",),
        (script("runs_a_program", "jax"),),
        ("gptrs-backend-numba", "gptrs-cli", "numba"),
    ),
    Trial(
        "ONNX files",
        ("gptrs-onnx", "gptrs-cli", "gptrs-backend-ref"),
        (gptrs("list plugins", 0, "Models in ONNX files."), script("reads_onnx")),
        ("gptrs-backend-numba", "gptrs-models", "onnxruntime", "torch"),
    ),
    Trial(
        "rows on a cluster",
        ("gptrs-ray", "gptrs-cli", "gptrs-backend-ref", "gptrs-models"),
        (gptrs("batch --help", 0, "--ray ADDRESS"), script("runs_batches")),
        ("gptrs-backend-numba", "gptrs-serve", "torch"),
    ),
    Trial(
        "programs of torch",
        ("gptrs-torch", "gptrs-cli", "gptrs-backend-ref"),
        (gptrs("list plugins", 0, "Programs that torch.export wrote."), script("reads_torch")),
        ("gptrs-backend-numba", "gptrs-models", "onnx", "transformers"),
        large=True,  # torch of a package index brings the libraries of GPUs
    ),
    Trial(
        "training",
        ("gptrs-train", "gptrs-cli", "gptrs-backend-ref", "gptrs-models"),
        (gptrs("finetune --help", 0, "--mask-prompt"), script("trains")),
        ("gptrs-backend-numba", "gptrs-serve", "torch"),
    ),
    Trial(
        "a server",
        ("gptrs-serve", "gptrs-cli", "gptrs-backend-ref", "gptrs-models"),
        (
            gptrs("serve --help", 0, "--api-key-file"),
            gptrs("serve --host 203.0.113.1", 2, "cannot be listened on"),
            script("serves"),
        ),
        ("gptrs-backend-numba", "gptrs-conformance", "openai"),
    ),
    Trial(
        "everything",
        ("gptrs",),
        (
            gptrs("generate --max-tokens 8 --greedy"),
            gptrs("list plugins --check", 0, "available"),
            gptrs("doctor", 0, "gptrs-core"),
            gptrs("docs quantization", 0, "Quantized weights"),
            gptrs("conformance run --backend ref --level smoke"),
            script("all_together"),
        ),
        ("pytest", "torch"),
    ),
    Trial(
        "the first hour",
        # `curl` comes from the system; what runs a notebook and the client of OpenAI, from others.
        ("gptrs[hub]", "ipykernel", "nbclient", "openai", "safetensors"),
        (script("first_hour"),),
        ("torch",),
    ),
)


def run_trial(trial: Trial, python: Path, dist: Path, folder: Path) -> None:
    """Install what the trial needs from `dist` into an environment in `folder`, and try it there.

    TrialError says which command failed, and how.
    """
    folder = folder.resolve()
    place = folder / "env"
    _run((python, "-m", "venv", place), folder)
    pip = (place / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    # Compiling all modules takes minutes where others share the processor, and few are imported.
    found = ("--find-links", dist, "--only-binary", ":all:", "--no-compile")
    _run((*pip, "install", *found, *trial.requirements), folder)
    _run((*pip, "check"), folder)
    listed = _run((*pip, "list", "--format", "freeze"), folder).lower()
    for name in trial.lacks:
        if any(line.startswith(f"{name}==") for line in listed.splitlines()):
            raise TrialError(f"{trial.name}: `{name}` was installed, which nothing there needs")
    for step in trial.steps:
        try_step(trial, step, place, folder)


def try_step(trial: Trial, step: Step, place: Path, folder: Path) -> None:
    """Run a step of the environment at `place`; TrialError if it ends or speaks otherwise."""
    first, *rest = step.words
    if first.endswith(".py"):
        words = (str(place / "bin" / "python"), str(SCRIPTS / first), *rest)
    else:
        words = (str(place / "bin" / first), *rest)
    done = _run_any(words, folder, _STEP_S)
    output = f"{done.stdout}{done.stderr}"
    missing = [text for text in step.said if text not in output]
    if done.returncode != step.code or missing:
        raise TrialError(
            f"{trial.name}: `{' '.join(step.words)}` ended with {done.returncode}, not {step.code},"
            f" or did not say {missing}:\n{output}"
        )


def _run(words: Iterable[str | Path], folder: Path) -> str:
    done = _run_any(words, folder, _INSTALL_S)
    if done.returncode:
        raise TrialError(f"`{' '.join(map(str, words))}`:\n{done.stdout}{done.stderr}")
    return done.stdout


def _run_any(
    words: Iterable[str | Path], folder: Path, seconds: int
) -> subprocess.CompletedProcess[str]:
    kept = ("HOME", "LANG", "PATH", "PIP_", "SSL_", "UV_")
    environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environment["GPTRS_CACHE_DIR"] = str(folder / "cache")
    environment["PATH"] = os.pathsep.join((str(folder / "env" / "bin"), environment["PATH"]))
    line = list(map(str, words))
    try:
        return subprocess.run(
            line,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"`{' '.join(line)}` took more than {seconds} s") from error
