"""The process that renders chat templates: one for all prompts, replaced when it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gptrs.errors import MissingLibraryError
from gptrs_runtime.chat import template
from gptrs_runtime.chat.render_worker import RenderWorker, WorkerError, json_of, worker
from gptrs_runtime.chat.template import ChatTemplate, ChatTemplateError

MESSAGES = [{"role": "user", "content": "hello"}]
ECHO = ChatTemplate("{{ messages[0].content }}", {})
SPIN = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}" * 50


def process_of(renders: RenderWorker) -> subprocess.Popen[bytes]:
    assert renders._process is not None
    return renders._process


def request(source: str, cpu_seconds: int = 5) -> dict[str, object]:
    return {
        "template": source,
        "variables": {},
        "conversations": [{"messages": MESSAGES}],
        "characters": 1000,
        "cpu_seconds": cpu_seconds,
        "memory_bytes": 1 << 29,
    }


@pytest.fixture
def own_worker():
    made = RenderWorker()
    yield made
    made.close()


def test_one_process_renders_all_prompts():
    assert ECHO.render(MESSAGES) == "hello"
    first = process_of(worker).pid
    assert ChatTemplate("{{ x }}", {"x": "é\n"}).render(MESSAGES) == "é\n"
    assert process_of(worker).pid == first


def test_its_requests_are_written_in_portions(monkeypatch):
    """One call would keep all other threads waiting for the time of a long list."""
    written = []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda value, **more: written.append(value) or dumps(value))
    rows = [{"a": [1.5, None]}, "é", True, [], {}] * 300
    value = {"conversations": [{"documents": rows, "n": {1: "a", None: "b"}}], "none": []}
    assert json.loads(json_of(value)) == json.loads(dumps(value))
    assert max(len(each) for each in written if isinstance(each, list)) == 500


def test_it_is_replaced_after_a_problem_and_after_its_death():
    assert ECHO.render(MESSAGES) == "hello"
    first = process_of(worker)
    with pytest.raises(ChatTemplateError, match="too much memory"):
        ChatTemplate("{{ 'a' * 10**10 }}", {}).render(MESSAGES)
    assert first.returncode is not None
    assert ECHO.render(MESSAGES) == "hello"
    os.kill(process_of(worker).pid, signal.SIGKILL)
    process_of(worker).wait()
    assert ECHO.render(MESSAGES) == "hello"


@pytest.mark.long
def test_a_template_that_computes_is_stopped_and_the_next_one_served(own_worker):
    for _ in range(2):
        with pytest.raises(WorkerError, match="takes too long"):
            own_worker.ask(request(SPIN, cpu_seconds=1), 120)
    assert own_worker.ask(request("x"), 120) == {"texts": ["x"]}


def test_a_request_that_sleeps_is_stopped_by_the_clock(own_worker):
    assert own_worker.ask(request("x"), 120) == {"texts": ["x"]}
    os.kill(process_of(own_worker).pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(WorkerError, match="takes too long"):
        own_worker.ask(request("x"), 0.2)
    assert time.monotonic() - started < 30
    assert own_worker.ask(request("x"), 120) == {"texts": ["x"]}


def test_threads_take_turns():
    found: dict[int, str] = {}

    def render(number: int) -> None:
        text = str(number) * 100_000  # longer than a pipe holds
        found[number] = ECHO.render([{"role": "user", "content": text}])

    threads = [threading.Thread(target=render, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: str(number) * 100_000 for number in range(4)}


def test_a_forked_process_has_a_worker_of_its_own():
    assert ECHO.render(MESSAGES) == "hello"
    first = process_of(worker).pid
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = ECHO.render(MESSAGES) == "hello" and process_of(worker).pid != first
            worker.close()
            status = 0 if own else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ECHO.render(MESSAGES) == "hello"
    assert process_of(worker).pid == first


@pytest.mark.parametrize("end", ["", "import os; os._exit(0)"])
def test_it_ends_with_the_program(end):
    script = f"""
from gptrs_runtime.chat.render_worker import worker
from gptrs_runtime.chat.template import ChatTemplate
ChatTemplate("x", {{}}).render([{{"role": "user", "content": "y"}}])
print(worker._process.pid, flush=True)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    stat = Path("/proc", done.stdout.strip(), "stat")
    deadline = time.monotonic() + 30
    # "Z": it has ended, and whoever adopted it has not waited for it.
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_jinja_the_error_says_what_to_install(monkeypatch):
    template._require_jinja.cache_clear()
    monkeypatch.setattr(template.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match="chat templates need Jinja"):
        ECHO.render(MESSAGES)
