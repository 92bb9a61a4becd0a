"""Compiled programs on disk: `gptrs cache` shows, bounds and removes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import gptrs
from gptrs.api import UsageError
from gptrs.api.backends import Backend, BackendSettings, InputRole
from gptrs.api.programs import parse_program
from gptrs_backend_jax import kept_programs
from gptrs_backend_jax.backend import JaxBackend
from gptrs_backend_jax.creation import create
from gptrs_backend_jax.executable import JaxExecutable
from gptrs_observe.measure.kernel_caches import kernel_caches, warm

_PROGRAM = "ptir.v0.5\nfunc @main(%x: f32[3]) -> f32[3] {\n  %0 = tanh %x : f32[3]\n  return %0\n}"
_ROLES = [InputRole.ARGUMENT]
_SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of programs in a cache of its own, which is empty."""
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GPTRS_JAX_PLATFORM", "cpu")
    before = {name: jax.config.values[name] for name in _SETTINGS}
    monkeypatch.setattr(kept_programs, "_LEAST_SECONDS", 0.0)  # even what takes no time is kept
    _set({_SETTINGS[0]: None})
    yield tmp_path / "jax"
    _set(before)


def _set(values: dict[str, object]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def _made() -> JaxBackend:
    backend = create(BackendSettings())
    assert isinstance(backend, JaxBackend)
    jax.config.update(_SETTINGS[1], 0.0)
    return backend


def _compile(backend: Backend) -> None:
    executable = backend.compile(parse_program(_PROGRAM), _ROLES)
    (result,) = executable.run([backend.to_device(np.zeros(3, np.float32))])
    assert backend.to_host(result).tolist() == [0, 0, 0]


def _old(folder: Path, name: str, size: int, age_s: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-cache"
    path.write_bytes(bytes(size))
    os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    return path


def test_programs_are_reported_and_removed(kept: Path) -> None:
    backend = _made()
    assert backend.keeps_code
    assert not backend.tells_kernels, "it cannot tell of a program before it compiles"
    other = _old(kept / "0.0.1", "of_another_version", 7, 0)
    _compile(backend)
    report = backend.cache_report()
    assert report.folder == kept
    assert {part.name: part.current for part in report.parts} == {
        "JAX 0.0.1": False,
        f"JAX {jax.__version__}": True,
    }
    assert (report.stale.count, report.stale.nbytes) == (1, 7)
    assert report.entries.count == 2
    assert backend.clear_cache(stale_only=True).count == 1
    assert not other.exists()
    assert backend.clear_cache().count == 1
    assert backend.cache_report().entries.count == 0
    _compile(backend)  # what is gone is compiled anew


def test_a_later_process_reads_what_was_compiled(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compile(_made())

    def compiled(*_: object) -> None:
        raise AssertionError("it is compiled anew")

    with monkeypatch.context() as patch:
        patch.setattr(JaxBackend, "_compiled", compiled)
        _compile(_made())
        with pytest.raises(AssertionError, match="compiled anew"):
            _compile(create(BackendSettings(options=(("xla_cpu_enable_fast_math", "true"),))))
    (file,) = (kept / jax.__version__).glob("*-cache")
    file.write_bytes(file.read_bytes()[:-3])
    _compile(_made())  # what is damaged is compiled, and written anew
    backend = _made()
    program = parse_program(_PROGRAM)
    read = backend.deserialize(file.read_bytes(), program, _ROLES)
    assert isinstance(read, JaxExecutable)
    # JAX cannot write again what it has read: it would lack the functions of its kernels.
    assert backend.serialize(read) == file.read_bytes()
    file.unlink()
    assert backend.serialize(read) is None


def test_all_caches_have_it(kept: Path) -> None:
    assert kernel_caches("jax")["jax"].keeps_code


def test_warming_counts_programs(kept: Path) -> None:
    steps: list[str] = []
    model = gptrs.load_model("demo", backend="jax")
    made = warm(model, [1], lambda done, total, what: steps.append(what))
    assert made.noun == "program"
    assert made.kernels >= 2, "a step and a whole pass"
    assert any("compiling `" in what for what in steps)


def test_the_oldest_go_first(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [_old(kept / "1", name, 100, age) for name, age in (("a", 30), ("b", 90), ("c", 60))]
    monkeypatch.setenv("GPTRS_CACHE_BYTES", "250")
    _made()
    assert [path.exists() for path in files] == [True, False, True]


def test_a_budget_of_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_CACHE_BYTES", "0")
    backend = _made()
    assert jax.config.values[_SETTINGS[0]] is None
    assert backend.cache_report().folder is None
    monkeypatch.setenv("GPTRS_CACHE_BYTES", "much")
    with pytest.raises(UsageError, match="GPTRS_CACHE_BYTES"):
        _made()


def test_a_folder_of_the_users_is_left_alone(kept: Path, tmp_path: Path) -> None:
    _old(kept / jax.__version__, "earlier", 5, 0)
    theirs = tmp_path / "theirs"
    _set({_SETTINGS[0]: str(theirs)})
    backend = _made()
    _compile(backend)
    assert list(theirs.glob("*-cache"))
    assert backend.cache_report().stale.count == 1, "this process does not read ours"
    assert backend.clear_cache().count == 1
    assert list(theirs.glob("*-cache")), "others may have written there"
