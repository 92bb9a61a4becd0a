"""What a process that serves tells, clients and the terminal, when it is ended or out of files."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from runtime.serving_models import eventually
from serve.clients import http, httpx

# A command whose answers take a minute, on any machine.
SLOWLY = """
import sys, time
from gptrs_cli.__main__ import main
from gptrs_runtime.serving.lane import Lane
def slow(lane, step=Lane.step):
    time.sleep(0.25)
    return step(lane)
Lane.step = slow
sys.exit(main())
"""
LONG = {"prompt": "the cat", "max_tokens": 240, "ignore_eos": True, "n": 16, "stream": True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("signals", "drain", "told"), [(["SIGTERM"], "0", ""), (["SIGINT", "SIGINT"], "30", "inter")]
)
def test_a_process_that_ends_tells_its_answers_and_no_traceback(model, signals, drain, told):
    command = [sys.executable, "-c", SLOWLY, "serve", f"tiny={model.files.path}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--backend", "ref", "--drain-seconds", drain],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            address = process.stderr.readline().split()[-1]
            url = f"{address}/v1/completions"
            with http.stream("POST", url, json=LONG) as answer:
                lines = answer.iter_lines()
                next(lines)
                for each in signals:
                    process.send_signal(signal.Signals[each])
                    eventually(lambda: _refuses(address))  # two at once would count as one
                *_, last, done = (line for line in lines if line)
            assert "the server shut down before the answer was complete" in last
            assert done == "data: [DONE]"
            assert process.wait(120) in (-signal.SIGTERM, 130)
            said = process.stderr.read()
            assert "Traceback" not in said
            assert told in said
        finally:
            process.kill()


def _refuses(address):
    """Whether a server has begun to shut down."""
    try:
        http.get(f"{address}/health")
    except (httpx.NetworkError, httpx.RemoteProtocolError):  # refused, or dropped from the backlog
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(("hard", "warned"), [(48, True), (4096, False)])
def test_more_connections_than_open_files_are_told_of_once(model, hard, warned):
    """And the limit is raised as far as it may be."""
    command = [sys.executable, "-m", "gptrs_cli", "serve", f"tiny={model.files.path}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--backend", "ref"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, hard)),
    )
    with process:
        try:
            address = process.stderr.readline().split()[-1]
            port = int(address.rpartition(":")[2])
            with contextlib.ExitStack() as stack:
                for _ in range(60):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                said = process.stderr.readline() if warned else ""
                time.sleep(2.5)  # in which asyncio tries again, twice
            assert http.get(f"{address}/health").json() == {"status": "ok"}
            process.terminate()
            said += process.stderr.read()
        finally:
            process.kill()
    warning = "warning: connections wait: Too many open files; `ulimit -n` allows more files\n"
    assert said == warning * warned
