"""Record a command in a terminal, with lines that somebody types, as an SVG picture."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

_QUIET_S = 3.0
"""Seconds without output after which the next line is typed."""
_MOST_S = 300.0
_PIECES = re.compile(
    r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|\x1b\][^\x07]*\x07|[\x01\x02]|(\r?\n)|(\r)"
)
"""Sequences, ends of lines, returns; all between them is text."""


def main() -> int:
    """Record as the arguments say; the exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the SVG file")
    parser.add_argument("command", nargs="+", help="after `--`")
    parser.add_argument("--type", action="append", default=[], metavar="LINE", help="repeatable")
    parser.add_argument("--home", default="", metavar="FOLDER", help="is shown as `~`")
    parser.add_argument("--columns", type=int, default=106)
    parser.add_argument("--most-lines", type=int, default=60, help="later ones become `...`")
    options = parser.parse_args()
    shown = " ".join([Path(options.command[0]).name, *options.command[1:]])
    output, code = recorded(options.command, options.type, options.columns)
    output = output.replace(options.home, "~") if options.home else output
    lines = [f"$ {shown}", *screen_lines(output)]
    if len(lines) > options.most_lines:
        lines = [*lines[: options.most_lines], "..."]
    options.out.write_text(picture(lines, shown, options.columns), encoding="utf-8")
    return code


def recorded(command: Sequence[str], typed: Sequence[str], columns: int) -> tuple[str, int]:
    """Return what a command writes to a terminal in which `typed` is typed, and its exit code."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    output, waiting, ends = bytearray(), list(typed), time.monotonic() + _MOST_S
    while time.monotonic() < ends:
        ready, _, _ = select.select([terminal], [], [], _QUIET_S)
        if not ready and waiting and output:
            os.write(terminal, f"{waiting.pop(0)}\n".encode())
        elif ready:
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:  # the command has ended
                break
            if not part:
                break
            output += part
    _, status = os.waitpid(process, 0)
    return output.decode(errors="replace"), os.waitstatus_to_exitcode(status)


def screen_lines(output: str) -> Sequence[str]:
    """Return the lines that are seen at the end, with their colours: some were erased meanwhile."""
    lines, at, place = [""], 0, 0
    for found in _PIECES.finditer(f"{output}\r\n"):
        lines[at] += output[place : found.start()]
        place = found.end()
        number, command, end, back = found.groups()
        if command == "m":
            lines[at] += found[0]
        elif command == "A":
            at = max(0, at - int(number or 1))
        elif back or command == "K":
            lines[at] = ""
        elif end:
            at += 1
            lines += [""] * (at + 1 - len(lines))
    return "\n".join(lines).rstrip().split("\n")


def picture(lines: Sequence[str], title: str, columns: int) -> str:
    """Return an SVG of lines with colours."""
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=False)
    return console.export_svg(title=title, unique_id=re.sub(r"\W+", "-", title)[:20])


if __name__ == "__main__":
    sys.exit(main())
