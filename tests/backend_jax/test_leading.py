"""One process leads, others follow: in one process over a pair of sockets, and as two servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import gptrs
from backend_jax.mesh_models import UNOPTIMIZED
from gptrs.api import BackendError, UsageError
from gptrs.api.backends import InputRole, ProcessGroup
from gptrs.backend.contract import Backend
from gptrs.ir.parser import parse_program
from gptrs_backend_jax import devices
from gptrs_conformance.kit import checks_of, run_check
from runtime.serving_models import eventually

NAMES = (
    "inputs are left as they are",
    "results outlast later runs",
    "threads share an executable",
    "host arrays of any layout",
    "donated inputs are read before they are reused",
    "copies on the device are equal",
    "split tensors are whole",
    "indices out of range are errors",
    "a loop with branches and calls",
    "submitted runs fail when checked",
    "submitted runs take bound weights",
)
"""What could be told wrongly: all others are the same programs as without anybody who follows."""
CHECKS = {check.name: check for check in checks_of("core") if check.name in NAMES}
PROGRAM = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}"


@pytest.fixture
def led(jax_backend: Backend) -> Iterator[tuple[Any, list[int]]]:
    """A backend that leads another one in a thread; what that holds, known when it has ended."""
    from gptrs_backend_jax.backend import JaxBackend
    from gptrs_backend_jax.leading import follower
    from gptrs_backend_jax.leading.channel import Follower, Leader
    from gptrs_backend_jax.leading.leader import LeadingBackend

    backend = gptrs.get_backend("jax", device="cpu", mesh="tensor=1")
    assert isinstance(backend, JaxBackend)
    here, there = socket.socketpair()
    following = follower.FollowingBackend(backend, Leader(there))
    assert following.follows
    done: list[int] = []

    def follow() -> None:
        with suppress(BackendError):
            following.follow()
            done.append(1)

    thread = threading.Thread(target=follow)
    thread.start()
    leading = LeadingBackend(backend, [Follower(0, here)])
    yield leading, done
    vars(leading)["_followers"].end()
    thread.join()


@pytest.mark.parametrize("name", NAMES)
def test_who_leads_keeps_the_contract(name: str, led: tuple[Any, list[int]]) -> None:
    leading, done = led
    outcome = run_check(leading, CHECKS[name])
    assert outcome.status == "pass", outcome.reason
    vars(leading)["_followers"].end()
    for _ in range(500):
        if done:
            return
        time.sleep(0.01)
    raise AssertionError("whoever follows did not get to the end")


def test_who_follows_runs_nothing_of_its_own(led: tuple[Any, list[int]]) -> None:
    from gptrs_backend_jax.leading.channel import Leader
    from gptrs_backend_jax.leading.follower import FollowingBackend as Following

    leading, _ = led
    here, there = socket.socketpair()
    following = Following(vars(leading)["_backend"], Leader(there))
    for act in (
        lambda: following.compile(parse_program(PROGRAM), [InputRole.ARGUMENT]),
        lambda: following.to_device(np.zeros(2, np.float32)),
        lambda: following.to_host(np.zeros(2, np.float32)),
    ):
        with pytest.raises(UsageError, match="follows the first one"):
            act()
    here.close()
    with pytest.raises(BackendError, match="the first process of the model is gone"):
        following.follow()


def test_buffers_of_others_and_lost_processes(led: tuple[Any, list[int]]) -> None:
    backend, _ = led
    leading: Any = backend
    executable = leading.compile(parse_program(PROGRAM), [InputRole.ARGUMENT])
    with pytest.raises(UsageError, match="a buffer of this backend is required"):
        executable.run([np.zeros(2, np.float32)])
    with pytest.raises(UsageError, match="takes 1 inputs, got 0"):
        executable.run([])
    assert leading.lost() is None
    vars(leading)["_followers"].ways[0].close()
    with pytest.raises(BackendError, match="process 0 of the model is gone"):
        leading.to_device(np.zeros(2, np.float32))
    eventually(lambda: leading.lost() == "process 0 of the model is gone")


def test_strangers_are_not_taken_for_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    from gptrs_backend_jax.leading import channel

    monkeypatch.setattr(channel, "_GREET_S", 0.05)
    met, token = vars(channel)["_met"], "ab" * 32
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        stranger = socket.create_connection(address)
        stranger.sendall(b"x" * 72)
        silent = socket.create_connection(address)
        friend = socket.create_connection(address)
        friend.sendall(f"{token}00000003".encode())
        (found,) = met(listener, token, 1)
    assert found.number == 3
    assert stranger.recv(1) == silent.recv(1) == b""
    for each in (stranger, silent, friend):
        each.close()
    found.close()


def test_which_processes_are_stated() -> None:
    stated = ProcessGroup.stated
    assert stated(None, None, None) is None
    assert stated("host:1", 2, 1, led=True) == ProcessGroup("host:1", 2, 1, led=True)
    slurm = {"SLURM_STEP_NODELIST": "a,b", "SLURM_PROCID": "3"}
    assert stated("auto", None, None, led=True, environment=slurm) == ProcessGroup(
        "auto", None, 3, led=True
    )
    with pytest.raises(UsageError, match="takes no `--processes`"):
        stated("auto", 2, None)
    with pytest.raises(UsageError, match="need `--coordinator`"):
        stated(None, 2, 1)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"model": "a", "prompt": "[1]"}, None),
        ({"model": "b", "prompt": "[1]"}, r"another model than process 0: b, not a; "),
        ({"model": "a", "prompt": "x" * 5000}, r"another prompt than process 0: \[1\]; "),
        ({"input": "1"}, "another model than process 0: a; "),
    ],
)
def test_processes_compare_what_they_are_to_do(
    told: dict[str, str], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def heard(own: str) -> list[str]:
        sent.append(own)
        return [sent[0], own]

    monkeypatch.setattr(devices, "texts_of_processes", heard)
    devices.require_alike({"model": "a", "prompt": "[1]"})
    if problem is None:
        devices.require_alike(told)
    else:
        with pytest.raises(UsageError) as caught:
            devices.require_alike(told)
        assert re.search(problem, f"{caught.value}; ")
    assert all(len(text) < 4096 for text in sent)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("other", "problem"),
    [(["class"], "another prompt"), (["--model", "/nowhere", "def"], "model `/nowhere`")],
)
def test_unlike_processes_end_before_they_compute(other: list[str], problem: str) -> None:
    """Unlike programs would abort in C++, or wait for each other for minutes."""
    port = _free_port()
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "gptrs_cli", "generate", "--backend", "jax", "--device", "cpu"]
    command += ["--mesh", "tensor=4", "--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    both = [
        subprocess.Popen(
            [*command, "--process-id", str(number), "--greedy", *prompt],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, prompt in enumerate((["def"], other))
    ]
    try:
        for process in both:
            _, error = process.communicate(timeout=60)
            assert process.returncode in (2, 3)
            assert "process 1 has another" in error
            assert problem.split()[-1].strip("`") in error
    finally:
        _end(both)


@pytest.mark.exhaustive
def test_a_server_of_two_processes() -> None:
    prompt = "def read_file(path):"
    model = gptrs.load_model("demo", backend="ref")
    expected = gptrs.generate(model, prompt, max_tokens=4, temperature=0).text
    port = _free_port()
    first, second = both = [_server(port, number) for number in (0, 1)]
    try:
        url = _url(first)
        body = {"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        answer = _asked(url, body)
        assert answer["choices"][0]["text"] == expected
        drawn = _asked(url, {**body, "temperature": 1.5, "seed": 3})
        assert drawn["usage"]["completion_tokens"] == 4, "only the first process draws"
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 128 + signal.SIGTERM
        assert second.wait(60) == 0
    finally:
        _end(both)


@pytest.mark.exhaustive
def test_a_server_ends_with_a_process_that_is_lost() -> None:
    port = _free_port()
    first, second = both = [_server(port, number) for number in (0, 1)]
    try:
        _url(first)
        second.kill()
        assert first.wait(90) == 4
        assert first.stderr is not None
        assert "process 1 of the model is gone" in first.stderr.read()
    finally:
        _end(both)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _server(port: int, number: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "gptrs_cli", "serve", "demo", "--port", "0"]
    command += ["--backend", "jax", "--device", "cpu", "--mesh", "data=2,tensor=2"]
    command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    command += ["--process-id", str(number)]
    for name, value in UNOPTIMIZED.items():
        command += ["--backend-option", f"{name}={value}"]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _url(server: subprocess.Popen[str]) -> str:
    assert server.stderr is not None
    for line in server.stderr:
        found = re.search(r"http://[\d.:]+", line)
        if found:
            return found[0]
    raise AssertionError("the server has not begun")


def _asked(url: str, body: dict[str, Any]) -> Any:
    data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", data, kind)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)
