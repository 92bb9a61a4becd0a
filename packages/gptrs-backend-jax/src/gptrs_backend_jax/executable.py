"""A compiled program: one call of XLA a run, its results left on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from jax import Array

from gptrs.api import BoundInputs, Buffer, ExecutionError, InputRole, Program, UsageError, Value
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.client import Device, all_types, compiled
from gptrs_backend_jax.walk import Failure, Message, ProgramWalk, entered, left


class JaxExecutable:
    """A program as one function that XLA has compiled for a device."""

    def __init__(
        self,
        program: Program,
        roles: Sequence[InputRole],
        device: Device,
        options: Mapping[str, bool | str],
    ) -> None:
        body = program.main.body
        self._params = body.params
        self._types = [(value.type.shape, value.type.dtype.numpy) for value in body.params]
        donated = tuple(place for place, role in enumerate(roles) if role is InputRole.DONATED)
        recording = _Recording(program, roles)
        self._call = compiled(
            recording.record,
            self._types,
            donated=donated,
            device=device,
            options=options,
        )
        self._messages = recording.messages

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run; see `Executable`. Waits only where the program can fail."""
        self._require(inputs, self._params)
        return self._results(inputs)

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Run with weights that were checked when they came first."""
        if len(inputs) + len(bound.buffers) != len(self._params):
            self._require([*inputs, *bound.buffers], self._params)
        self._require(inputs, self._params[: len(inputs)])
        return self._results([*inputs, *bound.buffers])

    def _results(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        with all_types():
            results, failure = self._call(*inputs)
        if failure is not None:
            number, value = np.asarray(failure)
            if number:
                raise ExecutionError(self._messages[int(number) - 1].about(int(value)))
        return cast("list[Buffer]", results)

    def _require(self, inputs: Sequence[Buffer], params: Sequence[Value]) -> None:
        """UsageError unless the inputs are those of the parameters, as buffers of JAX."""
        if len(inputs) != len(params):
            raise UsageError(f"the program takes {len(params)} inputs, got {len(inputs)}")
        for number, (given, (shape, dtype)) in enumerate(zip(inputs, self._types, strict=False)):
            if not isinstance(given, Array) or given.shape != shape or given.dtype != dtype:
                raise _wrong_input(number, params[number], given)


class _Recording:
    """The function that JAX records: the walk over a program, and what it may fail with."""

    def __init__(self, program: Program, roles: Sequence[InputRole]) -> None:
        self._program = program
        self.messages: list[Message] = []
        """The errors of the program, by their number from 1 on."""
        body = program.main.body
        kept = [
            value
            for value, role in zip(body.params, roles, strict=True)
            if role is not InputRole.DONATED
        ]
        seen = set(kept)
        self._copied = list[bool]()
        for value in body.results:
            self._copied.append(value in seen)
            seen.add(value)

    def record(self, *inputs: Array) -> tuple[list[Array], Failure | None]:
        """Return the results, and the first error if the program can fail."""
        walk = ProgramWalk(self._program)
        body = self._program.main.body
        held = [entered(value, x) for value, x in zip(body.params, inputs, strict=True)]
        results = [
            left(value, x) for value, x in zip(body.results, walk.region(body, held), strict=True)
        ]
        # A result is never an input that was not given away, nor another result.
        owned = [
            typed_lax.copy(x) if copied else x
            for x, copied in zip(results, self._copied, strict=True)
        ]
        self.messages = walk.messages
        return owned, walk.failure if walk.messages else None


def _wrong_input(number: int, param: Value, given: Buffer) -> UsageError:
    name = f" (`%{param.name}`)" if param.name else ""
    what = f"input {number}{name}"
    if not isinstance(given, Array):
        kind = type(given).__name__
        return UsageError(f"{what} must be a buffer of JAX, got `{kind}`", hint="use `to_device`")
    return UsageError(f"{what} must be `{param.type}`, got {given.dtype}{list(given.shape)}")
