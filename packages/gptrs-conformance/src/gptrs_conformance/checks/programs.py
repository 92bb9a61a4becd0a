"""Programs at the corners of the IR: regions, calls, several results, views, sizes of zero."""

from __future__ import annotations

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture.compilation import compile_program
from gptrs.errors import UnsupportedError
from gptrs.ir.parser import parse_program
from gptrs.ir.specialize import specialize
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.graph import Graph
from gptrs_conformance.running import compiled, normal, require_equal, run_on


def recurrent(xs: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """Return a recurrent net, last step first."""
    state, states = np.zeros(4), np.zeros((5, 4))
    for step in reversed(range(5)):
        state = np.tanh(state @ w + xs[step])
        states[step] = state
    return [state, states]


RECURRENT = Graph(
    """
    ptir.v0.5
    func @main(%xs: f32[5, 4], %w: f32[4, 4]) -> (f32[4], f32[5, 4]) {
      %start = constant {value = splat(0.0)} : f32[4]
      %0, %1, %2 = scan %start, %w, %xs {carry_count = 2, reverse = true}
        body(%state: f32[4], %w: f32[4, 4], %x: f32[4]) {
          %0 = dot_general %state, %w {contract_lhs = [0], contract_rhs = [0]} : f32[4]
          %1 = add %0, %x : f32[4]
          %2 = tanh %1 : f32[4]
          return %2, %w, %2
        } : (f32[4], f32[4, 4], f32[5, 4])
      return %0, %2
    }
    """,
    # Halved, so that `tanh` stays away from 1, where errors of the state would vanish.
    {"xs": normal(1, 5, 4), "w": normal(2, 4, 4) / 2},
    recurrent,
)


def collatz(n: np.ndarray) -> list[np.ndarray]:
    """Return the number of steps from n to 1."""
    steps, value = 0, int(n)
    while value != 1:
        # 27 takes 111 steps and rises to 9,232, so a loop that ends early or wraps shows.
        value = 3 * value + 1 if value % 2 else value // 2
        steps += 1
    return [np.array(steps, np.int32)]


COLLATZ = Graph(
    """
    ptir.v0.5
    func @triple(%n: si32[]) -> si32[] {
      %0 = mul %n, si32[] 3 : si32[]
      %1 = add %0, si32[] 1 : si32[]
      return %1
    }
    func @main(%n: si32[]) -> si32[] {
      %0, %1 = while %n, si32[] 0
        condition(%n: si32[], %steps: si32[]) {
          %0 = compare %n, si32[] 1 {direction = ne} : i1[]
          return %0
        }
        body(%n: si32[], %steps: si32[]) {
          %0 = rem %n, si32[] 2 : si32[]
          %1 = cast %0 {dtype = i1} : i1[]
          %2 = cond %1, %n
            then(%odd: si32[]) {
              %0 = call %odd {function = @triple} : si32[]
              return %0
            }
            else(%even: si32[]) {
              %0 = div %even, si32[] 2 : si32[]
              return %0
            } : si32[]
          %3 = add %steps, si32[] 1 : si32[]
          return %2, %3
        } : (si32[], si32[])
      return %1
    }
    """,
    {"n": np.array(27, np.int32)},
    collatz,
)


def repeated(x: np.ndarray, n: np.ndarray) -> list[np.ndarray]:
    """Return the expected results: an input, computed values, and a constant."""
    return [n, -x, -x.T, -x, n, np.array(2.5)]


RESULTS = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[2, 3], %n: si32[2])
      -> (si32[2], f32[2, 3], f32[3, 2], f32[2, 3], si32[2], f32[]) {
      %0 = neg %x : f32[2, 3]
      %1 = transpose %0 {permutation = [1, 0]} : f32[3, 2]
      %2 = constant {value = 2.5} : f32[]
      %unread = div %n, %n : si32[2]
      return %n, %0, %1, %0, %n, %2
    }
    """,
    {"x": normal(1, 2, 3), "n": np.array([4, -4], np.int32)},
    repeated,
)


def viewed(x: np.ndarray) -> list[np.ndarray]:
    """Return the results of consumers of a transposed, sliced, broadcast view."""
    t = x.T[1:]
    wide = np.broadcast_to(t[:, None], (2, 4, 3))
    return [t.sum(1), t @ t.T, t[[1, 0, 1]], np.concatenate([t, t]), wide.reshape(8, 3), wide * 2]


VIEWS = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[3, 3])
      -> (f32[2], f32[2, 2], f32[3, 3], f32[4, 3], f32[8, 3], f32[2, 4, 3]) {
      %0 = transpose %x {permutation = [1, 0]} : f32[3, 3]
      %1 = slice %0 {starts = [1, 0], sizes = [2, 3]} : f32[2, 3]
      %2 = reduce %1 {kind = sum, axes = [1]} : f32[2]
      %3 = dot_general %1, %1 {contract_lhs = [1], contract_rhs = [1]} : f32[2, 2]
      %4 = take %1, si64[3] [1, 0, 1] : f32[3, 3]
      %5 = concat %1, %1 {axis = 0} : f32[4, 3]
      %6 = reshape %1 {shape = [2, 1, 3]} : f32[2, 1, 3]
      %7 = broadcast_to %6 {shape = [2, 4, 3]} : f32[2, 4, 3]
      %8 = reshape %7 {shape = [8, 3]} : f32[8, 3]
      %9 = add %7, %7 : f32[2, 4, 3]
      return %2, %3, %4, %5, %8, %9
    }
    """,
    {"x": normal(1, 3, 3)},
    viewed,
)


