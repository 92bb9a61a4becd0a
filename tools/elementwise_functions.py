"""Writes the primitives, functionals and tensor methods of the rows of elementwise ops.

python tools/elementwise_functions.py

It writes between the marks in files of the package `gptrs` that is imported; the code around them
is written by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import gptrs
from gptrs.ir import OPS
from gptrs.ir.ops import elementwise
from gptrs.ir.ops.elementwise import Row, Unary

BEGIN = "# -- written by tools/elementwise_functions.py from the rows of gptrs.ir.ops.elementwise"
END = "# -- end of what is written"
PYTHON_WORDS = {"and": "bit_and", "or": "bit_or", "xor": "bit_xor", "not": "logical_not"}
"""Primitives that cannot have the name of the op, and `xor`, which goes with them."""
DTYPES = {
    elementwise.FLOAT: ("FLOATS", "floats"),
    elementwise.INEXACT: ("INEXACT", "floats and complex numbers"),
    elementwise.REAL: ("REALS", "reals"),
    elementwise.NUMBER: ("NUMBERS", "numbers"),
    elementwise.INTEGER: ("INTEGERS", "integers"),
    elementwise.BITS: ("BITS", "integers and i1"),
    ("bool", *elementwise.REAL): ("ORDERED", "reals and i1"),
}
"""The name of the element types in `functionals.operands`, and in words, by the kinds of a row."""


def rows() -> list[type[Row]]:
    """All rows, in the order of the file."""
    return [op for op in OPS.values() if issubclass(op, Row)]


def primitive_name(op: type[Row]) -> str:
    """The name of the primitive of a row."""
    return PYTHON_WORDS.get(op.name, op.name)


def primitives() -> str:
    """A line for each row."""
    lines = [
        f"{primitive_name(op)} = {'_unary' if issubclass(op, Unary) else '_binary'}"
        f"(elementwise.{op.__name__})"
        for op in rows()
    ]
    return "\n".join(lines)


def functionals() -> str:
    """A functional for each row that has one."""
    return "\n\n\n".join(functional(op) for op in rows() if op.functional) + "\n"


def functional(op: type[Row]) -> str:
    """Check element types, broadcast two operands, capture the primitive."""
    dtypes, words = DTYPES[op.kinds]
    name, captured = op.functional, f"primitives.{primitive_name(op)}"
    if issubclass(op, Unary):
        doc = docstring(op, f"Takes {words}.")
        body = [f'require_dtype("{name}", {dtypes}, x=x)', f"return {captured}(x)"]
        head = f"def {name}(x: Tensor) -> Tensor:"
    else:
        doc = docstring(op, f"Takes {words} of one element type, over their broadcast shape.")
        body = [f'return {captured}(*broadcast_pair("{name}", lhs, rhs, {dtypes}))']
        head = f"def {name}(lhs: Operand, rhs: Operand) -> Tensor:"
    return "\n".join(["@functional", head, *doc, *(f"    {line}" for line in body)])


def docstring(op: type[Row], more: str = "") -> list[str]:
    """The lines of the definition of a row, and a paragraph."""
    lines = inspect.cleandoc(op.__doc__ or "").splitlines()
    if not more and len(lines) == 1:
        return [f'    """{lines[0]}"""']
    lines += ["", more] if more else []
    return [f'    """{lines[0]}', *(f"    {line}".rstrip() for line in lines[1:]), '    """']


def methods() -> str:
    """A method for each functional of a row; they stand in a class."""
    return "\n\n".join(method(op) for op in rows() if op.functional)


def method(op: type[Row]) -> str:
    """Call the functional; the first operand is the tensor itself."""
    if issubclass(op, Unary):
        head, given, doc = "self", "self", docstring(op)[0].strip().rstrip('"') + '"""'
    else:
        head, given = "self, other: Self | Number", "self, other"
        doc = f'"""`functionals.{op.functional}(self, other)`."""'
    lines = [f"def {op.functional}({head}) -> Self:", f"    {doc}"]
    lines.append(f'    return functional("{op.functional}")({given})')
    return "\n".join(f"    {line}" for line in lines)


FILES: dict[str, Callable[[], str]] = {
    "capture/primitives/elementwise.py": primitives,
    "capture/methods.py": methods,
    "functionals/elementwise.py": functionals,
}
"""By path in the package `gptrs`."""


def written(text: str, made: str) -> str:
    """`text` with `made` between the marks, which keep their indentation."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"expected the lines `{BEGIN}` and `{END}`")
    indent = before[before.rindex("\n") + 1 :]
    return f"{before}{begin}\n{made}\n\n{indent}{end}{after}"


def main() -> None:
    """Write all three files."""
    for name, make in FILES.items():
        path = Path(gptrs.__file__).parent / name
        path.write_text(written(path.read_text(encoding="utf-8"), make()), encoding="utf-8")


if __name__ == "__main__":
    main()
