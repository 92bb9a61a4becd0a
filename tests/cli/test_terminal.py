"""Streams: text as it comes, colours on a terminal alone, interrupts, pipes that close."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.tiny_gpt2 import save_tiny_gpt2

GPTRS = [sys.executable, "-m", "gptrs_cli"]
ENDLESS = ("--prompt-ids", "1", "--max-tokens", "3000", "--ignore-eos", "--top-k", "100")


@pytest.fixture(scope="module")
def long_winded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context leaves time to interrupt it."""
    return save_tiny_gpt2(tmp_path_factory.mktemp("cli") / "long", n_positions=4096)


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*GPTRS, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def on_a_terminal(*arguments: object, environment: Mapping[str, str] | None = None) -> str:
    """What a terminal of 80 columns receives from stdout and stderr together."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*GPTRS, *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **(environment or {})},
    ):
        os.close(theirs)
        received = b""
        try:
            while part := os.read(ours, 4096):
                received += part
        except OSError:  # how Linux tells that the other end was closed
            pass
    os.close(ours)
    return received.decode()


def test_text_is_there_before_the_end(long_winded):
    with start("generate", "--model", long_winded, "--seed", 1, *ENDLESS) as process:
        assert process.stdout.read(1)
        assert process.poll() is None, "the first character came while it still generates"
        process.kill()


def test_an_interrupt_keeps_the_text(long_winded):
    with start("generate", "--model", long_winded, "--seed", 1, *ENDLESS) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    text = (first + rest).decode()
    assert process.returncode == 130
    assert len(text) > 1
    assert text.endswith("\n")
    assert err.decode().startswith("interrupted after ")
    assert err.count(b"\n") == 1


# A command that is interrupted after its third token.
INTERRUPTED = """
import os, signal, sys
from gptrs_cli.__main__ import main
from gptrs_runtime.generation.generated_text import GeneratedText
def take(text, token, taken=GeneratedText.take):
    if len(text.tokens) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return taken(text, token)
GeneratedText.take = take
sys.exit(main())
"""


def test_an_interrupt_prints_the_partial_json(long_winded):
    asked = ["generate", "--model", str(long_winded), *ENDLESS, "--no-cache", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = process.communicate()
    assert process.returncode == 130
    assert err == b""
    result = json.loads(out)
    assert result["finish_reason"] == "interrupted"
    assert 0 < len(result["token_ids"]) < 3000


def test_a_pipe_that_closes_ends_it_quietly(long_winded):
    with start("generate", "--model", long_winded, "--seed", 1, *ENDLESS) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert err == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(unbuffered):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*GPTRS, "list", "plugins"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert result.returncode == 1
    assert result.stderr == b"error: cannot write to standard output: No space left on device\n"


def test_a_full_disk_below_the_notes_ends_nothing():
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run([*GPTRS, "list", "nothing"], stderr=full, check=False)
    assert result.returncode == 2  # of the command, not of what it could not write


def test_a_folder_that_is_gone_is_told(tmp_path):
    line = f"rmdir {tmp_path} && {shlex.join(GPTRS)} inspect ."
    result = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr == "error: the current folder was removed; change to another one\n"


@pytest.mark.parametrize(
    ("closed", "code", "told"),
    [("<&-", 0, ""), (">&-", 1, "standard output: Bad file descriptor"), ("2>&-", 0, ""),
     ("<&- >&- 2>&-", 1, "")],
)  # fmt: skip
@pytest.mark.parametrize("words", ["list backends", "--help", "nonsense"])
def test_standard_streams_may_be_closed(closed, code, told, words):
    """No traceback, and no file of a model in their place."""
    line = f"{shlex.join(GPTRS)} {words} {closed}"
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert result.returncode == (2 if words == "nonsense" else code)
    assert "Traceback" not in result.stderr
    assert (told if words != "nonsense" else "") in result.stderr


def test_characters_that_the_encoding_lacks_become_question_marks(gptrs_process, model_directory):
    asked = ("generate", "--model", model_directory, "--prompt", "你好", "--echo")
    result = gptrs_process(
        *asked, "--max-tokens", 1, environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    assert result.code == 0
    assert result.out.startswith("??")


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["list", "plugins"], ["doctor"], ["inspect", "/nowhere"]])
def test_a_pipe_gets_no_escape_codes(gptrs_process, arguments):
    result = gptrs_process(*arguments)
    assert "\x1b" not in result.out + result.err


def test_a_terminal_gets_colours_unless_told_otherwise():
    assert "\x1b[32mavailable" in on_a_terminal("list", "plugins")
    assert "\x1b[31m" in on_a_terminal("inspect", "/nowhere")
    assert "\x1b" not in on_a_terminal("list", "plugins", environment={"NO_COLOR": "1"})
    assert "\x1b" not in on_a_terminal("list", "plugins", environment={"TERM": "dumb"})


def test_a_terminal_gets_lines_that_fit():
    received = on_a_terminal("list", "models", environment={"NO_COLOR": "1"})
    assert max(map(len, received.splitlines())) <= 80
    # The summaries are there, broken into lines.
    assert "trained on Python" in " ".join(received.split())


def test_names_in_a_table_stay_whole_however_narrow_the_terminal():
    narrow = {"NO_COLOR": "1", "COLUMNS": "48"}
    received = on_a_terminal("models", "recommended", "embedding", environment=narrow)
    lines = [line.rstrip() for line in received.splitlines()]
    assert {"sentence-transformers/all-MiniLM-L6-v2", "all-minilm"} <= set(" ".join(lines).split())
    # Columns keep their places in the lines below the row.
    (header,) = (line for line in lines if "LICENSE" in line)
    (row,) = (line for line in lines if "apache-2.0" in line)
    assert header.index("LICENSE") == row.index("apache-2.0")


def test_a_terminal_shows_the_default_prompt_before_its_text():
    received = on_a_terminal("generate", "--max-tokens", "2", "--greedy")
    assert "\x1b[2mdef " in received
    assert "2 new tokens" in received


def test_a_terminal_shows_what_is_waited_for(long_winded):
    prompt = ",".join(["7"] * 4000)
    asked = ("generate", "--model", long_winded, "--prompt-ids", prompt, "--max-tokens", "1")
    received = on_a_terminal(*asked)
    assert "reading the prompt" in received
    shown, _, text = received.rpartition("\x1b[2K")
    assert "reading the prompt" in shown
    assert "reading the prompt" not in text, "the line is erased before the text"


def test_control_characters_of_a_model_cannot_steer_the_terminal(model_directory):
    asked = ("generate", "--model", model_directory, "--prompt", "\x1b[2Jx\x07", "--echo")
    assert r"\x1b[2Jx\x07" in on_a_terminal(*asked, "--max-tokens", "1")