def emptied(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Sums of nothing, the maximum of nothing, and rows joined with no rows."""
    rows = np.array([[1.0, 2, 3]] * 2)
    return [x @ y, np.zeros(3), rows, np.array(-np.inf), np.zeros((2, 0))]


EMPTY = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[0, 3], %y: f32[3, 2]) -> (f32[0, 2], f32[3], f32[2, 3], f32[], f32[2, 0]) {
      %0 = dot_general %x, %y {contract_lhs = [1], contract_rhs = [0]} : f32[0, 2]
      %1 = reduce %x {kind = sum, axes = [0]} : f32[3]
      %2 = constant {value = [[1.0, 2.0, 3.0]]} : f32[1, 3]
      %3 = concat %x, %2, %x, %2 {axis = 0} : f32[2, 3]
      %4 = reduce %x {kind = max, axes = [0, 1]} : f32[]
      %5 = transpose %0 {permutation = [1, 0]} : f32[2, 0]
      %6 = tanh %5 : f32[2, 0]
      return %0, %1, %3, %4, %6
    }
    """,
    {"x": np.zeros((0, 3), np.float32), "y": normal(1, 3, 2)},
    emptied,
)


def chained() -> Graph:
    """200 consecutive instructions, each an operand of the next, some of them twice."""
    lines = [f"%{i} = {'add' if i % 2 else 'mul'} %{i - 1}, %c : f32[3]" for i in range(1, 201)]
    text = f"""
    ptir.v0.5
    func @main(%x: f32[3]) -> f32[3] {{
      %c = constant {{value = [0.5, 0.25, -0.5]}} : f32[3]
      %0 = sub %x, %x : f32[3]
      {" ".join(lines)}
      return %200
    }}
    """

    def expected(x: np.ndarray) -> list[np.ndarray]:
        c, value = np.array([0.5, 0.25, -0.5]), x - x
        for i in range(1, 201):
            value = value + c if i % 2 else value * c
        return [value]

    return Graph(text, {"x": normal(1, 3)}, expected)


UNKNOWN = """
ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = custom_call %x {target = "gptrs_conformance.nobody_has_this.v1", results = [f32[2]]} : f32[2]
  return %0
}
"""
SYMBOLIC = """
ptir.v0.5
func @main(%x: f32[?0, 3], %y: f32[3, ?1]) -> (f32[?0, ?1], f32[3*?0]) {
  %0 = dot_general %x, %y {contract_lhs = [1], contract_rhs = [0]} : f32[?0, ?1]
  %1 = reshape %x {shape = [-1]} : f32[3*?0]
  return %0, %1
}
"""


def unknown_targets_are_refused(backend: Backend) -> None:
    """An unknown custom call is refused by its target, before anything runs."""
    try:
        compiled(backend, UNKNOWN)
    except UnsupportedError as error:
        # Users need the name to find the plugin that they lack.
        if "gptrs_conformance.nobody_has_this.v1" not in str(error):
            raise CheckFailure(f"the UnsupportedError must name the target: {error}") from None
        return
    raise CheckFailure("compiled a custom call with an unknown target, expected UnsupportedError")


def specialized_programs_run(backend: Backend) -> None:
    """One program with symbolic dims, run at two sizes."""
    program = parse_program(SYMBOLIC)
    # The second sizes find what a backend kept for the first ones.
    for rows, columns in ((2, 4), (5, 1)):
        special = specialize(program, {0: rows, 1: columns})
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        y = np.ones((3, columns), np.float32)
        found = run_on(backend, compile_program(special, backend), x, y)
        require_equal(found, [x @ y, x.reshape(-1)], f"sizes {rows} and {columns}")


CHECKS = [
    RECURRENT.check("a recurrent net by scan"),
    COLLATZ.check("a loop with branches and calls"),
    RESULTS.check("results several times and in any order"),
    VIEWS.check("views feed every kind of consumer"),
    EMPTY.check("tensors without elements"),
    chained().check("200 instructions in a row"),
    Check("an unknown custom call is refused", "core", unknown_targets_are_refused),
    Check("a specialized program", "core", specialized_programs_run),
]
