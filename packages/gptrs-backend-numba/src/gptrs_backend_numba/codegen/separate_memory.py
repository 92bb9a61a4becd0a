"""Elements of memory that LLVM may take for separate from the results of the same loop.

LLVM compares the borders of memory before a loop that it vectorizes, and gives up where results and
operands are many. Here it is told: a result either overlaps nothing else that the loop reads or
writes, or lies exactly where an operand does that each of its elements depends on, so that an
element is read before it is written.
"""

from __future__ import annotations

from gptrs_backend_numba.codegen.inlining import intrinsic, made, named_intrinsic, types

MOST_RESULTS = 4
"""The most results of a loop."""


def _scopes(builder, numbers):
    """Return metadata that lists the scopes of results; equal strings are the same scope."""
    module = builder.module
    domain = module.add_metadata(["gptrs results"])
    return module.add_metadata(
        [module.add_metadata([f"gptrs result {number}", domain]) for number in numbers]
    )


@intrinsic
def read_apart(typing_context, memory, index):
    """Return an element that no result overlaps."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_element_address(context, builder, signature, arguments))
        loaded.set_metadata("noalias", _scopes(builder, range(MOST_RESULTS)))
        return loaded

    return memory.dtype(memory, index), generate


@made
def write_apart(number):
    """Return the function that writes an element of the result with this number."""

    @named_intrinsic(f"write_apart_{number}")
    def write(typing_context, memory, index, value):
        def generate(context, builder, signature, arguments):
            value = context.cast(builder, arguments[2], signature.args[2], signature.args[0].dtype)
            stored = builder.store(value, _element_address(context, builder, signature, arguments))
            stored.set_metadata("alias.scope", _scopes(builder, [number]))
            others = [each for each in range(MOST_RESULTS) if each != number]
            stored.set_metadata("noalias", _scopes(builder, others))
            return context.get_dummy_value()

        return types.void(memory, index, value), generate

    return write


def _element_address(context, builder, signature, arguments):
    element = context.get_data_type(signature.args[0].dtype)
    return builder.gep(arguments[0], [arguments[1]], source_etype=element)
