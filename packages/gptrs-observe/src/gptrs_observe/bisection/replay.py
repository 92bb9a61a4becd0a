"""A run of a program that goes forwards and back, one instruction of `@main` at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.errors import UsageError
from gptrs.ir.printer import print_instruction
from gptrs.ir.program import Program, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import did_you_mean, quoted
from gptrs_observe.bisection.sides import Side
from gptrs_observe.bisection.values import value_names
from gptrs_observe.bisection.windows import Window


class Replay:
    """A program whose sizes are known, its inputs by name, and the side that computes.

    `position` is the number of the next instruction, from 0. Values are named as in the text of the
    program, without `%`.
    """

    def __init__(self, program: Program, inputs: Mapping[str, np.ndarray], side: Side) -> None:
        self.program = program
        self.position = 0
        self._side = side
        self._names = value_names(program)
        self._values = {name: value for value, name in self._names.items()}
        self._arrays: dict[Value, np.ndarray] = {
            param: np.asarray(inputs[name]) for name, param in program.inputs.items()
        }
        self._replaced: set[Value] = set()

    def __len__(self) -> int:
        return len(self.program.main.body.instructions)

    @property
    def names(self) -> list[str]:
        """The names of all values, in the order of the text."""
        return list(self._values)

    def line(self, number: int) -> str:
        """Return an instruction as the text of the program has it."""
        return print_instruction(self.program.main.body.instructions[number], self._names)

    def step(self) -> None:
        """Compute the next instruction; SideError if the side cannot; at the end, stay."""
        if self.position == len(self):
            return
        made = self.program.main.body.instructions[self.position]
        if not all(value in self._arrays for value in made.results):
            window = Window(self.program, {self.position}, everything=True)
            inputs = {f"v{n}": self._arrays[value] for n, value in enumerate(window.reads)}
            results = self._side.run(window.program, inputs)
            for value, array in zip(window.gives, results, strict=True):
                # A value that the user has set stays, even if the instruction that makes it runs
                # again.
                if value not in self._replaced:
                    self._arrays[value] = array
        self.position += 1

    def back(self) -> None:
        """Go back before the last instruction, which keeps its results; at the start, stay."""
        self.position = max(0, self.position - 1)

    def run(self, name: str | None = None) -> None:
        """Compute up to the value `name`, or to the end; SideError as in `step`."""
        wanted = None if name is None else self._value(name)
        while self.position < len(self) and (wanted is None or wanted not in self._arrays):
            self.step()

    def value(self, name: str) -> np.ndarray:
        """Return the array of a value; UsageError for one that is not computed yet."""
        value = self._value(name)
        if value not in self._arrays:
            raise UsageError(
                f"{quoted('%' + name)} is not computed yet", hint=f"`run {name}` computes it"
            )
        return self._arrays[value]

    def replace(self, name: str, array: np.ndarray) -> None:
        """Let a value be this array from here on; what depends on it is computed again.

        UsageError unless it has the type of the value.
        """
        value = self._value(name)
        if TensorType.of(array) != value.type:
            raise UsageError(
                f"{quoted('%' + name)} is `{value.type}`, the new value `{TensorType.of(array)}`"
            )
        self._arrays[value] = array
        self._replaced.add(value)
        changed = {value}
        for number, made in enumerate(self.program.main.body.instructions):
            if changed.isdisjoint(made.operands):
                continue
            for result in made.results:
                if result not in self._replaced:
                    changed.add(result)
                    self._arrays.pop(result, None)
                    self.position = min(self.position, number)

    def fill(self, name: str, number: complex) -> None:
        """Let a value be the same number everywhere; see `replace`."""
        type_ = self._value(name).type
        with np.errstate(all="ignore"):
            self.replace(name, np.full(type_.shape, number).astype(type_.dtype.numpy))

    def last(self) -> dict[str, np.ndarray]:
        """Return the results of the instruction before `position`, by name."""
        made = self.program.main.body.instructions[self.position - 1]
        return {self._names[value]: self._arrays[value] for value in made.results}

    def results(self) -> list[np.ndarray]:
        """Return the results of the program, after `run()`."""
        return [self._arrays[value] for value in self.program.main.body.results]

    def computed(self) -> dict[str, np.ndarray]:
        """Return every value that is known, by name."""
        return {name: self._arrays[v] for name, v in self._values.items() if v in self._arrays}

    def _value(self, name: str) -> Value:
        name = name.removeprefix("%")
        if name not in self._values:
            guess = did_you_mean(name, self._values)
            raise UsageError(f"the program has no value {quoted('%' + name)}", hint=guess or None)
        return self._values[name]
