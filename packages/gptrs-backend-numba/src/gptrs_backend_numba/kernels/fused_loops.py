"""The loop of an elementwise kernel, whose source is written for a group of ops.

It is the one kernel in text: how many tensors, axes and ops it has differs from group to group, so
somebody has to write it out. Left to numba, by functions that add a value to a tuple each, a chain
of 8 ops compiles in 155 ms of CPU time instead of 63: each is typed and translated by itself. What
is written are loops and calls; all that is computed is in the functions that it names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs_backend_numba.codegen.elements import unchanged
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.separate_memory import read_apart, write_apart

Read = tuple[type[np.generic], int | None, bool, object]
"""An input: type in memory, innermost stride class, whether it is fixed, what loads an element."""
Write = tuple[type[np.generic], int | None, int, object, bool]
"""A result: type in memory, stride class, number of the value, what stores it, if that rounds."""
Step = tuple[object, tuple[int, ...], object, np.generic | None]
"""A function, the numbers of its operands, what rounds its result, and the zero of its type if it
fails where the last operand is zero."""


def fused(
    rank: int,
    reads: Sequence[Read],
    writes: Sequence[Write],
    steps: Sequence[Step],
    others: int | None,
    apart: bool,
) -> tuple[str, dict[str, object]]:
    """Return the source of a function `kernel`, and its global names.

    See `whole_kernel`; with a number of `others` it is a task, as in `task_kernel`. `apart` says
    that a result overlaps nothing, or lies exactly where an operand does.
    """
    loop = _Loop(rank, others)
    fails = any(zero is not None for *_, zero in steps)
    inputs = [f"x{at}" for at in range(len(reads))]
    results = [f"o{at}" for at in range(len(writes))]
    loop.begin(inputs, results)
    if fails:
        loop.add("failed = False")
    for name, (type_, inner, fixed, load) in zip(inputs, reads, strict=True):
        loop.open(name, type_, inner, fixed)
        if fixed:
            loop.add(f"{name} = {loop.call(load, f'p_{name}[0]')}")
    for name, (type_, inner, *_) in zip(results, writes, strict=True):
        loop.open(name, type_, inner, False)
    loop.walk_rows()
    for name, (_, inner, fixed, load) in zip(inputs, reads, strict=True):
        if inner == 0 and not fixed:
            loop.add(f"{name} = {loop.call(load, loop.element(name, apart))}")
    loop.walk(rank - 1)
    for name, (_, inner, fixed, load) in zip(inputs, reads, strict=True):
        if inner != 0 and not fixed:
            loop.add(f"{name} = {loop.call(load, loop.element(name, apart))}")
    values = _compute(loop, inputs, steps, {number for *_, number, _, _ in writes})
    for at, (name, (_, _, number, store, rounds)) in enumerate(zip(results, writes, strict=True)):
        raw, value = values[number]
        loop.write(name, loop.call(store, raw if rounds else value), at if apart else None)
    return loop.source("1 if failed else 0" if fails else "0"), loop.names


def _compute(
    loop: _Loop, inputs: Sequence[str], steps: Sequence[Step], written: set[int]
) -> list[tuple[str, str]]:
    """Add the statements of the steps; return each value before and after it is rounded."""
    values = [(name, name) for name in inputs]
    read = {number for _, numbers, *_ in steps for number in numbers}
    for function, numbers, rounded, zero in steps:
        at = len(values)
        raw = loop.call(function, *(values[number][1] for number in numbers))
        if at in written and (at in read or rounded is not unchanged):
            loop.add(f"r{at} = {raw}")
            raw = f"r{at}"
        value = loop.call(rounded, raw)
        if at in read and value != f"r{at}":
            loop.add(f"y{at} = {value}")
            value = f"y{at}"
        if zero is not None:
            loop.add(f"failed |= {values[numbers[-1]][1]} == {loop.name(zero)}")
        values.append((raw, value))
    return values


class _Loop:
    """The lines of a kernel, and the objects that they name."""

    def __init__(self, rank: int, others: int | None) -> None:
        self.names: dict[str, object] = {}
        self._rank, self._others = rank, others
        self._at = 0
        """The next word of the geometry."""
        self._lines: list[str] = []
        self._depth = 1
        self._addresses: dict[str, str] = {}
        self._known: dict[int, str] = {}
        self._inner: dict[str, int | None] = {}

    def add(self, line: str) -> None:
        """Add a line where the last loop has got to."""
        self._lines.append("    " * self._depth + line)

    def name(self, value: object) -> str:
        """Return the global name of an object."""
        if id(value) not in self._known:
            self._known[id(value)] = f"g{len(self.names)}"
            self.names[self._known[id(value)]] = value
        return self._known[id(value)]

    def call(self, function: object, *arguments: str) -> str:
        """Return the source of a call."""
        if function is unchanged:
            return arguments[0]
        return f"{self.name(function)}({', '.join(arguments)})"

    def begin(self, inputs: Sequence[str], results: Sequence[str]) -> None:
        """Add what comes before the loops: the borders of a block, or of all."""
        others, rank = self._others, self._rank
        if others is None:
            self._addresses = {name: f"a_{name}" for name in (*inputs, *results)}
            self._lines.append(f"def kernel({', '.join(self._addresses.values())}, geometry):")
        else:
            first = others - len(results) + 1
            places = (*range(len(inputs[2:])), *range(first, others))
            others_in = zip((*inputs[2:], *results[:-1]), places, strict=True)
            self._addresses = {name: f"G[{place}]" for name, place in others_in}
            self._addresses |= dict(zip(inputs, ("first", "second"), strict=False))
            self._addresses[results[-1]] = "last"
            self._lines.append("def kernel(first, second, last, geometry, task):")
        self.add(f"G = {self.call(pointer, 'geometry', self.name(np.int64))}")
        self._at = (others or 0) + rank
        for axis in reversed(range(rank)):
            size = f"G[{self._at - rank + axis}]"
            if others is None:
                self.add(f"n{axis} = {size}")
                continue
            part = f"G[{self._at + axis}]"
            self.add(f"count = ({size} + {part} - 1) // {part}")
            self.add(f"b{axis} = task % count * {part}")
            self.add(f"n{axis} = min({size}, b{axis} + {part})")
            self.add("task = task // count")
        self._at += 0 if others is None else rank

    def open(self, name: str, type_: type[np.generic], inner: int | None, fixed: bool) -> None:
        """Add the pointer to a tensor, and its strides."""
        address = self._addresses[name]
        self.add(f"p_{name} = {self.call(pointer, address, self.name(type_))}")
        if fixed:
            return
        self._inner[name] = inner
        # numba spends time on what is not read, too.
        for axis in range(self._rank if inner is None else self._rank - 1):
            self.add(f"s_{name}{axis} = G[{self._at + axis}]")
        self._at += self._rank

    def walk(self, axis: int) -> None:
        """Begin the loop over an axis."""
        begin = "" if self._others is None else f"b{axis}, "
        self.add(f"for i{axis} in range({begin}n{axis}):")
        self._depth += 1

    def walk_rows(self) -> None:
        """Begin the loops over all axes but the last, and find where each tensor has its row."""
        for axis in range(self._rank - 1):
            self.walk(axis)
        if self._rank > 1:
            for name in self._inner:
                terms = (f"i{axis} * s_{name}{axis}" for axis in range(self._rank - 1))
                self.add(f"f_{name} = {' + '.join(terms)}")

    def element(self, name: str, apart: bool) -> str:
        """Return the source of the element of a tensor in memory."""
        index = self._index(name)
        return self.call(read_apart, f"p_{name}", index) if apart else f"p_{name}[{index}]"

    def write(self, name: str, value: str, number: int | None) -> None:
        """Add the assignment to the element of a result, apart from others if it has a number."""
        if number is None:
            self.add(f"{self.element(name, False)} = {value}")
        else:
            function = write_apart(number)
            self.add(self.call(function, f"p_{name}", self._index(name), value))

    def _index(self, name: str) -> str:
        last = self._rank - 1
        terms = [f"f_{name}"] * (last > 0)
        terms += {0: [], 1: [f"i{last}"], None: [f"i{last} * s_{name}{last}"]}[self._inner[name]]
        return " + ".join(terms) or "0"

    def source(self, result: str) -> str:
        """Return the whole source of a function that ends with a result."""
        return "\n".join([*self._lines, f"    return {result}", ""])
