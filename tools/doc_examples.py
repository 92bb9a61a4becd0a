"""Find and run the examples of a Markdown file: its `python`, `console` and `ptir` blocks.

python tools/doc_examples.py PAGE ...

writes what the commands of pages print into them, in place of what was shown there with a `...` or
is no longer printed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gptrs.errors import GptrsError
from gptrs.ir import parse_program, print_program

RUN_BLOCKS = ("python", "console", "ptir")
OPT_OUT = "no-run"
VARIES = "varies"
TIMEOUT_S = 120
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
_MOST_LINES = 16
_MOST_COLUMNS = 160
_NUMBER = re.compile(r"-?\d+(?:\.\d+)*(?:e[+-]?\d+)?")
_SPACES = re.compile(r" {2,}|\t")
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")


class ExampleError(Exception):
    """An example does not run as it is printed."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the line of the file on which they start.

    `varies`: the numbers that its commands print, and the widths of columns, are those of one run.
    """

    language: str
    lines: tuple[str, ...]
    start: int
    varies: bool = False


def find_blocks(text: str) -> list[Block]:
    """Return the blocks of `text` that are examples to run, in order.

    A block with `no-run` after its language is shown to readers and not run; numbers of a block
    with `varies` are those of one run. An unclosed block is an `ExampleError`.
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
            blocks.append(Block(language, tuple(body), number + 1, VARIES in flags))
    return blocks


def run_file(path: Path, cwd: Path) -> int:
    """Run the examples of the Markdown file `path` in `cwd` and return how many there were.

    The `python` blocks of a file share one namespace, as if typed one after another. Each command
    of a `console` block must exit with 0 and print what the block shows below it, if it shows
    anything; a `...` there stands for any text. A `ptir` block is a program as gptrs prints it.
    """
    return _run_blocks(path, cwd, run_console)


def _run_blocks(path: Path, cwd: Path, console: Callable[[Block], None]) -> int:
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
                console(block)
            else:
                read_program(block)
    finally:
        os.chdir(before)
    return len(blocks)


def run_console(block: Block) -> None:
    """Run each `$ ` line of a `console` block; raise `ExampleError` where it differs."""
    for number, command, expected in console_commands(block):
        printed = _printed(command, number)
        if expected and not shown_by(expected, printed, varies=block.varies):
            raise ExampleError(
                f"line {number}: `{command}` prints\n{printed}\nbut the block shows\n{expected}"
            )


def _printed(command: str, number: int) -> str:
    """Return the standard output of a command of line `number`, which must exit with 0."""
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
    return done.stdout


def write_outputs(path: Path, cwd: Path) -> None:
    """Run the examples of a page in `cwd`, and write what its commands print into it.

    What is shown without `...` and still printed stays, and so does a command that shows nothing.
    """
    lines = path.read_text(encoding="utf-8").split("\n")

    def write(block: Block) -> None:
        before = lines[block.start - 2]
        indent = before[: len(before) - len(before.lstrip())]
        shown = list[str]()
        for number, command, expected in console_commands(block):
            printed = _printed(command, number)
            shown.append(f"$ {command}")
            if not expected:
                continue
            kept = "..." not in expected and shown_by(expected, printed, varies=block.varies)
            shown += (expected if kept else shortened(printed)).split("\n")
        replaced[block.start - 1] = [f"{indent}{line}".rstrip() for line in shown], block

    replaced = dict[int, tuple[list[str], Block]]()
    _run_blocks(path, cwd, write)
    for start, (shown, block) in sorted(replaced.items(), reverse=True):
        lines[start : start + len(block.lines)] = shown
    path.write_text("\n".join(lines), encoding="utf-8")


def shortened(printed: str) -> str:
    """Return the first lines of what was printed, with a `...` for what is left out."""
    lines = [line.rstrip() for line in printed.rstrip().split("\n")]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 2], "..."]
    return "\n".join(
        line if len(line) <= _MOST_COLUMNS else f"{line[: _MOST_COLUMNS - 40]}..." for line in lines
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


def shown_by(expected: str, output: str, *, varies: bool = False) -> bool:
    """Return whether `expected` shows `output`, spaces at line ends apart; `...` is any text.

    If it `varies`, any number stands for any other, and any column for a wider one.
    """
    actual = "\n".join(line.rstrip() for line in output.strip().splitlines())
    if varies:
        expected, actual = (_SPACES.sub("  ", _NUMBER.sub("0", t)) for t in (expected, actual))
    parts = [re.escape(part) for part in expected.split("...")]
    return re.fullmatch(".*".join(parts), actual, re.DOTALL) is not None


def main() -> None:
    """Write the outputs of the pages that are named."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
            write_outputs(Path(name).resolve(), Path(folder))


if __name__ == "__main__":
    main()
