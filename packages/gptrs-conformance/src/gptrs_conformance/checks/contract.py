"""Rules for every executable: memory, repetition, threads."""

from __future__ import annotations

import itertools
import threading

import numpy as np

from gptrs.backend.contract import Backend, Buffer, InputRole
from gptrs_conformance.check import Check
from gptrs_conformance.running import compiled, normal, require, require_equal, run_on

MIXED = """
ptir.v0.5
func @main(%x: f32[3, 4], %y: f32[3, 4])
  -> (f32[4, 3], f32[3, 4], f32[3, 4], f32[3, 4], f32[4, 3]) {
  %0 = transpose %x {permutation = [1, 0]} : f32[4, 3]
  %1 = add %x, %y : f32[3, 4]
  %2 = mul %1, %y : f32[3, 4]
  return %0, %1, %2, %x, %0
}
"""
"""A view, computed values, a parameter returned directly, and a value returned twice."""

CONSTANT = """
ptir.v0.5
func @main(%x: f32[3]) -> (f32[3], f32[3]) {
  %0 = constant {value = [1.0, 2.0, 3.0]} : f32[3]
  %1 = add %x, %0 : f32[3]
  return %0, %1
}
"""
PRODUCTS = """
ptir.v0.5
func @main(%x: f32[2, 2], %p: f32[2, 2], %q: f32[2, 2]) -> f32[2, 2] {{
  %0 = dot_general %x, %{first} {{contract_lhs = [1], contract_rhs = [0]}} : f32[2, 2]
  %1 = dot_general %0, %{second} {{contract_lhs = [1], contract_rhs = [0]}} : f32[2, 2]
  return %1
}}
"""
DONATED = """
ptir.v0.5
func @main(%a: f32[4], %b: f32[4], %c: f32[4]) -> (f32[4], f32[4], f32[4]) {
  %0 = add %a, %b : f32[4]
  %1 = mul %0, %a : f32[4]
  %2 = sub %1, %b : f32[4]
  return %0, %2, %c
}
"""
MOVES = """
ptir.v0.5
func @main(%x: f32[2, 3]) -> (f32[3, 2], f32[6], f32[2, 2]) {
  %0 = transpose %x {permutation = [1, 0]} : f32[3, 2]
  %1 = reshape %x {shape = [6]} : f32[6]
  %2 = slice %x {starts = [0, 1], sizes = [2, 2]} : f32[2, 2]
  return %0, %1, %2
}
"""


