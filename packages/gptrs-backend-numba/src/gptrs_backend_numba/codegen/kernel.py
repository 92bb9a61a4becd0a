"""Kernels as Python functions: `@kernel`, and `specialize` with constants for their bindings.

The positional parameters of a kernel are int64 (addresses and sizes). Its keyword-only parameters
are bindings: constants of the machine code, which numba sees as global names.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Mapping
from types import FunctionType

import numpy as np
from llvmlite import ir
from msgspec import Struct

from gptrs_backend_numba.codegen.folding import fold_constants
from gptrs_backend_numba.codegen.inlining import (
    Intrinsic,
    Part,
    inline_parts,
    intrinsic,
    register_jitable,
    require_kept_arrays,
    scatter_records,
    types,
)
from gptrs_backend_numba.codegen.kernel_store import foreign_digest, syntax_tree
from gptrs_backend_numba.codegen.vector_ir import I8, I32, I64, WIDTH


class KernelFunction:
    """A function that can be compiled once values for its bindings are given."""

    def __init__(self, function: FunctionType, *, inlined: bool = False) -> None:
        if function.__code__.co_freevars:
            raise TypeError(f"kernel `{function.__qualname__}` must be defined in a module")
        self.function = function
        self.inlined = inlined
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        code = function.__code__  # not `inspect.signature`: there are hundreds at each start
        keywords = slice(code.co_argcount, code.co_argcount + code.co_kwonlyargcount)
        self.bindings = frozenset(code.co_varnames[keywords])
        self._key = f"{foreign_digest(function.__code__.co_filename)}{qualified_name(function)}"
        self._alone = None if self.bindings else SpecializedKernel(self, {}, f"{self._key}()")

    def specialize(self, **bindings: object) -> SpecializedKernel:
        """Return the kernel with a value for each binding; TypeError if one is missing or unknown.

        A value is a number, a NumPy scalar, a string, a type, a tuple of such, a function of
        compiled code (an intrinsic, a `register_jitable` function, one of `math`), or another
        specialized kernel, which is then called with its positional parameters.
        """
        if not bindings and self._alone is not None:
            return self._alone
        if bindings.keys() != self.bindings:
            wanted, given = (", ".join(sorted(names)) for names in (self.bindings, bindings))
            raise TypeError(f"kernel `{self.__name__}` has the bindings ({wanted}), got ({given})")
        values = ", ".join(f"{name}={_key_of(value)}" for name, value in sorted(bindings.items()))
        return SpecializedKernel(self, bindings, f"{self._key}({values})")


def kernel(function: Callable[..., object]) -> KernelFunction:
    """Decorator: `compiled` makes machine code of the function; Python cannot call it."""
    assert isinstance(function, FunctionType)
    return KernelFunction(function)


def kernel_part(function: Callable[..., object]) -> KernelFunction:
    """Decorator: as `kernel`, for what kernels call: compiled as if its body stood in theirs.

    A function that is called once, or small and often, becomes the same machine code then as if
    nobody had cut it out. Its arguments may be tuples and arrays as well. It returns once, at its
    end, and is called by a statement of its own, `part(x)` or `y = part(x)`; one without bindings
    by its name, one with bindings through a binding of the caller.
    """
    assert isinstance(function, FunctionType)
    return KernelFunction(function, inlined=True)


class SpecializedKernel(Struct, frozen=True, eq=False):
    """A kernel with values for its bindings. `key` tells it from all others, in all processes."""

    template: KernelFunction
    bindings: Mapping[str, object]
    key: str

    @property
    def name(self) -> str:
        """Return the name of the kernel without its bindings."""
        return self.template.__name__

    def build(self, name: str) -> FunctionType:
        """Return a function called `name` without the bindings, which are its global names.

        File and line numbers are those of the kernel, so numba's errors point to them.
        """
        function = self.template.function
        definition, namespace = self._definition(), self._namespace()
        inline_parts(definition, namespace, _part_of)
        scatter_records(definition, namespace)
        fold_constants(definition, namespace)
        tree = ast.fix_missing_locations(ast.Module([definition], []))
        exec(compile(tree, function.__code__.co_filename, "exec", dont_inherit=True), namespace)
        built = namespace[definition.name]
        assert isinstance(built, FunctionType)
        built.__name__ = built.__qualname__ = name
        return built

    def as_part(self) -> Part:
        """Return the part that replaces a call, for a kernel that is a part of others."""
        return Part(self._definition(), self._namespace())

    def _definition(self) -> ast.FunctionDef:
        return _without_bindings(_definition(self.template.function))

    def _namespace(self) -> dict[str, object]:
        bound = {name: _bound(value) for name, value in self.bindings.items()}
        return {**self.template.function.__globals__, **bound}


Generate = Callable[..., tuple[str, dict[str, object]]]
"""Returns the source of a function `kernel`, and its global names."""


class GeneratedKernel(Struct, frozen=True, eq=False):
    """A kernel whose source a function writes, from arguments that may be values of bindings."""

    generate: Generate
    arguments: tuple[object, ...]
    key: str

    @classmethod
    def of(cls, generate: Generate, arguments: tuple[object, ...]) -> GeneratedKernel:
        """Return the kernel that a function writes; both tell it from others in all processes."""
        return cls(generate, arguments, f"{qualified_name(generate)}{_key_of(arguments)}")

    @property
    def name(self) -> str:
        """Return the name of the kernel without its arguments."""
        return self.generate.__name__

    def build(self, name: str) -> FunctionType:
        """Return the function, called `name`."""
        source, names = self.generate(*self.arguments)
        namespace: dict[str, object] = {"__name__": self.generate.__module__, **names}
        exec(compile(source, f"<{self.name}>", "exec", dont_inherit=True), namespace)
        built = namespace["kernel"]
        assert isinstance(built, FunctionType)
        built.__name__ = built.__qualname__ = name
        return built


def unique_name(name: str, key: str) -> str:
    """Return a name for the function with this key.

    The linker knows functions by their names, and numba numbers them anew in each process: two
    kernels of one name that different processes have stored would take each other's place.
    """
    return f"{name}_{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"


def qualified_name(function: object) -> str:
    """Return the module and name of a function or type; TypeError if it has no lasting one."""
    name = getattr(function, "__qualname__", "<unnamed>")
    if "<" in name:
        raise TypeError(f"`{name}` has no name that tells it from others in all processes")
    return f"{getattr(function, '__module__', '')}.{name}"


def _key_of(value: object) -> str:
    if isinstance(value, SpecializedKernel):
        return value.key
    if isinstance(value, np.generic):  # to the bit: -0.0 is not 0.0
        return f"{value.dtype.str}:{value.tobytes().hex()}"
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_key_of, value))})"
    if isinstance(value, type | Intrinsic) or callable(value):
        return qualified_name(value)
    raise TypeError(f"a binding cannot be a `{type(value).__name__}`: {value!r}")


def _bound(value: object) -> object:
    if isinstance(value, SpecializedKernel) and not value.template.inlined:
        return _callee(value.key, value)
    return value


def _part_of(value: object) -> Part | None:
    if isinstance(value, KernelFunction) and value.inlined:
        return value.specialize().as_part()
    if isinstance(value, SpecializedKernel):  # others have been bound
        return value.as_part()
    return None


_CALLEES: dict[str, FunctionType] = {}


def _callee(key: str, specialized: SpecializedKernel) -> FunctionType:
    """Return the one function of a specialized kernel that other kernels call."""
    if key not in _CALLEES:
        _CALLEES[key] = register_jitable(specialized.build(unique_name(specialized.name, key)))
    return _CALLEES[key]


def _definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    for node in ast.walk(syntax_tree(code.co_filename)):
        # A code object begins at the first decorator.
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            if code.co_firstlineno == node.decorator_list[0].lineno:
                return copy.deepcopy(node)
    raise LookupError(f"`{code.co_filename}` does not define kernel `{function.__name__}`")


def _without_bindings(definition: ast.FunctionDef) -> ast.FunctionDef:
    require_kept_arrays(definition)
    arguments = definition.args
    arguments.kwonlyargs, arguments.kw_defaults = [], []
    for argument in arguments.args:
        argument.annotation = None
    definition.returns = None
    definition.decorator_list = []
    return definition


# Calls of compiled functions by their addresses, and the vector width of a function.


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
