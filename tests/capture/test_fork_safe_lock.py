"""A cache goes on in a child process, whatever threads of the parent were doing at the fork."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from capture.made_keys import made_key
from gptrs.capture.caching.program_cache import ProgramCache

cache = ProgramCache()
kept, pending = made_key(literal=1), made_key(literal=2)
cache.find_or_make(kept, lambda reason: "kept")
started, go_on, stop = threading.Event(), threading.Event(), threading.Event()

def compile_slowly(reason):
    started.set()
    go_on.wait()
    return "by the parent"

def keep_busy():
    number = 0
    while not stop.is_set():
        number += 1
        cache.find_or_make(made_key(shape=number % 3000), lambda reason: number)

threads = [threading.Thread(target=keep_busy) for _ in range(3)]
threads.append(threading.Thread(
    target=lambda: cache.find_or_make(pending, compile_slowly)))
for thread in threads:
    thread.start()
started.wait()
statuses = []
for _ in range(6):
    child = os.fork()
    if not child:
        statistics = cache.statistics
        in_order = (
            cache.find_or_make(pending, lambda reason: "by the child").value == "by the child"
            and cache.find_or_make(pending, lambda reason: "again").value == "by the child"
            and statistics.bytes == 1024 * statistics.entries
        )
        os._exit(0 if in_order else 1)
    statuses.append(os.waitpid(child, 0)[1])
go_on.set()
stop.set()
for thread in threads:
    thread.join()
assert statuses == [0] * 6, statuses
assert cache.find_or_make(pending, lambda reason: "again").value == "by the parent"
"""


def test_forks_amid_compilations(request):
    folder = request.config.rootpath / "tests"
    # A fork with threads warns since Python 3.12: that it works is what is tested.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PROGRAM, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
