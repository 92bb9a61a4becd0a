"""Writes `docs/torch_operators.md` and `docs/onnx_operators.md`: which operators are converted.

python tools/import_tables.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from onnx import defs

import gptrs_onnx
from gptrs_onnx.strings import FUNCTIONS
from gptrs_torch.conversion import converter_of, converts, of_complex
from gptrs_torch.dynamo import table

DOCS = Path(__file__).parents[1] / "docs"
TORCH_PAGE = DOCS / "torch_operators.md"
ONNX_PAGE = DOCS / "onnx_operators.md"
_RANDOM = "random numbers are torch's"
_GRADIENT = "gradients"
TORCH_REFUSED: Mapping[str, str] = {
    "_adaptive_avg_pool2d_backward": _GRADIENT,
    "_local_scalar_dense": "a number that depends on data",
    "avg_pool2d_backward": _GRADIENT,
    "convolution_backward": _GRADIENT,
    "native_dropout": _RANDOM,
    "nonzero": "a size that depends on data",
    "rand": _RANDOM,
    "randn": _RANDOM,
    "randperm": _RANDOM,
}
"""Operators of core ATen that are refused by name, and why; this may only shrink."""
TORCH_HEAD = """# Operators of torch

torch decomposes its operators into few,
[core ATen](https://docs.pytorch.org/docs/stable/torch.compiler_ir.html). This table says what
[gptrs-torch](torch.md) does with each of these. *Converted*: by itself. *Decomposed*: by torch,
into converted operators. *A size*: a number of the program. Refused, with the reason:
`torch.compile` leaves it to torch, and `gptrs_torch.load` raises an error that names it. Converters
may still refuse some arguments, by name.

This page is written by tools/import_tables.py.
"""
ONNX_HEAD = """# Operators of ONNX

This table says what [gptrs-onnx](import.md) does with each operator of the standard. *Converted*:
by itself. *By its function*: ONNX defines it by others, which are converted. *Before the program*:
the `onnx` package computes it, if it depends on inputs alone. Refused: an error names it before
anything runs. Converters may still refuse some attributes and types, by name.

This page is written by tools/import_tables.py.
"""


def core_operators() -> dict[str, list[Any]]:
    """Return the overloads of core ATen by the name of their operator, in order."""
    found: dict[str, list[Any]] = {}
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        name, _, overload = full.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name, None) if full.startswith("aten::") else None
        op = getattr(packet, overload or "default", None)
        if op is not None and torch.Tag.core in op.tags:
            found.setdefault(name, []).append(op)
    return found


def _is_converted(overloads: list[Any]) -> bool:
    return any(converter_of(each, among) for each in overloads for among in (converts, of_complex))


def torch_states() -> dict[str, str]:
    """Return what is done with each operator of core ATen."""
    found: dict[str, str] = {}
    for name, overloads in core_operators().items():
        if name in TORCH_REFUSED:
            found[name] = f"refused: {TORCH_REFUSED[name]}"
        elif name.startswith("sym_"):
            found[name] = "a size"
        elif _is_converted(overloads) or name.rstrip("_") in converts:
            found[name] = "converted"
        else:
            assert any(op in table() for op in overloads), f"{name} is refused without a reason"
            found[name] = "decomposed"
    return found


def onnx_states() -> dict[str, dict[str, str]]:
    """Return what is done with each operator of ONNX, by domain."""
    known = gptrs_onnx.supported_operators()
    found: dict[str, dict[str, str]] = {}
    for schema in sorted(defs.get_all_schemas(), key=lambda schema: schema.name):
        domain = schema.domain or "ai.onnx"
        if schema.name in [*known.get(domain, ()), *_EVALUATED.get(domain, ())]:
            state = "converted"
        elif domain == "ai.onnx" and schema.name in FUNCTIONS:
            state = "before the program"
        elif why := _kind_of(schema):
            state = f"refused: {why}"
        elif schema.has_function or schema.has_context_dependent_function:
            state = "by its function"
        else:
            state = "refused"
        found.setdefault(domain, {})[schema.name] = state
    return dict(sorted(found.items()))


_EVALUATED = {"ai.onnx": ("Constant", "Shape", "Size")}
"""Operators whose results are known when a graph is converted."""


def _kind_of(schema: Any) -> str:
    """Return what an operator is about that is refused as such, as far as its types tell."""
    for formal in (*schema.inputs, *schema.outputs):
        for word, why in (("map(", "maps"), ("(string)", "strings")):
            if formal.types and all(word in kind for kind in formal.types):
                return why
    return ""


def rows(states: Mapping[str, str]) -> list[str]:
    """Return a table of operators."""
    return ["| operator | |", "|---|---|", *(f"| `{name}` | {s} |" for name, s in states.items())]


def torch_text() -> str:
    """Return the page of torch's operators."""
    states = torch_states()
    counts = Counter(state.partition(":")[0] for state in states.values())
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    lines = [TORCH_HEAD, f"Of {len(states)} operators of torch {_release('torch')}: {told}.", ""]
    return "\n".join([*lines, *rows(states)]) + "\n"


def onnx_text() -> str:
    """Return the page of ONNX's operators."""
    lines = [ONNX_HEAD, f"The operators are those of onnx {_release('onnx')}."]
    for domain, states in onnx_states().items():
        runs = sum(not state.startswith("refused") for state in states.values())
        title = ["", f"## {domain}", "", f"Of {len(states)} operators {runs} run.", ""]
        lines += [*title, *rows(states)]
    return "\n".join(lines) + "\n"


def _release(package: str) -> str:
    return ".".join(version(package).split(".")[:2])


if __name__ == "__main__":
    TORCH_PAGE.write_text(torch_text(), encoding="utf-8")
    ONNX_PAGE.write_text(onnx_text(), encoding="utf-8")
