"""Find and run the examples of a Markdown file: its `python`, `console` and `ptir` blocks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from gptrs.errors import GptrsError
from gptrs.ir import parse_program, print_program

RUN_BLOCKS = ("python", "console", "ptir")
OPT_OUT = "no-run"
TIMEOUT_S = 120
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")


class ExampleError(Exception):
    """An example does not run as it is printed."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the line of the file on which they start."""

    language: str
    lines: tuple[str, ...]
    start: int


def find_blocks(text: str) -> list[Block]:
    """Return the blocks of `text` that are examples to run, in order.

    A block with `no-run` after its language is shown to readers and not run. An unclosed block is
    an `ExampleError`.
    """
    blocks: list[Block] = []
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            continue
        body: list[str] = []
        for _, inner in lines:
            if inner.strip() == opening["fence"]:
                break
            body.append(inner.removeprefix(opening["indent"]))
        else:
            raise ExampleError(f"line {number}: the block is not closed by `{opening['fence']}`")
        language, *flags = opening["info"].split() or [""]
        if language in RUN_BLOCKS and OPT_OUT not in flags:
            blocks.append(Block(language, tuple(body), number + 1))
    return blocks


def run_file(path: Path, cwd: Path) -> int:
    """Run the examples of the Markdown file `path` in `cwd` and return how many there were.

    The `python` blocks of a file share one namespace, as if typed one after another. Each command
    of a `console` block must exit with 0 and print what the block shows below it, if it shows
    anything; a `...` there stands for any text. A `ptir` block is a program as gptrs prints it.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = find_blocks(path.read_text(encoding="utf-8"))
    before = Path.cwd()
    os.chdir(cwd)
    try:
        for block in blocks:
            if block.language == "python":
                # Blank lines in front make a traceback name the line of the Markdown file.
                source = "\n" * (block.start - 1) + "\n".join(block.lines)
                exec(compile(source, str(path), "exec"), namespace)
            elif block.language == "console":
                run_console(block)
            else:
                read_program(block)
    finally:
        os.chdir(before)
    return len(blocks)


def run_console(block: Block) -> None:
    """Run each `$ ` line of a `console` block; raise `ExampleError` where it differs."""
    for number, command, expected in console_commands(block):
        words = shlex.split(command)
        if not words or words[0] != "gptrs":
            raise ExampleError(f"line {number}: a `console` block runs `gptrs`, not `{command}`")
        script = Path(sysconfig.get_path("scripts"), words[0])
        done = subprocess.run(
            [str(script), *words[1:]],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
        if done.returncode != 0:
            outcome = f"exits {done.returncode}:\n{done.stderr}"
            raise ExampleError(f"line {number}: `{command}` {outcome}")
        if expected and not shown_by(expected, done.stdout):
            raise ExampleError(
                f"line {number}: `{command}` prints\n{done.stdout}\nbut the block shows\n{expected}"
            )


def read_program(block: Block) -> None:
    """Parse a `ptir` block; raise `ExampleError` where it is none, or not the canonical text."""
    text = "".join(f"{line}\n" for line in block.lines)
    try:
        printed = print_program(parse_program(text))
    except GptrsError as error:
        raise ExampleError(f"line {block.start}: the program is refused:\n{error}") from error
    if printed != text:
        raise ExampleError(f"line {block.start}: the program is printed as\n{printed}")


def console_commands(block: Block) -> list[tuple[int, str, str]]:
    """Return line number, command and shown output of each command of a `console` block."""
    starts = [i for i, line in enumerate(block.lines) if line.startswith("$ ")]
    if not starts or starts[0] != 0:
        raise ExampleError(f"line {block.start}: a `console` block starts with `$ `")
    ends = [*starts[1:], len(block.lines)]
    return [
        (block.start + i, block.lines[i][2:], "\n".join(block.lines[i + 1 : end]).strip())
        for i, end in zip(starts, ends, strict=True)
    ]


def shown_by(expected: str, output: str) -> bool:
    """Return whether `expected` shows `output`, spaces at line ends apart; `...` is any text."""
    actual = "\n".join(line.rstrip() for line in output.strip().splitlines())
    parts = [re.escape(part) for part in expected.split("...")]
    return re.fullmatch(".*".join(parts), actual, re.DOTALL) is not None
