"""Break one operator or constant at a time, and tell which breaks the tests do not notice.

    python tools/mutations.py FILE ... --since REV --count 20 -- tests/functionals -k attention

Each mutation is written over its file, the tests run with `pytest -x -q` and what follows `--`, and
the file is restored, also after Ctrl-C. `--since REV` mutates only lines that changed since REV;
`--seed` draws other mutations. Exit 1 if one survived. A survivor may be equivalent: look at it.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}


@dataclass(frozen=True)
class Mutation:
    """Text to put in place of `source[start:end]`, in characters."""

    path: Path
    line: int
    start: int
    end: int
    text: str
    old: str

    def applied(self, source: str) -> str:
        """Return `source` with the break."""
        return source[: self.start] + self.text + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.old}` -> `{self.text}`"


def mutations(path: Path, source: str, lines: set[int] | None) -> Iterator[Mutation]:
    """Yield every break of `source`, or those on `lines` alone."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def offset(line: int, column: int) -> int:
        start = starts[line - 1]
        # Columns of `ast` count bytes of UTF-8.
        encoded = source[start : starts[line]].encode()[:column]
        return start + len(encoded.decode())

    for node in ast.walk(ast.parse(source)):
        for line, start, end, text in _breaks(node, source, offset):
            if lines is None or line in lines:
                yield Mutation(path, line, start, end, text, source[start:end])


def _breaks(
    node: Any, source: str, offset: Callable[[int, int], int]
) -> Iterator[tuple[int, int, int, str]]:
    """Yield a line, the start and the end of a part of `source`, and the text to put there."""
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        start = offset(node.lineno, node.col_offset)
        end = offset(node.end_lineno, node.end_col_offset)
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        yield node.lineno, start, end, repr(new)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        # Not up to the operand: a parenthesis that opens before it would go, and its end stay.
        start = offset(node.lineno, node.col_offset)
        yield node.lineno, start, start + len("not "), ""
    operands: list[tuple[ast.expr, ast.AST, ast.expr]] = []
    if isinstance(node, ast.Compare):
        lefts = [node.left, *node.comparators[:-1]]
        operands = list(zip(lefts, node.ops, node.comparators, strict=True))
    elif isinstance(node, ast.BinOp):
        operands = [(node.left, node.op, node.right)]
    elif isinstance(node, ast.BoolOp):
        pairs = zip(node.values, node.values[1:], strict=False)
        operands = [(left, node.op, right) for left, right in pairs]
    for left, operator, right in operands:
        old, new = _OPERATORS.get(type(operator), ("", ""))
        gap = offset(left.end_lineno, left.end_col_offset)
        until = offset(right.lineno, right.col_offset)
        found = re.search(rf"(?<![\w*/]){re.escape(old)}(?![\w*/])", source[gap:until])
        if old and found:
            line = source.count("\n", 0, gap + found.start()) + 1
            yield line, gap + found.start(), gap + found.end(), new


def changed_lines(path: Path, since: str) -> set[int]:
    """Return the numbers of the lines of `path` that changed since the commit `since`."""
    command = ["git", "diff", "-U0", since, "--", str(path)]
    diff = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines: set[int] = set()
    for start, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", diff, re.M):
        lines.update(range(int(start), int(start) + int(count or 1)))
    return lines


def survives(mutation: Mutation, tests: list[str]) -> bool:
    """Whether `tests` pass with the break."""
    source = mutation.path.read_text()
    mutation.path.write_text(mutation.applied(source))
    try:
        return _run(tests).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        mutation.path.write_text(source)


def _run(tests: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def main() -> int:
    """Try `--count` breaks of the files, drawn evenly over them."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    tests = words[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--since", metavar="REV")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words[:cut])
    draw = random.Random(options.seed)
    left = []
    for path in options.files:
        lines = changed_lines(path, options.since) if options.since else None
        found = list(mutations(path, path.read_text(), lines))
        draw.shuffle(found)
        left.append(found)
    chosen: list[Mutation] = []
    while len(chosen) < options.count and any(left):
        chosen += [found.pop() for found in left if found]
    chosen = chosen[: options.count]
    # A break may keep the tests from starting at all; without one they have to pass.
    if (whole := _run(tests)).returncode:
        sys.exit(f"the tests fail without a break: {whole.stdout[-400:]}{whole.stderr[-400:]}")
    survivors = []
    for mutation in chosen:
        lived = survives(mutation, tests)
        print("SURVIVED" if lived else "caught  ", mutation, flush=True)
        survivors += [mutation] if lived else []
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