def _mixed(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return what MIXED gives: each operation rounds once, so that it is exact."""
    return [x.T.copy(), x + y, (x + y) * y, x, x.T.copy()]


def inputs_stay(backend: Backend) -> None:
    """Inputs that are not donated are as they were, also those that are returned."""
    x, y = normal(1, 3, 4), normal(2, 3, 4)
    before = x.copy(), y.copy()
    found = run_on(backend, compiled(backend, MIXED), x, y)
    require_equal([x, y], before, "after a run that was donated nothing", "input")
    require_equal(found, _mixed(*before), "one run")


def results_are_owned(backend: Backend) -> None:
    """No result shares memory with an input or another result."""
    x, y = normal(1, 3, 4), normal(2, 3, 4)
    found = run_on(backend, compiled(backend, MIXED), x, y)
    for index, result in enumerate(found):
        shares = any(np.shares_memory(result, other) for other in (x, y, *found[:index]))
        require(not shares, f"result {index} shares memory with an input or another result")


def results_last(backend: Backend) -> None:
    """No later run changes the results of an earlier one, including those of constants."""
    executable = compiled(backend, MIXED)
    first = run_on(backend, executable, normal(1, 3, 4), normal(2, 3, 4))
    kept = [result.copy() for result in first]
    run_on(backend, executable, normal(3, 3, 4), normal(4, 3, 4))
    require_equal(first, kept, "after a second run, the results of the first")
    constants = compiled(backend, CONSTANT)
    x = np.zeros(3, np.float32)
    early = run_on(backend, constants, x)
    for result in early:
        # Some backends return read-only views of device memory, which is allowed.
        if result.flags.writeable:
            result[...] = -1
    late = run_on(backend, constants, x)
    expected = [np.array([1, 2, 3], np.float32)] * 2
    require_equal(late, expected, "a run after results of another were overwritten")


def runs_repeat(backend: Backend) -> None:
    """The same inputs give the same bits, in one executable and in another of the same program."""
    inputs = normal(1, 3, 4), normal(2, 3, 4)
    executables = [compiled(backend, MIXED) for _ in range(2)]
    first = run_on(backend, executables[0], *inputs)
    for executable in (*executables, executables[0]):
        require_equal(
            run_on(backend, executable, *inputs), first, "a second run on the same inputs"
        )


def executables_interleave(backend: Backend) -> None:
    """Two executables that run alternately do not disturb each other."""
    one, other = compiled(backend, MIXED), compiled(backend, MOVES)
    alternating = "two executables, alternating"
    for seed in range(4):
        x, y = normal(seed, 3, 4), normal(seed + 9, 3, 4)
        z = normal(seed, 2, 3)
        require_equal(run_on(backend, one, x, y), _mixed(x, y), f"{alternating}, {seed}")
        moved = [z.T.copy(), z.reshape(6), z[:, 1:].copy()]
        require_equal(run_on(backend, other, z), moved, f"{alternating}, {seed}")


def threads_share(backend: Backend) -> None:
    """Four threads run one executable on separate inputs, and each gets its own results."""
    executable = compiled(backend, MIXED)
    problems: list[str] = []

    def work(number: int) -> None:
        # Enough turns that threads meet within a run; each has its own inputs, so a buffer that two
        # share shows.
        for turn in range(25):
            x, y = normal(100 * number + turn, 3, 4), normal(turn, 3, 4)
            try:
                found = run_on(backend, executable, x, y)
                require_equal(found, _mixed(x, y), f"thread {number}, run {turn}")
            except BaseException as error:  # any exception in a thread is the finding
                problems.append(f"{type(error).__name__}: {error}")
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not problems, "; ".join(problems[:1]))


def hosts_arrays_of_any_layout(backend: Backend) -> None:
    """`to_device` takes arrays that are strided, read-only, of foreign byte order."""
    executable = compiled(backend, MIXED)
    x, y = normal(1, 3, 4), normal(2, 3, 4)
    fixed = x.copy()
    fixed.flags.writeable = False
    layouts: list[tuple[str, np.ndarray]] = [
        ("column-major", np.asfortranarray(x)),
        ("strided", np.repeat(x, 2, axis=1)[:, ::2]),
        ("reversed", x[::-1].copy()[::-1]),
        ("read-only", fixed),
        # As from files of other machines: kernels would read the bytes turned around.
        ("of foreign byte order", x.astype(x.dtype.newbyteorder())),
    ]
    for name, array in layouts:
        require_equal(
            run_on(backend, executable, array, y), _mixed(x, y), f"an input that is {name}"
        )


def parameters_are_not_mixed_up(backend: Backend) -> None:
    """Two weights of the same shape are not swapped: `(x @ p) @ q` is not `(x @ q) @ p`."""
    x = np.array([[1, 2], [3, 4]], np.float32)
    p, q = np.array([[0, 1], [1, 0]], np.float32), np.array([[2, 0], [0, 3]], np.float32)
    roles = [InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.PARAMETER]
    streamed = [InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.STREAMED]
    buffers: list[Buffer] = [backend.to_device(array) for array in (p, q)]
    orders = (("p", "q", x @ p @ q), ("q", "p", x @ q @ p))
    for (first, second, expected), given in itertools.product(orders, (roles, streamed)):
        text = PRODUCTS.format(first=first, second=second)
        executable = compiled(backend, text, given)
        # The second run is the one from a cache of packed weights, which may have mixed them up.
        for _ in range(2):
            results = executable.run([backend.to_device(x), *buffers])
            found = [backend.to_host(result) for result in results]
            require_equal(found, [expected], f"x @ {first} @ {second}")
    executable = compiled(backend, PRODUCTS.format(first="p", second="q"), roles)
    for weights in ((p, q), (q, p)):
        found = run_on(backend, executable, x, *weights)
        require_equal(found, [x @ weights[0] @ weights[1]], "other weights in one executable")


def donated_inputs_are_read_first(backend: Backend) -> None:
    """Donated inputs may be overwritten, but not before they are read; no other input may be."""
    for pattern in range(8):
        given = [bool(pattern >> bit & 1) for bit in range(3)]
        roles = [InputRole.DONATED if away else InputRole.ARGUMENT for away in given]
        executable = compiled(backend, DONATED, roles)
        for seed in range(2):
            arrays = [normal(10 * seed + bit, 4) for bit in range(3)]
            a, b, c = (array.copy() for array in arrays)
            found = run_on(backend, executable, *arrays)
            what = "donated: " + (", ".join(np.array(["a", "b", "c"])[given]) or "nothing")
            require_equal(found, [a + b, (a + b) * a - b, c], what)
            for array, before, away in zip(arrays, (a, b, c), given, strict=True):
                kept = away or array.tobytes() == before.tobytes()
                require(kept, f"{what}; an input that was not donated was overwritten")


def bits_move_unchanged(backend: Backend) -> None:
    """Layout ops keep every bit, also those of NaN and of -0.0."""
    bits = [0x7FC00001, 0x80000000, 0xFFC12345, 0x00000001, 0x7F800000, 0xFF7FFFFF]
    x = np.array(bits, np.uint32).view(np.float32).reshape(2, 3)
    expected = [x.T.copy(), x.reshape(6), x[:, 1:].copy()]
    require_equal(run_on(backend, compiled(backend, MOVES), x), expected, "layout ops")


CHECKS = [
    Check("inputs are left as they are", "core", inputs_stay),
    Check("results have memory of their own", "core", results_are_owned),
    Check("results outlast later runs", "core", results_last),
    Check("runs repeat to the bit", "core", runs_repeat),
    Check("executables do not disturb each other", "core", executables_interleave),
    Check("threads share an executable", "core", threads_share),
    Check("host arrays of any layout", "core", hosts_arrays_of_any_layout),
    Check("parameters are not mixed up", "core", parameters_are_not_mixed_up),
    Check("donated inputs are read before they are reused", "core", donated_inputs_are_read_first),
    Check("moved elements keep their bits", "core", bits_move_unchanged),
]
