"""Golden files: a program in text, and its inputs with the results that it had to give.

`NAME.ptir` is the program. `NAME.npz` beside it has the arrays below; the program says how long
each part of the first two is.

- `inputs`: the bytes of the parameters of `@main`, one after the other, row-major, little-endian.
- `expected`: the bytes of the results in the same way.
- `ulps`, `rtol`: how far each result may be off, as in the kit's `Tolerance`, 0 for not at all.
- `atol`: the absolute allowances of all results, `atol_sizes` of them for each: one for all of its
  elements, or one an element.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gptrs.ir import Program, TensorType, parse_program, print_program
from gptrs_conformance.numerics import Tolerance, decode

FOLDER = Path(__file__).parents[1] / "tests" / "goldens"


@dataclass(frozen=True, eq=False)
class Golden:
    """A program, an array for each parameter and result, and how far each result may be off."""

    program: Program
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    tolerances: list[Tolerance]

    def mismatch(self, index: int, found: np.ndarray) -> str | None:
        """What is wrong with `found` as the result with this index."""
        type_ = self.program.main.body.results[index].type
        if TensorType.of(found) != type_:
            return f"is {found.dtype}{list(found.shape)}, not `{type_}`"
        return self.tolerances[index].mismatch(found, wide(self.expected[index]), type_.dtype)


def wide(array: np.ndarray) -> np.ndarray:
    """The values as `Tolerance.mismatch` takes them."""
    dtype = TensorType.of(array).dtype
    if dtype.is_float:
        return decode(array)
    if dtype.is_complex:
        return array.astype(np.complex128)
    return array.astype(np.int64) if dtype.bits == 4 else array


def save(path: Path, golden: Golden) -> None:
    """Write `path`, a `.ptir` file, and the arrays beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(print_program(golden.program), encoding="utf-8")
    allowances = [np.ravel(np.asarray(each.atol, np.float64)) for each in golden.tolerances]
    np.savez_compressed(
        path.with_suffix(".npz"),
        inputs=_packed(golden.inputs),
        expected=_packed(golden.expected),
        ulps=np.array([each.ulps for each in golden.tolerances], np.float32),
        rtol=np.array([each.rtol for each in golden.tolerances], np.float64),
        atol=np.concatenate([np.zeros(0), *allowances]),
        atol_sizes=np.array([each.size for each in allowances], np.int32),
    )


def load(path: Path) -> Golden:
    """What `save` wrote."""
    program = parse_program(path.read_text(encoding="utf-8"))
    body = program.main.body
    with np.load(path.with_suffix(".npz")) as arrays:
        stored = dict(arrays)
    expected = _unpacked(stored["expected"], [value.type for value in body.results])
    ends = np.cumsum(stored["atol_sizes"])[:-1]
    allowances = np.split(stored["atol"], ends) if expected else []
    rows = zip(stored["ulps"], stored["rtol"], allowances, expected, strict=True)
    return Golden(
        program,
        _unpacked(stored["inputs"], [value.type for value in body.params]),
        expected,
        [_tolerance(*row) for row in rows],
    )


def _tolerance(ulps: float, rtol: float, atol: np.ndarray, expected: np.ndarray) -> Tolerance:
    allowance = float(atol[0]) if atol.size == 1 else atol.reshape(expected.shape)
    return Tolerance(ulps=float(ulps), rtol=float(rtol), atol=allowance)


def _packed(arrays: list[np.ndarray]) -> np.ndarray:
    return np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)


def _unpacked(data: np.ndarray, types: list[TensorType]) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    at = 0
    for type_ in types:
        piece = data[at : at + type_.nbytes].tobytes()
        arrays.append(np.frombuffer(piece, type_.dtype.numpy).reshape(type_.shape))
        at += type_.nbytes
    if at != data.size:
        raise ValueError(f"{data.size} bytes stored, the program has {at}")
    return arrays
