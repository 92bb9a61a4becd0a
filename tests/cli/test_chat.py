"""`gptrs chat`: messages, answers, commands, Ctrl-C, Ctrl-D, and lines of a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from gptrs_cli.generate.page import WrappedPage
from runtime.tiny_chat import save_tiny_chat

CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A conversation with `gptrs` on a terminal of its own."""

    def __init__(self, model: Path, *options: object, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        arguments = [sys.executable, "-m", "gptrs_cli", "chat", model]
        self.process = subprocess.Popen(
            [str(argument) for argument in (*arguments, *options)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_controlled,
            env={
                **os.environ,
                "TERM": "xterm",
                "NO_COLOR": "1",
                "INPUTRC": os.devnull,
                "GPTRS_CHAT_HISTORY": "off",
                **environment,
            },
        )
        os.close(theirs)
        self.received = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """What comes up to `text`, which is taken away."""
        end = time.monotonic() + seconds
        while text.encode() not in self.received:
            if time.monotonic() > end:
                raise TimeoutError(f"no {text!r} in {self.received!r}")
            if select.select([self._ours], [], [], 0.2)[0]:
                self.received += os.read(self._ours, 4096)
        before, _, self.received = self.received.partition(text.encode())
        return before.decode(errors="replace")

    def send(self, data: bytes) -> None:
        os.write(self._ours, data)

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C, as often as it takes until `text` comes.

        CPython's `input` sees a signal that strikes between the prompt and its wait for a key only
        with the next key or signal.
        """
        for _ in range(50):
            self.send(CTRL_C)
            try:
                self.wait_for(text, seconds=0.4)
            except TimeoutError:
                continue
            return
        raise TimeoutError(f"no {text!r} in {self.received!r}")

    def end(self) -> int:
        """Wait for the end; the exit code."""
        limit = time.monotonic() + 60
        try:
            while self.process.poll() is None:
                if time.monotonic() > limit:
                    raise TimeoutError(f"no end after {self.received!r}")
                if select.select([self._ours], [], [], 0.2)[0]:
                    self.received += os.read(self._ours, 4096)
        except TimeoutError:
            raise
        except OSError:  # how Linux tells that the other end was closed
            pass
        return self.process.wait(timeout=60)


def _controlled() -> None:
    """Let the terminal send signals."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_chat(tmp_path_factory.mktemp("chat") / "tiny", n_positions=8192)


def test_a_conversation(model):
    with Terminal(model, "--greedy", "--max-tokens", 5, "--ignore-eos") as terminal:
        terminal.wait_for("Ctrl-D the conversation")
        terminal.wait_for("> ")
        for _ in range(2):
            terminal.send(b"the cat\r")
            terminal.wait_for("the cat\r\n")
            assert terminal.wait_for("\n> ").strip()
        terminal.send(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.long
def test_ctrl_c_ends_an_answer_and_not_the_conversation(model):
    with Terminal(
        model, "--max-tokens", 4000, "--ignore-eos", "--temperature", 1, "--seed", 3
    ) as terminal:
        terminal.wait_for("> ")
        terminal.send(b"abc")
        terminal.wait_for("abc")  # else Ctrl-C could take away keys that readline waits to read
        terminal.interrupt_until("> ")
        time.sleep(0.6)  # two within half a second count as one
        terminal.send(b"the cat\r")
        terminal.wait_for("the cat\r\n")
        while len(re.sub(rb"\x1b\[K|\r|\n", b"", terminal.received)) < 60:
            terminal.received += os.read(terminal._ours, 4096)
        terminal.send(CTRL_C)
        terminal.wait_for("\n> ")
        terminal.send(b"/stats\r")
        # All would have come if Ctrl-C were lost; they are more than the terminal holds unread.
        assert int(terminal.wait_for(" new tokens").split()[-1]) < 4000
        terminal.wait_for("\n> ")  # a Ctrl-D that comes before a prompt is lost
        terminal.send(CTRL_D)
        assert terminal.end() == 0


def test_commands_and_messages_of_several_lines(model, tmp_path):
    file = tmp_path / "talk.json"
    with Terminal(model, "--greedy", "--max-tokens", 3, "--ignore-eos") as terminal:

        def said(line: str, answer: str) -> str:
            terminal.wait_for("> ")
            terminal.send(line.encode() + b"\r")
            return terminal.wait_for(answer)

        said("/help", "/load FILE")
        said("/stats", "there is no answer yet")
        said("/system Be brief.", "a new conversation with this system message")
        said("the \\\rcat", "\n")
        said("/stats", "3 new tokens")
        said('"""\rone\r\rtwo\r"""', "\n")
        said(f"/save {file}", "wrote 5 messages")
        said(f"/save {file}", "exists; choose another name")
        said("/reset", "a new conversation")
        said(f"/load {file}", "read 5 messages")
        said("/load", "a file must be named")
        said(f"/load {tmp_path}", "Is a directory")
        said("/stats on", "\r\n")
        said("the", "3 new tokens")
        said("/stats of", "`/stats` is on or off")
        said("/stats off", "\r\n")
        said("/sytem x", "did you mean `system`?")
        said("/exit", "/exit")
        assert terminal.end() == 0
    messages = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in messages] == ["system", *["user", "assistant"] * 2]
    assert (messages[1]["content"], messages[3]["content"]) == ("the \ncat", "one\n\ntwo")


def test_options_answers_and_models_change_within_a_conversation(model, tmp_path):
    file = tmp_path / "talk.json"
    other = save_tiny_chat(tmp_path / "other", n_positions=512)
    with Terminal(model, "--greedy", "--max-tokens", 3, "--ignore-eos") as terminal:

        def said(line: str, answer: str) -> str:
            terminal.wait_for("> ")
            terminal.send(line.encode() + b"\r")
            return terminal.wait_for(answer)

        said("/regenerate", "no message of yours yet")
        said("/undo", "no message of yours yet")
        said("the cat", "was cut after 3 tokens: `/set max_tokens N`")
        said("/set max-tokens 5", "max_tokens 5")
        said("/set", "ignore_eos True, max_tokens 5, greedy")
        said("/regenerate", "the same text comes again")
        terminal.wait_for("was cut after 5 tokens")
        said("/set temperature 0.7", "temperature 0.7")
        said("/regenerate", "was cut after 5 tokens")
        said("/set temperature -1", "`temperature` must be a finite number >= 0, got -1.0")
        said("/set temperature warm", "`temperature` must be a number, got `warm`")
        said("/set temprature 1", "did you mean `temperature`?")
        said("/set temperature", "temperature is left to the model")
        said("/model", "tiny")
        said(f"/model {tmp_path / 'none'}", "error:")
        said(f"/model {other}", "other answers from here on")
        said("the dog", "was cut after 5 tokens")
        said("/undo", "forgot the last message and its answer; 2 messages left")
        said("the bird", "was cut")
        said(f"/save {file}", "wrote 4 messages")
        said("/exit", "/exit")
        assert terminal.end() == 0
    asked = [each["content"] for each in json.loads(file.read_text())["messages"][::2]]
    assert asked == ["the cat", "the bird"]


@pytest.mark.parametrize("width", [12, 20])
def test_a_terminal_shows_whole_words(monkeypatch, capsys, width):
    text = (
        "one two  three\n    four-and-five, six\tseven\n\n"
        + "x" * 25
        + " \u732b\u304c\u9cf4\u304f " * 3
    )
    monkeypatch.setattr("gptrs_cli.generate.page.is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    page = WrappedPage()
    for start in range(0, len(text), 3):  # pieces begin and end within words
        page.write(text[start : start + 3])
    page.end_line()
    shown = capsys.readouterr().out
    assert "".join(shown.split()) == "".join(text.split())
    for line in shown.splitlines():
        assert cell_len(line) <= width or len(line.split()) == 1
    assert "    four-and-five," in shown if width == 20 else "four-and-five," in shown


def test_what_cannot_be_answered_is_said(model):
    with Terminal(model, "--max-tokens", 8000, "--context", 8100) as terminal:
        terminal.wait_for("> ")
        terminal.send(b"the cat " * 60 + b"\r")
        terminal.wait_for("do not fit into the context")
        terminal.wait_for("> ")
        terminal.send(CTRL_D)
        assert terminal.end() == 0


def test_lines_are_remembered_from_one_conversation_to_the_next(model, tmp_path):
    file = tmp_path / "state" / "history"
    options = ("--greedy", "--max-tokens", 2, "--ignore-eos")
    for typed in (b"the cat\r", b"\x1b[A!\r"):  # the arrow up fetches the line before
        with Terminal(model, *options, GPTRS_CHAT_HISTORY=str(file)) as terminal:
            terminal.wait_for("> ")
            terminal.send(typed)
            terminal.wait_for("\n> ")
            terminal.send(CTRL_D)
            assert terminal.end() == 0
    assert file.read_text().splitlines() == ["the cat", "the cat!"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_conversation_goes_on_from_a_file(model, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text(json.dumps({"messages": [{"role": "system", "content": "Be brief."}]}))
    with Terminal(model, "--max-tokens", 2, "--load", file, "--stats") as terminal:
        terminal.wait_for("read 1 message")
        terminal.wait_for("> ")
        terminal.send(b"the cat\r")
        terminal.wait_for("new token")
        terminal.send(b"/save " + bytes(tmp_path / "more.json") + b"\r")
        terminal.wait_for("wrote 3 messages")
        terminal.wait_for("> ")  # a Ctrl-D that comes before a prompt is lost
        terminal.send(CTRL_D)
        assert terminal.end() == 0


def test_each_line_of_a_pipe_is_answered(gptrs, model):
    asked = ("chat", "--model", model, "--greedy", "--max-tokens", 3, "--ignore-eos")
    result = gptrs(*asked, "--stats", stdin=b"the cat\nthe dog\n")
    assert result.code == 0
    assert len(result.out.splitlines()) >= 2
    assert "> " not in result.out
    assert result.err.count("3 new tokens") == 2
    refused = gptrs(*asked, stdin=b"the cat " * 9000)
    assert refused.code == 2
    assert "do not fit into the context" in refused.err


def test_an_answer_that_loses_its_form_is_told(gptrs, model):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    asked = ("chat", "--model", model, "--regex", "(a?){2000}a{2000}")
    result = gptrs(*asked, stdin=b"the cat\n")
    assert (result.code, result.out.strip()) == (2, "a")
    assert "error: the form cannot be kept after 1 token" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("generate", "--chat"), 2, "there is no prompt"),
        (("chat", "--json"), 2, "use `gptrs generate --chat --json`"),
        (("chat", "demo", "--model", "demo"), 2, "`MODEL` and `--model` exclude each other"),
        (("chat", "--load", "missing.json"), 3, "`demo` has no chat template"),
        (("generate", "--chat", "--prompt", "hello"), 3, "has no chat template"),
    ],
)
def test_what_is_no_conversation_is_refused(gptrs, arguments, code, text):
    result = gptrs(*arguments)
    assert result.code == code
    assert text in result.err + result.out
