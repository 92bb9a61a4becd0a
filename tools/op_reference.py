"""Writes the op reference in `docs/ptir.md` from the classes of the ops.

python tools/op_reference.py
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

import gptrs_conformance.cases  # noqa: F401 - registers the legal element types of every op
from gptrs.ir import OPS, DType, Op, dtypes
from gptrs_conformance.numerics import ULPS
from gptrs_conformance.op_case import legal_dtypes

PATH = Path(__file__).parents[1] / "docs" / "ptir.md"
BEGIN = "<!-- op reference: written by tools/op_reference.py -->"
END = "<!-- end of the op reference -->"

FAMILIES = {
    "elementwise": "Elementwise",
    "creation": "Creation",
    "reduction": "Reduction",
    "sorting": "Sorting",
    "contraction": "Contraction",
    "layout": "Layout",
    "indexing": "Indexing",
    "window": "Windows",
    "normalization": "Normalization",
    "random": "Random numbers",
    "quantization": "Quantization",
    "control_flow": "Control flow",
    "custom_call": "Composites and custom calls",
}
"""The modules of `gptrs.ir.ops` in the order of the reference, with their headings."""

GROUPS: tuple[tuple[str, tuple[DType, ...]], ...] = (
    ("all", dtypes.ALL),
    ("integers", dtypes.INTEGERS),
    ("floats", dtypes.FLOATS),
    ("complex", (dtypes.cf32, dtypes.cf64)),
)


def reference() -> str:
    """The section of every family, in Markdown."""
    return "\n".join(family(module) for module in FAMILIES)


def family(module: str) -> str:
    """The heading of a family and its ops, in the order of the file."""
    found = [op for op in OPS.values() if op.__module__ == f"gptrs.ir.ops.{module}"]
    about = inspect.getdoc(importlib.import_module(f"gptrs.ir.ops.{module}")) or ""
    return "\n".join([f"### {FAMILIES[module]}\n", f"{about}\n", *map(entry, found)])


def entry(op: type[Op]) -> str:
    """One op: how it is written, its class, its definition, its attributes and element types."""
    where = f"`ops.{op.__module__.rpartition('.')[2]}.{op.__name__}`"
    lines = [
        f"#### `{op.name}`\n",
        f"`{signature(op)}` · {where}\n",
        inspect.cleandoc(op.__doc__ or ""),
        "",
    ]
    rows = [attribute_row(op, name) for name in op.attribute_types]
    if rows:
        lines += ["| attribute | value | default |", "|---|---|---|", *rows, ""]
    lines.append(f"Element types: {element_types(op)}.{allowance(op)}\n")
    return "\n".join(lines)


def signature(op: type[Op]) -> str:
    """The op with its operands and regions, as in the text form."""
    operands = [f"%{name}" for name in op.operand_names]
    operands += ["%more.."] if op.variadic else []
    regions = [f"{name}(..) {{..}}" for name in op.region_names]
    return " ".join(filter(None, [op.name, ", ".join(operands), *regions]))


def attribute_row(op: type[Op], name: str) -> str:
    """A line of the table of attributes."""
    kind, defaults = op.attribute_kinds[name], op.attribute_defaults
    default = f"`{kind.print(defaults[name])}`" if name in defaults else "required"
    written = kind.written
    if written.startswith("one of the dtypes"):
        written = "a dtype, or `none`" if written.endswith("`none`") else "a dtype"
    value = written.replace("|", "\\|")
    return f"| `{name}` | {value} | {default} |"


def element_types(op: type[Op]) -> str:
    """The legal element types in words, by the operand or result that a kernel is chosen by."""
    legal = legal_dtypes(op)
    if op.region_names or op.__module__.endswith(("control_flow", "custom_call")):
        return "any; a backend lists the op under `i1`"
    words: list[str] = []
    for name, members in GROUPS:
        if all(member in legal for member in members):
            words.append(name)
            legal = [dtype for dtype in legal if dtype not in members]
    words += [f"`{dtype}`" for dtype in legal]
    return f"{_listed(words)}{_key(op)}"


def _key(op: type[Op]) -> str:
    """Which operand the element types are of, where that is not plain."""
    if op.key_dtype is not Op.key_dtype:
        return " (of the result)"
    if len(op.operand_names) > 1 and (op.data_operand or op.name in _MIXED):
        return f" (of `%{op.operand_names[op.data_operand]}`)"
    return ""


_MIXED = {"take", "gather", "dynamic_slice", "scatter_reduce", "segment_reduce", "quantize",
          "dequantize", "dequantize_affine", "requantize", "dynamic_update_slice"}  # fmt: skip
"""Ops with operands of several element types."""


def allowance(op: type[Op]) -> str:
    """How far a float result may be off, where the op states units in the last place."""
    if op.name not in ULPS:
        return ""
    noun = "unit" if ULPS[op.name] == 1 else "units"
    return f" Floats may be off by {ULPS[op.name]:g} {noun} in the last place."


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def with_reference(text: str) -> str:
    """`text`, a document with both marks, with today's reference between them."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


if __name__ == "__main__":
    PATH.write_text(with_reference(PATH.read_text(encoding="utf-8")), encoding="utf-8")
