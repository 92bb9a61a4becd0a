"""A model that was loaded before a fork generates the same texts in the children."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gptrs.backend.contract import Backend
from runtime.tiny_gpt2 import save_tiny_gpt2

SCRIPT = """
import multiprocessing, os, sys, threading
import gptrs
model = gptrs.load_model(sys.argv[1], backend=sys.argv[2])
def text(first):
    return gptrs.generate(model, [first, 2, 3], max_tokens=8, temperature=0, ignore_eos=True)
def tokens(first):
    return text(first).token_ids
right = [tokens(n) for n in range(1, 7)]
ends = threading.Event()
def serve(first):
    while not ends.is_set():
        assert tokens(first) == right[first - 1]
busy = (1, 2) if sys.argv[3] == "busy" else ()
threads = [threading.Thread(target=serve, args=(n,)) for n in busy]
for thread in threads:
    thread.start()
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(tokens, range(1, 7), 1)
ends.set()
for thread in threads:
    thread.join()
assert found == right, (found, right)
"""


@pytest.mark.long
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_children_of_a_pool_generate(tmp_path, backend: Backend, state: str) -> None:
    folder = save_tiny_gpt2(tmp_path / "model", n_positions=64)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT]
    command += [str(folder), backend.name, state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
