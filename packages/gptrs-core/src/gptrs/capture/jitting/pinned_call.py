"""A call of a jitted function that is made over and over: no flattening, no lookup, only arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from gptrs.capture import execute
from gptrs.capture.backend_calls import to_device, to_host
from gptrs.capture.jitting.captured_function import capture_is_open, signature_context
from gptrs.capture.jitting.replay import CompiledStep


class PinnedCall:
    """The compiled step of one signature, as a function of arrays.

    It keeps what the step has closed over (weights) alive. Variables of the environment are not
    read again: the step stays what it was when it was pinned.
    """

    def __init__(self, step: CompiledStep, context: tuple[Hashable, ...]) -> None:
        self._step = step
        self._context = context

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return the result tensors in order, as arrays of the caller's own.

        `arrays` hold the tensors of the arguments, in order and in the types of the signature; they
        are used where they are. None, before anything runs, where the function itself must be
        called: other overrides are active, or a capture is open.
        """
        if signature_context() != self._context or capture_is_open():
            return None
        step = self._step
        backend = step.backend
        buffers = [to_device(backend, array) for array in arrays]
        if step.constants:
            buffers += [execute.buffer_of(leaf, backend) for leaf in step.constants]
        results, outcome = step.prepared.submit(step.constants, buffers, True, step.weights)
        if outcome is not None:
            outcome.require()
        found = [to_host(backend, result) for result in results]
        return [array if array.flags.writeable else array.copy() for array in found]
