"""Processes share compiled kernels: at once, one after another, and when somebody tampers."""

import os
import pickle
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gptrs_backend_numba.codegen.kernel_store import KERNELS, open_store


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.kernel import GeneratedKernel
def source(body):
    return f"def kernel(a, b):\\n    return {body}\\n", {}
kernel = compiled(GeneratedKernel.of(source, ("a * b + 1",)))
print(kernel(6, 7))
"""


COLLISION = """
import sys
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.kernel import GeneratedKernel
def source(body):
    return f"def kernel(a, b, c, geometry, task):\\n    return {body}\\n", {}
def found():
    return [compiled(GeneratedKernel.of(source, (body,))) for body in sys.argv[1:]]
addresses = [kernel.address for kernel in found()]
assert [kernel.address for kernel in found()] == addresses, addresses
print(*(kernel(6, 7, 8, 9, 10) for kernel in found()))
"""


@pytest.mark.long
def test_kernels_stored_by_different_processes_keep_apart(root: Path) -> None:
    runs = [["a * b"], ["a - b"], ["a * b", "a - b"]]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", COLLISION, *bodies],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.split()
        for bodies in runs
    ]
    assert outputs == [["42"], ["-1"], ["42", "-1"]]


def test_a_second_process_finds_what_the_first_compiled(root: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert "compiling kernels for this machine" in outputs[0][0]
    assert outputs[0][1:] == outputs[1] == ["43"]
    (entry,) = (path for path in (root / "numba").iterdir() if path.name != ".lock")
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


SCRIPT = """
import sys
from gptrs_backend_numba.codegen.compiled import LISTENERS, compiled
from gptrs_backend_numba.codegen.kernel import GeneratedKernel
def source(i):
    return f"def kernel(a, b):\\n    return a * b + {i}\\n", {}
print("ready", flush=True)
sys.stdin.read()
numbers = []
with LISTENERS.told(lambda number, total: numbers.append(number)):
    found = [compiled(GeneratedKernel.of(source, (i,)))(6, 7) for i in range(4)]
print(len(numbers), *found)
"""


def start(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """How many kernels it compiled, what they gave, and what it said."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    compiled, *found = out.splitlines()[-1].split()
    return int(compiled), found, err


def test_two_cold_processes_share_the_work(root: Path) -> None:
    processes = [start(root), start(root)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    compiled, found, said = zip(*map(finish, processes), strict=True)
    assert sum(compiled) == 4, "each kernel by one of them"
    assert found == (["42", "43", "44", "45"],) * 2
    assert said == ("", "")


def test_a_process_that_is_killed_while_it_compiles_stops_nobody(root: Path) -> None:
    blocked = """
import os, signal
from gptrs_backend_numba.codegen.kernel_store import open_store
with open_store("made by a test").alone("key"):
    print("locked", flush=True)
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", blocked], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        store = open_store("made by a test")
        with store.alone("another key"):
            pass
        process.send_signal(signal.SIGKILL)
        with store.alone("key"):
            pass
    assert store.load("key") is None


def test_who_holds_a_kernel_for_too_long_is_not_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = """
import sys
from gptrs_backend_numba.codegen.kernel_store import open_store
with open_store("made by a test").alone("key"):
    print("locked", flush=True)
    sys.stdin.read()
"""
    monkeypatch.setattr("gptrs_backend_numba.codegen.kernel_store._WAIT_S", 0.05)
    with subprocess.Popen(
        [sys.executable, "-c", blocked], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        entered = False
        with open_store("made by a test").alone("key"):
            entered = process.poll() is None
    assert entered


class Payload:
    """What an attacker would have a process unpickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("payload was executed",)


@pytest.mark.long
def test_a_process_survives_a_cache_that_was_tampered_with(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert finish(start(root))[0] == 4
    (version,) = open_store("another").report().parts
    entries = [path for path in (root / "numba").iterdir() if path.name != ".lock"]
    damages = [
        lambda whole: whole[:47] + pickle.dumps(Payload()),
        lambda whole: whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: KERNELS.encode(entries[-1].name, version.name, b"whole, made by nobody"),
    ]
    for path, damaged in zip(entries, damages, strict=True):
        path.write_bytes(damaged(path.read_bytes()))
    compiled, found, said = finish(start(root))
    assert (compiled, found) == (4, ["42", "43", "44", "45"])
    assert said.count("\n") == 1
    assert "is compiled again" in said
    assert not (tmp_path / "payload was executed").exists()
    assert finish(start(root))[0] == 0, "the entries are whole again"


@pytest.mark.exhaustive
def test_a_process_survives_kernels_that_changed_places(root: Path) -> None:
    assert finish(start(root))[0] == 4
    entries = sorted(path for path in (root / "numba").iterdir() if path.name != ".lock")
    contents = [path.read_bytes() for path in entries]
    for path, content in zip(entries, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    compiled, found, said = finish(start(root))
    assert (compiled, found) == (4, ["42", "43", "44", "45"])
    assert "is damaged, or belongs to another kernel" in said


@pytest.mark.exhaustive
def test_a_kernel_sealed_under_the_name_of_another_one_is_not_linked(root: Path) -> None:
    """The seal is no signature: the name of the function is compared, too."""
    assert finish(start(root))[0] == 4
    entries = sorted(path for path in (root / "numba").iterdir() if path.name != ".lock")
    read = [KERNELS.decode(path.name, path.read_bytes()) for path in entries]
    for path, entry in zip(entries, read[1:] + read[:1], strict=True):
        path.write_bytes(KERNELS.encode(path.name, *entry))
    compiled, found, said = finish(start(root))
    assert (compiled, found) == (4, ["42", "43", "44", "45"])
    assert "it is the code of another function" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_one_warning(root: Path) -> None:
    (root / "numba").mkdir(parents=True, mode=0o700)
    (root / "numba").chmod(0o500)
    compiled, found, said = finish(start(root))
    assert (compiled, found) == (4, ["42", "43", "44", "45"])
    assert said.count("\n") == 1
    assert "kernels cannot be cached in" in said
