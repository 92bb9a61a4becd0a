"""Calls of compiled functions by their addresses, and the vector width of a function."""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import I8, I32, I64, WIDTH


def _call(count):
    """Return the signature and the code of a call by address of a function of `count` arguments."""

    def generate(context, builder, signature, arguments):
        failure = ir.PointerType(I8)
        result = ir.PointerType(I64)
        type_ = ir.FunctionType(I32, [result, ir.PointerType(failure), *[I64] * count])
        function = builder.inttoptr(arguments[0], ir.PointerType(type_))
        with builder.goto_entry_block():
            returned, raised = builder.alloca(I64), builder.alloca(failure)
        builder.call(function, [returned, raised, *arguments[1:]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (count + 1)), generate


@intrinsic
def call_compiled(typing_context, function, a, b, c, d, e, f, g, h, i):
    """Call a compiled function of nine arguments by its address, in numba's convention."""
    return _call(9)


@intrinsic
def call_tile(typing_context, function, a, b, c, d, e, f, g, h, i, j, k, m, n, o):
    """Call a compiled function of fourteen arguments by its address."""
    return _call(14)


@intrinsic
def use_wide_vectors(typing_context):
    """Let loops of the function use the widest vectors: for some CPUs LLVM prefers half of them."""

    def generate(context, builder, signature, arguments):
        # llvmlite knows names of attributes only, not that some have values.
        set.add(builder.function.attributes, f'"prefer-vector-width"="{32 * WIDTH}"')
        return context.get_dummy_value()

    return types.void(), generate
