"""The backend of the first process: it announces each device operation to the others first."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary, finalize

import numpy as np
from jax import Array

from gptrs.api import BackendError, UsageError
from gptrs.api.backends import (
    ArraySource,
    Backend,
    BoundInputs,
    Buffer,
    DeviceInfo,
    Executable,
    InputRole,
    Sharding,
    ShardSource,
    SubmittedRun,
)
from gptrs.api.programs import Op, Program, TensorType, print_program
from gptrs_backend_jax.leading.channel import Follower

if TYPE_CHECKING:
    from gptrs_backend_jax.backend import JaxBackend
    from gptrs_backend_jax.executable import JaxExecutable


_LEAVE_S: Final = 10
"""Seconds for the others to end before this process does; JAX aborts those that end later."""
_WATCH_S: Final = 0.5
"""How often the connections to followers are checked."""


class LedBuffer:
    """A tensor on the devices of all processes, by its number in all of them."""

    __slots__ = ("array", "dtype", "number", "shape", "state")

    def __init__(self, array: Array, number: int, state: Followers) -> None:
        self.array = array
        self.number = number
        self.shape = array.shape
        self.dtype = cast("np.dtype[np.generic]", array.dtype)
        self.state = state

    def __del__(self) -> None:
        # A destructor may run in any thread, even inside of `tell`: it must take no lock and send
        # nothing.
        self.state.forgotten.append(self.number)


class Followers:
    """The other processes, which receive all messages in the order of operations here."""

    def __init__(self, ways: Sequence[Follower]) -> None:
        self.ways = ways
        self.lock = threading.RLock()
        """Held while an operation is sent and executed."""
        self.forgotten: deque[int] = deque()
        """Numbers of dropped tensors; appended to from any thread."""
        self.lost: str | None = None
        """A description of the process that was lost."""
        self._numbers = itertools.count(1)
        # Otherwise followers would wait for the next message after this process has ended.
        atexit.register(self.end)
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="gptrs followers", daemon=True).start()

    def new_number(self) -> int:
        """Return a number for an object that they must keep."""
        return next(self._numbers)

    def tell(self, what: str, parts: Sequence[bytes] = (), **head: object) -> None:
        """Send all of them the same message; BackendError if one is gone."""
        message = self.message(what, **head)
        for way in self.ways:
            way.send(message, parts)

    def message(self, what: str, **head: object) -> Mapping[str, object]:
        """Return the head of a message, with the numbers to drop before it is executed."""
        # As many as there are now: other threads append meanwhile.
        drop = [self.forgotten.popleft() for _ in range(len(self.forgotten))]
        return {"do": what, "forget": drop, **head}

    def _watch(self) -> None:
        """Note the first lost process. Followers send nothing, so a readable socket means end of
        file."""
        while self.lost is None and not self._ended.wait(_WATCH_S):
            # A lost process leaves the others waiting inside a collective operation, without an
            # error.
            gone = [way.number for way in self.ways if way.is_gone()]
            if gone and not self._ended.is_set():
                self.lost = f"process {gone[0]} of the model is gone"

    def end(self) -> None:
        """Let them end."""
        atexit.unregister(self.end)
        self._ended.set()
        with self.lock:
            for way in self.ways:
                with suppress(BackendError):  # gone already
                    way.send({"do": "end", "forget": []})
            deadline = time.monotonic() + _LEAVE_S
            for way in self.ways:
                while not way.is_gone() and time.monotonic() < deadline:
                    time.sleep(0.01)
                way.close()
            self.ways = ()


class LeadingBackend(Backend):
    """Runs programs on a mesh of several processes; all others have a `FollowingBackend`.

    They run no programs themselves, so any thread of this one may use them at any time.
    """

    name = "jax"
    shares_functions = True
    own_memory = True

    def __init__(self, backend: JaxBackend, ways: Sequence[Follower]) -> None:
        self._backend = backend
        self._followers = Followers(ways)
        self.ignored = backend.ignored
        self.mesh = backend.mesh
        self.flushes_subnormals = backend.flushes_subnormals
        self.steps_at_once = backend.steps_at_once

    def __repr__(self) -> str:
        return f"<LeadingBackend of {len(self._followers.ways) + 1} processes on {self.mesh}>"

    def lost(self) -> str | None:
        """Return which other process is gone."""
        return self._followers.lost

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices of this process."""
        return self._backend.devices()

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why there is no lowering of `op` on these types, None if there is one."""
        return self._backend.refusal(op, operands, results)

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return True; see `JaxBackend`."""
        return self._backend.reads_quantized(codes, bits, group_size)

    def padded_size(self, size: int) -> int:
        """Return the next power of two; see `JaxBackend`."""
        return self._backend.padded_size(size)

    def compile(self, program: Program, roles: Sequence[InputRole]) -> LedExecutable:
        """Compile a program here and in all other processes; errors as of `JaxBackend`."""
        # Here first: an error of the program is raised before the others have heard of it.
        made = self._backend.compile(program, roles)
        state = self._followers
        with state.lock:
            number = state.new_number()
            names = [role.value for role in roles]
            state.tell("compile", [print_program(program).encode()], number=number, roles=names)
        return LedExecutable(made, number, state)

    def to_device(self, array: np.ndarray) -> Buffer:
        """Put `array` whole on each device."""
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return self.place(ArraySource(native), (None,) * native.ndim)

    def place(self, source: ShardSource, sharding: Sharding) -> Buffer:
        """Put `source` on the devices of all processes; those read no file, they are sent parts."""
        state, type_ = self._followers, source.type
        grid = self._backend.require_grid()
        with state.lock:
            number = state.new_number()
            head = state.message(
                "place",
                number=number,
                dtype=type_.dtype.name,
                shape=list(type_.shape),
                sharding=list(sharding),
            )
            indices = grid.indices(type_.shape, sharding)
            for way in state.ways:
                wanted = indices[way.number]
                bounds = [[[each.start, each.stop] for each in index] for index in wanted]
                # Only the parts of that process: each receives its share of the weights.
                parts = [np.ascontiguousarray(source.read(index)).tobytes() for index in wanted]
                way.send({**head, "indices": bounds}, parts)
            return LedBuffer(grid.placed(source, sharding), number, state)

    def host_view(self, buffer: Buffer) -> np.ndarray | None:
        """Return None: all buffers are on devices."""
        return None

    def copy(self, buffer: Buffer) -> Buffer:
        """Return a copy of `buffer` where it is."""
        led, state = _led(buffer), self._followers
        with state.lock:
            number = state.new_number()
            state.tell("copy", number=number, of=led.number)
            return LedBuffer(cast("Array", self._backend.copy(led.array)), number, state)

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of `buffer`; the others give their parts if this one lacks some."""
        led, state = _led(buffer), self._followers
        array = led.array
        if not (array.is_fully_addressable or array.is_fully_replicated):
            with state.lock:
                state.tell("whole", of=led.number)
                array = self._backend.require_grid().whole(array)
        return np.asarray(array)


class LedExecutable(Executable):
    """A program that all processes have compiled, and run together."""

    def __init__(self, made: JaxExecutable, number: int, state: Followers) -> None:
        self._made = made
        self._number = number
        self._told = state
        self._bound = WeakKeyDictionary[BoundInputs, tuple[int, BoundInputs]]()
        finalize(self, state.forgotten.append, number)

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run; see `Executable`."""
        return _checked(*self.submit(inputs, None))

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Run with weights."""
        return _checked(*self.submit(inputs, bound))

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        """Start a run in all processes."""
        state, given = self._told, [_led(each) for each in inputs]
        arrays = [cast("Buffer", each.array) for each in given]
        # Before the message: the others cannot refuse a run, and would wait for this one.
        self._made.require(arrays, 0 if bound is None else len(bound.buffers))
        with state.lock:
            weights = None if bound is None else self._bound_here(bound)
            numbers = [state.new_number() for _ in range(self._made.count)]
            state.tell(
                "run",
                program=self._number,
                inputs=[each.number for each in given],
                bound=None if weights is None else weights[0],
                results=numbers,
            )
            results, run = self._made.submit(arrays, None if weights is None else weights[1])
        made = [
            LedBuffer(cast("Array", result), number, state)
            for result, number in zip(results, numbers, strict=True)
        ]
        return cast("list[Buffer]", made), run

    def _bound_here(self, bound: BoundInputs) -> tuple[int, BoundInputs]:
        """Return weights as JAX arrays, and their number in the other processes."""
        found = self._bound.get(bound)
        if found is None:
            state, given = self._told, [_led(each) for each in bound.buffers]
            number = state.new_number()
            state.tell("bind", number=number, inputs=[each.number for each in given])
            here = BoundInputs(cast("Buffer", each.array) for each in given)
            found = self._bound[bound] = number, here
            # Not a method of `self`, which the finalizer would keep alive.
            finalize(bound, state.forgotten.append, number)
        return found


def _checked(results: list[Buffer], run: SubmittedRun | None) -> list[Buffer]:
    if run is not None:
        run.check()
    return results


def _led(buffer: Buffer) -> LedBuffer:
    if not isinstance(buffer, LedBuffer):
        kind = type(buffer).__name__
        raise UsageError(
            f"a buffer of this backend is required, got `{kind}`", hint="use `to_device`"
        )
    return buffer
