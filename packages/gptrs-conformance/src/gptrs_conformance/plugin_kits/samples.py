"""Small programs for exporters, and files that they write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.errors import UnsupportedError
from gptrs.ir.parser import parse_program
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.exporters import OutgoingModel
from gptrs_runtime.outgoing_model import outgoing_program

Write = Callable[[OutgoingModel, Path], object]
"""The factory of an exporter."""

_BODIES: Mapping[str, str] = {
    "a chain": """
  %0 = tanh %x : f32[?0, 2]
  %1 = add %0, %y : f32[?0, 2]
  %2 = mul %1, %x : f32[?0, 2]
  return %2""",
    "a sum": """
  %0 = add %x, %y : f32[?0, 2]
  return %0""",
    "a value used twice": """
  %0 = sub %x, %y : f32[?0, 2]
  %1 = mul %0, %0 : f32[?0, 2]
  return %1""",
    "operands in reverse": """
  %0 = sub %y, %x : f32[?0, 2]
  return %0""",
    "a square root": """
  %0 = mul %x, %x : f32[?0, 2]
  %1 = sqrt %0 : f32[?0, 2]
  %2 = add %1, %y : f32[?0, 2]
  return %2""",
    "a sum along an axis": """
  %0 = reduce %x {kind = sum, axes = [1], keepdims = true} : f32[?0, 1]
  %1 = reduce %y {kind = sum, axes = [1], keepdims = true} : f32[?0, 1]
  %2 = add %0, %1 : f32[?0, 1]
  return %2""",
    "running products": """
  %0 = cumulative %x {kind = prod, axis = 0} : f32[?0, 2]
  %1 = add %0, %y : f32[?0, 2]
  return %1""",
    "a loop": """
  %0 = while %x condition(%a: f32[?0, 2]) {
    %c = constant {value = false} : i1[]
    return %c
  } body(%b: f32[?0, 2]) {
    return %b
  } : f32[?0, 2]
  %1 = add %0, %y : f32[?0, 2]
  return %1""",
}
"""Bodies of programs of two inputs f32[?0, 2], from plain ones to those that few formats have."""
_WHOLE: Mapping[str, str] = {
    "two free sizes": """(%x: f32[?0, ?1], %y: f32[?1, ?0]) -> f32[?0, ?1] {
  %0 = transpose %y {permutation = [1, 0]} : f32[?0, ?1]
  %1 = sub %0, %x : f32[?0, ?1]
  return %1""",
    "an input that nothing reads": """(%x: f32[?0, 2], %y: f32[?0, 2]) -> f32[?0, 2] {
  %0 = tanh %y : f32[?0, 2]
  return %0""",
    "outputs that are inputs, and one value twice": """(%x: f32[?0, 2], %y: f32[?0, 2])
  -> (f32[?0, 2], f32[?0, 2], f32[?0, 2]) {
  %0 = tanh %x : f32[?0, 2]
  return %0, %y, %0""",
    "whole numbers": """(%x: si32[?0, 2], %y: si32[?0, 2]) -> si32[?0, 2] {
  %0 = sub %x, %y : si32[?0, 2]
  return %0""",
    "halves": """(%x: f16[?0, 2], %y: f16[?0, 2]) -> f16[?0, 2] {
  %0 = add %x, %y : f16[?0, 2]
  return %0""",
    "constants": """(%x: f32[?0, 3], %y: f32[?0, 3]) -> f32[?0, 3] {
  %0 = constant {value = [[0.1, -2.0, 3000000.0]]} : f32[1, 3]
  %1 = broadcast_to %0 {shape = [?0, 3]} : f32[?0, 3]
  %2 = mul %x, %1 : f32[?0, 3]
  %3 = add %2, %y : f32[?0, 3]
  return %3""",
    "a choice": """(%x: f32[?0, 2], %y: f32[?0, 2]) -> (f32[?0, 2], i1[?0, 2]) {
  %0 = compare %x, %y {direction = lt} : i1[?0, 2]
  %1 = select %0, %x, %y : f32[?0, 2]
  return %1, %0""",
    "parts of arrays": """(%x: f32[?0, 3], %y: f32[?0, 3]) -> (f32[?0, 4], f32[?0]) {
  %0 = concat %y, %x {axis = 1} : f32[?0, 6]
  %1 = slice %0 {starts = [0, 1], sizes = [?0, 4]} : f32[?0, 4]
  %2 = reduce %x {kind = max, axes = [1]} : f32[?0]
  return %1, %2""",
}
"""Programs of two inputs `x` and `y` of other types and shapes."""
_WEIGHTED = """ptir.v0.5
func @main(%x: f32[4, 3], %w: f32[4, 3], %v: f32[4, 3]) -> (f32[4, 3], f32[4, 3]) {
  %0 = mul %x, %w : f32[4, 3]
  %1 = add %0, %v : f32[4, 3]
  return %1, %0
}
"""


def programs() -> dict[str, OutgoingModel]:
    """Return programs without weights, each of the inputs `x` and `y` with free sizes."""
    found: dict[str, OutgoingModel] = {}
    for name, body in _BODIES.items():
        result = "f32[?0, 1]" if "f32[?0, 1]" in body else "f32[?0, 2]"
        text = f"ptir.v0.5\nfunc @main(%x: f32[?0, 2], %y: f32[?0, 2]) -> {result} {{{body}\n}}\n"
        found[name] = outgoing_program(parse_program(text), "sample")
    for name, body in _WHOLE.items():
        text = f"ptir.v0.5\nfunc @main{body}\n}}\n"
        found[name] = outgoing_program(parse_program(text), "sample")
    return found


def inputs_of(model: OutgoingModel, size: int, seed: int = 3) -> dict[str, np.ndarray]:
    """Return numbers for the inputs of a program of the kit; its free sizes are `size` and more."""
    random, sizes = np.random.default_rng(seed), dict[str, int]()
    found: dict[str, np.ndarray] = {}
    for each in model.inputs:
        shape = [
            dim if isinstance(dim, int) else sizes.setdefault(dim, size + len(sizes))
            for dim in each.shape or ()
        ]
        numbers = random.normal(size=shape) * (1 if each.dtype.is_float else 100)
        found[each.name] = numbers.astype(each.dtype.numpy)
    return found


def weighted(parts: int = 1, w: np.ndarray | None = None) -> OutgoingModel:
    """Return a program with the weights `w` and `v.part`, each in `parts`, and two outputs.

    `w` is f32 [4, 3], by default `weight(1)`.
    """
    made = outgoing_program(parse_program(_WEIGHTED), "weighted")
    arrays = {"w": weight(1) if w is None else w, "v.part": weight(2)}
    weights = tuple(
        OutgoingTensor(name, TensorType.of(array), partial(np.split, array, parts))
        for name, array in arrays.items()
    )
    return replace(made, inputs=made.inputs[:1], outputs=("sum", "product"), weights=weights)


def weight(seed: int) -> np.ndarray:
    """Return the elements of a weight, f32 [4, 3]."""
    return np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)


def written_sample(write: Write, path: Path) -> Path:
    """Write the first program that the format has; the UnsupportedError of the last otherwise."""
    refused: UnsupportedError | None = None
    for model in programs().values():
        try:
            write(model, path)
        except UnsupportedError as error:
            refused = error
        else:
            return path
    assert refused is not None
    raise refused
