"""Writes the golden files of the current version of PTIR out of the rows of the conformance kit.

    python tools/write_goldens.py

No backend takes part: the rows compute what is expected by themselves. Files of a version that has
been released stay as they are; a later version reads them and must find the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

import golden_files
import gptrs_conformance.cases  # noqa: F401 - registers the rows
from golden_files import Golden
from golden_graphs import GRAPHS
from gptrs.ir import OPS, VERSION, Builder, Function, Op, Region, TensorType
from gptrs.ir.builder import copy_region
from gptrs.ir.dtypes import DType, f32, f64
from gptrs.ir.program import Instruction, Value
from gptrs_conformance.numerics import rounded
from gptrs_conformance.op_case import ROWS, OpCase, cases

FOLDER = golden_files.FOLDER / VERSION.removeprefix("ptir.")

MOST_BYTES = 400
"""Cases with more bytes of inputs and results are left to the kit."""
SPECIAL = 3
"""How many more cases of an op are taken for what is special about them, on all types together."""


def main() -> None:
    """Write a file for each graph and each family of ops."""
    total = 0
    for name, file in goldens().items():
        path = FOLDER / f"{name}.ptir"
        golden_files.save(path, file)
        size = path.stat().st_size + path.with_suffix(".npz").stat().st_size
        total += size
        print(f"{name}: {size} bytes")
    print(f"{total} bytes in {FOLDER}")


def goldens() -> dict[str, Golden]:
    """Make a golden for each graph and each family of ops, by the name of its file."""
    families: dict[str, list[type[Op]]] = {}
    for op_class in OPS.values():
        families.setdefault(op_class.__module__.rpartition(".")[2], []).append(op_class)
    files = {name: make() for name, make in GRAPHS.items()}
    files.update((family, golden(op_classes)) for family, op_classes in families.items())
    return files


def golden(op_classes: Sequence[type[Op]]) -> Golden:
    """The program that applies each op to some of its cases."""
    chosen = [entry for op_class in op_classes for entry in choose(op_class)]
    functions = [function for name, case in chosen for function in renamed_functions(name, case)]
    builder = Builder(functions)
    results: list[Value] = []
    inputs: list[np.ndarray] = []
    expected: list[np.ndarray] = []
    tolerances = []
    for name, case in chosen:
        types = [TensorType.of(array) for array in case.inputs]
        operands = [builder.param(type_, f"{name}.{i}") for i, type_ in enumerate(types)]
        names = function_names(name, case)
        regions = [renamed(copy_region(region), names) for region in case.regions]
        instruction = builder.emit_many(renamed_op(case.op, names), operands, regions)
        inputs.extend(case.inputs)
        for value, array in zip(instruction.results, case.expected, strict=True):
            results.append(value)
            expected.append(stored(array, value.type.dtype))
            tolerances.append(case.tolerance)
    return Golden(builder.program(*results), inputs, expected, tolerances)


def choose(op_class: type[Op]) -> list[tuple[str, OpCase]]:
    """The first small case on each type, and a few more by labels that have not come yet."""
    found: list[tuple[str, OpCase]] = []
    labels: set[str] = set()
    special = 0
    for dtype in ROWS.get(op_class, {}):
        small = [case for case in cases(op_class, dtype) if fits(case)]
        first = next((case for case in small if any(a.size for a in case.expected)), None)
        for case in small:
            if case is not first and (special == SPECIAL or case.label in labels):
                continue
            special += case is not first
            labels.add(case.label)
            found.append((f"{op_class.name}.{dtype}.{len(found)}", case))
    return found


def fits(case: OpCase) -> bool:
    """Whether a case has results, and few enough bytes."""
    return case.error is None and sum(a.nbytes for a in (*case.inputs, *case.expected)) < MOST_BYTES


def stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A wide expected value in the type of the result, rounded to nearest even."""
    if dtype.is_complex:
        part = f32 if dtype.bits == 64 else f64
        parts = [stored(np.asarray(half), part) for half in (np.real(array), np.imag(array))]
        result = np.empty(array.shape, dtype.numpy)
        result.real, result.imag = parts
        return result
    if dtype.is_float:
        return np.asarray(rounded(np.asarray(array, np.float64), dtype)).astype(dtype.numpy)
    if dtype.bits == 4:
        return np.asarray(array).astype(np.int64).astype(dtype.numpy)
    return np.asarray(array).astype(dtype.numpy)


def function_names(prefix: str, case: OpCase) -> dict[str, str]:
    """The names that the functions of a case have in the program of many cases."""
    return {function.name: f"{prefix}.{function.name}" for function in case.functions}


def renamed_functions(prefix: str, case: OpCase) -> list[Function]:
    """The functions of a case under the names of the program."""
    names = function_names(prefix, case)
    return [
        Function(names[function.name], renamed(copy_region(function.body), names))
        for function in case.functions
    ]


def renamed(region: Region, names: Mapping[str, str]) -> Region:
    """The region with references to functions by their new names."""
    instructions = tuple(
        Instruction(
            renamed_op(each.op, names),
            each.operands,
            each.results,
            tuple(renamed(inner, names) for inner in each.regions),
        )
        for each in region.instructions
    )
    return Region(region.params, instructions, region.results)


def renamed_op(op: Op, names: Mapping[str, str]) -> Op:
    """The op with references to functions by their new names."""
    changes = {
        attribute: names[getattr(op, attribute)]
        for attribute in op.function_attributes
        if getattr(op, attribute) is not None
    }
    return replace(op, **changes) if changes else op  # pyright: ignore


if __name__ == "__main__":
    main()
