"""The kernel that runs a whole schedule: it reads words of int64 and calls compiled functions.

Every instruction is its number and its operands; positions count words from the first one.

- `END`
- `CALL function count arguments..`: stops the run if the function returns other than 0
- `JUMP to`
- `UNLESS address to`: jumps if the `i1` at the address is false
- `BEGIN counter first`: a word as a counter
- `NEXT counter last by to`: jumps with the next number in the counter, unless it was the last
- `PLACE word base count (counter stride)..`: makes a word the address `base` moved by counters
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer

END, CALL, JUMP, UNLESS, BEGIN, NEXT, PLACE = range(7)
MOST_ARGUMENTS = 24
"""The most arguments that a function can take."""
RAISED = -1
"""The result of a call that raised an exception, which can only be a lack of memory."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def invoke(typing_context, function, arguments, count):
    """Call a compiled function by its address with the `count` int64 at `arguments`."""

    def generate(context, builder, signature, operands):
        function, first, count = operands
        with builder.goto_entry_block():
            slots = builder.alloca(_I64), builder.alloca(ir.PointerType(ir.IntType(8)))
        done, impossible = (builder.append_basic_block(name) for name in ("done", "impossible"))
        switch = builder.switch(count, impossible)
        found = []
        for number in range(1, MOST_ARGUMENTS + 1):
            block = builder.append_basic_block(f"call_{number}")
            switch.add_case(ir.Constant(_I64, number), block)
            builder.position_at_end(block)
            found.append((_returned(builder, function, first, number, slots), block))
            builder.branch(done)
        builder.position_at_end(impossible)
        builder.unreachable()
        builder.position_at_end(done)
        result = builder.phi(_I64)
        for value, block in found:
            result.add_incoming(value, block)
        return result

    return types.int64(types.int64, types.int64, types.int64), generate


def _returned(builder, function, first, count, slots):
    """Return the result of a call in numba's convention: a status, and the result by a pointer."""
    address = builder.inttoptr(first, ir.PointerType(_I64))
    arguments = [
        builder.load(builder.gep(address, [ir.Constant(_I64, i)], source_etype=_I64), typ=_I64)
        for i in range(count)
    ]
    result, exception = slots
    type_ = ir.FunctionType(_I32, [result.type, exception.type, *[_I64] * count])
    status = builder.call(builder.inttoptr(function, ir.PointerType(type_)), [*slots, *arguments])
    succeeded = builder.icmp_unsigned("==", status, ir.Constant(_I32, 0))
    return builder.select(succeeded, builder.load(result, typ=_I64), ir.Constant(_I64, RAISED))


@kernel
def run_schedule(code, at, left):
    """Run the words at `code` from position `at`, at most about `left` of the calls.

    Return 0 at the end, where to go on if there is more to do, or -1 - the position of a call that
    failed.
    """
    C = pointer(code, np.int64)
    while left > 0:
        what = C[at]
        if what == CALL:
            if invoke(C[at + 1], code + 8 * (at + 3), C[at + 2]) != 0:
                return -1 - at
            at += 3 + C[at + 2]
            left -= 1
        elif what == PLACE:
            address = C[at + 2]
            for move in range(C[at + 3]):
                address += C[C[at + 4 + 2 * move]] * C[at + 5 + 2 * move]
            C[C[at + 1]] = address
            at += 4 + 2 * C[at + 3]
        elif what == UNLESS:
            at = at + 3 if pointer(C[at + 1], np.uint8)[0] != 0 else C[at + 2]
            left -= 1
        elif what == JUMP:
            at = C[at + 1]
        elif what == BEGIN:
            C[C[at + 1]] = C[at + 2]
            at += 3
        elif what == NEXT:
            left -= 1
            if C[C[at + 1]] == C[at + 2]:
                at += 5
            else:
                C[C[at + 1]] += C[at + 3]
                at = C[at + 4]
        else:
            return 0
    return at
