"""`make paths` compiles for the kind of processor that it names, and says what it leaves out."""

import os
import subprocess
import sys

import pytest

import run_paths
from arm_emulator import environment

WIDTHS = {"AMX": 16, "AVX-512": 16, "AVX2": 8, "portable": 4}
SHOWN = """
from gptrs_backend_numba.codegen.vector_ir import FEATURES, WIDTH
print(WIDTH, "amx-tile" in FEATURES, any(name.startswith("avx512") for name in FEATURES))
"""


@pytest.mark.parametrize("path", run_paths.PATHS, ids=lambda path: path.name)
def test_each_path_compiles_for_its_kind(path: run_paths.CodePath):
    host = run_paths.host_features()
    if reason := path.missing(host):
        pytest.skip(reason)
    environment = {**os.environ, **path.environment(host)}
    command = [sys.executable, "-c", SHOWN]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wide = path.name in ("AMX", "AVX-512")
    assert shown.stdout.split() == [str(WIDTHS[path.name]), str(path.name == "AMX"), str(wide)]


def test_what_the_processor_lacks_is_the_reason():
    amx, _, avx2, portable = run_paths.PATHS
    assert amx.missing(frozenset({"avx512f", "amx-tile"})) == "the processor has no amx-bf16"
    assert avx2.missing(frozenset({"avx2", "fma"})) is None
    assert portable.missing(frozenset()) is None


@pytest.mark.parametrize(("status", "failed"), [(0, 0), (1, 1), (5, 1)])  # 5: no test was found
def test_each_path_is_run_or_named(monkeypatch, capsys, status: int, failed: int):
    monkeypatch.setattr(run_paths, "host_features", lambda: frozenset({"avx2", "fma", "amx-tile"}))
    given: list[tuple[str, list[str]]] = []

    def run(environment, arguments):
        given.append((environment["NUMBA_CPU_FEATURES"], arguments))
        return status

    monkeypatch.setattr(run_paths, "run", run)
    assert run_paths.main(["-x"]) == failed
    alone = ["-x", "-n", "0"]
    assert sorted(given) == [("", alone), ("+avx2,+fma", alone)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "AMX: skipped, the processor has no amx-bf16, avx512f"
    assert lines[1] == "AVX-512: skipped, the processor has no avx512f"
    state = "FAILED" if failed else "passed"
    assert [line.rpartition(" in ")[0] for line in lines[2:]] == [
        f"AVX2: {state}",
        f"portable: {state}",
    ]


def test_the_path_of_the_machine_is_left_out_where_all_tests_ran_on_it(monkeypatch, capsys):
    monkeypatch.setattr(run_paths, "host_features", lambda: frozenset({"avx2", "fma"}))
    given: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        run_paths, "run", lambda env, args: given.append((env["NUMBA_CPU_FEATURES"], args)) or 0
    )
    assert run_paths.main(["--others", "-x"]) == 0
    assert given == [("", ["-x"])]
    assert "AVX2: left out, this machine takes it anyway\n" in capsys.readouterr().out


def test_amx_is_emulated_where_a_processor_with_avx512_lacks_it(monkeypatch, capsys):
    monkeypatch.setattr(run_paths, "host_features", lambda: frozenset({"avx512f"}))
    monkeypatch.setattr(run_paths.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(run_paths, "run_emulated", lambda host, arguments: len(arguments))
    monkeypatch.setattr(run_paths, "run", lambda environment, arguments: 0)
    assert run_paths.main(["--emulate", "-x"]) == 1
    assert "\nAMX, emulated: FAILED in " in capsys.readouterr().out
    monkeypatch.setattr(run_paths.shutil, "which", lambda name: None)
    assert run_paths.main(["-x", "--emulate"]) == 0
    assert "and there is no C compiler `cc` to emulate it\n" in capsys.readouterr().out


def test_one_path_can_be_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(run_paths, "host_features", lambda: frozenset({"avx2", "fma"}))
    monkeypatch.setattr(run_paths, "prepared", lambda folder: folder)
    given: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        run_paths, "run_arm", lambda _, path, arguments: given.append((path.target, arguments)) or 0
    )
    assert run_paths.main(["--arm", "--only", "neon_dot", "-k", "conversions"]) == 0
    assert given == [("neon_dot", ["-k", "conversions"])]
    assert capsys.readouterr().out.startswith("aarch64 neon_dot: passed in ")
    with pytest.raises(SystemExit):
        run_paths.main(["--only", "neon_doz"])
    assert "neon_i8mm" in capsys.readouterr().err


def test_what_cannot_be_fetched_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    monkeypatch.setattr(environment, "_PYTHON", sys.version_info[:2])
    with pytest.raises(environment.UnavailableError) as caught:
        environment.prepared(tmp_path)
    assert str(caught.value).startswith("`apt-get` is not installed; it takes `qemu-user-static`")
    assert "libpython3.11-stdlib" in str(caught.value)


@pytest.mark.exhaustive
def test_an_emulated_product_is_that_of_its_numbers():
    """A few tests of AMX, in a process of their own that has the emulator."""
    host = run_paths.host_features()
    if reason := run_paths.cannot_emulate(host):
        pytest.skip(reason)
    assert run_paths.run_emulated(host, ["-k", "test_amx_gemm and tails", "-x"]) == 0
    assert run_paths.run_emulated(host, ["-k", "test_threads", "-x"]) == 1, "nothing is emulated"
