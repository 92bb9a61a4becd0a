"""Inlines the parts of kernels where they are called, in the syntax tree, before numba sees it.

numba inlines too, and translates and types a function anew for each place that calls it: which
takes several times as long as the whole kernel.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial, update_wrapper
from importlib import import_module
from types import FunctionType
from typing import TypeVar, cast, overload

from msgspec import Struct


class Part(Struct, frozen=True):
    """The definition of a part, which stays as it is, and the global names that it sees."""

    definition: ast.FunctionDef
    namespace: dict[str, object]


PartOf = Callable[[object], Part | None]
"""Returns the part that a global value stands for, None if it is no part."""


def inline_parts(
    definition: ast.FunctionDef, namespace: dict[str, object], part_of: PartOf
) -> None:
    """Put the statements of parts where `definition` calls them, and theirs where those do.

    A call is a statement, or the whole value of an assignment or a `return`. Names of a part get a
    number; its global names are added to `namespace`. TypeError for a call in another place, or of
    a part that does not return once, at its end.
    """
    parameters = {argument.arg for argument in definition.args.args}
    inliner = _Inliner(namespace, part_of, _stored(definition) | parameters)
    definition.body = inliner.inlined(definition.body)
    for node in _names(definition):
        if inliner.part(node) is not None:
            raise TypeError(
                f"line {node.lineno} of `{definition.name}`: `{node.id}` is a part of kernels;"
                " call it by a statement, or assign what it returns"
            )


class _Inliner(ast.NodeTransformer):
    def __init__(
        self, namespace: dict[str, object], part_of: PartOf, variables: frozenset[str]
    ) -> None:
        self._namespace = namespace
        self._part_of = part_of
        self._variables = variables
        self._numbers = itertools.count(1)

    def part(self, node: ast.expr) -> Part | None:
        """Return the part that an expression is the global name of."""
        if not isinstance(node, ast.Name) or node.id in self._variables:
            return None
        return self._part_of(self._namespace.get(node.id))

    def inlined(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements with parts inlined."""
        found = (self.visit(statement) for statement in statements)
        return [each for one in found for each in (one if isinstance(one, list) else [one])]

    def _visit_statement(
        self, statement: ast.Assign | ast.Expr | ast.Return
    ) -> ast.stmt | list[ast.stmt]:
        call = statement.value
        part = self.part(call.func) if isinstance(call, ast.Call) else None
        if part is None:
            return statement
        assert isinstance(call, ast.Call)
        *body, end = self._body(part, call)
        if not isinstance(end, ast.Return):
            body.append(end)
            if not isinstance(statement, ast.Expr):
                raise TypeError(f"line {call.lineno}: `{part.definition.name}` returns nothing")
        elif not isinstance(statement, ast.Expr):
            statement.value = end.value
            body.append(statement)
        return self.inlined(body)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        return self._visit_statement(node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        return self._visit_statement(node)

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        return self._visit_statement(node)

    def _body(self, part: Part, call: ast.Call) -> list[ast.stmt]:
        """Return what a call does: its arguments as variables, then the statements of the part."""
        definition = part.definition
        _require_one_end(definition)
        suffix = f"__{next(self._numbers)}"
        stored = _stored(definition)
        names: dict[str, ast.expr] = {name: ast.Name(f"{name}{suffix}") for name in stored}
        bound: list[ast.stmt] = []
        for parameter, value in _arguments(definition, call):
            # A variable of the caller cannot change meanwhile, so it needs no second name.
            if isinstance(value, ast.Name | ast.Constant) and parameter not in stored:
                names[parameter] = value
            else:
                names[parameter] = ast.Name(f"{parameter}{suffix}")
                bound.append(ast.Assign([ast.Name(f"{parameter}{suffix}", ast.Store())], value))
        for name in {node.id for node in _names(definition)} - names.keys():
            names[name] = ast.Name(self._global(name, suffix, part.namespace))
        body = [*bound, *(_Renamer(names).visit(copy.deepcopy(s)) for s in _statements(definition))]
        # The lines of another file would make errors point to wrong ones.
        for node in (node for statement in body for node in ast.walk(statement)):
            ast.copy_location(node, call)
        return body

    def _global(self, name: str, suffix: str, namespace: dict[str, object]) -> str:
        """Return the name in the kernel of a global name of a part."""
        value = namespace[name] if name in namespace else getattr(builtins, name)
        taken = name in self._variables or self._namespace.get(name, value) is not value
        own = f"{name}{suffix}" if taken else name
        self._namespace[own] = value
        return own


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = copy.copy(self._names[node.id])
        if isinstance(found, ast.Name):
            found.ctx = node.ctx
        return found


def _statements(definition: ast.FunctionDef) -> list[ast.stmt]:
    """Return the body without its docstring."""
    return definition.body[ast.get_docstring(definition) is not None :]


def _require_one_end(definition: ast.FunctionDef) -> None:
    returns = [node for node in ast.walk(definition) if isinstance(node, ast.Return)]
    if returns and (len(returns) > 1 or returns[0] is not definition.body[-1]):
        raise TypeError(f"part `{definition.name}` must return once, by its last statement")


def _arguments(definition: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    parameters = [argument.arg for argument in definition.args.args]
    if call.keywords or len(call.args) != len(parameters):
        raise TypeError(f"line {call.lineno}: `{definition.name}` takes {', '.join(parameters)}")
    return zip(parameters, call.args, strict=True)


def _stored(definition: ast.FunctionDef) -> frozenset[str]:
    """Return the names that the function assigns to."""
    return frozenset(node.id for node in _names(definition) if isinstance(node.ctx, ast.Store))


def _names(definition: ast.FunctionDef) -> Iterator[ast.Name]:
    return (node for node in ast.walk(definition) if isinstance(node, ast.Name))


# Named tuples as variables, one for each field.


def scatter_records(definition: ast.FunctionDef, namespace: dict[str, object]) -> None:
    """Replace each named tuple by a variable for each field, if nothing reads it as a whole.

    numba types and translates each tuple and each reading of a field: attention over pages of codes
    compiles in 0.92 of the time without them.
    """
    fields = _records(definition, namespace)
    _Scatter(fields).visit(definition)


class _Scatter(ast.NodeTransformer):
    def __init__(self, fields: dict[str, tuple[str, ...]]) -> None:
        self._fields = fields

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(args=values)) if name in self._fields:
                return [
                    ast.copy_location(ast.Assign([_field(name, field, ast.Store())], value), node)
                    for field, value in zip(self._fields[name], values, strict=True)
                ]
            case _:
                return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node:
            case ast.Attribute(ast.Name(name), field) if name in self._fields:
                return ast.copy_location(_field(name, field, ast.Load()), node)
            case _:
                self.generic_visit(node)
                return node


def _field(name: str, field: str, context: ast.expr_context) -> ast.Name:
    return ast.Name(f"{name}__{field}", context)


def _records(
    definition: ast.FunctionDef, namespace: dict[str, object]
) -> dict[str, tuple[str, ...]]:
    """Return the fields of the variables that are one named tuple and nowhere used as a whole."""
    found: dict[str, tuple[str, ...]] = {}
    stored: Counter[str] = Counter(argument.arg for argument in definition.args.args)
    whole: Counter[str] = Counter()
    read: dict[str, set[str]] = {}
    for node in ast.walk(definition):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(type_), values, [])):
                fields = getattr(namespace.get(type_), "_fields", None)
                if isinstance(fields, tuple) and len(fields) == len(values):
                    found[name] = fields
            case ast.Name(name, ast.Store()):
                stored[name] += 1
            case ast.Name(name):
                whole[name] += 1
            case ast.Attribute(ast.Name(name), field):
                whole[name] -= 1
                read.setdefault(name, set()).add(field)
            case _:
                pass
    return {
        name: fields
        for name, fields in found.items()
        if stored[name] == 1 and not whole[name] and read.get(name, set()) <= set(fields)
    }


# The check that arrays outlive their addresses.
#
# numba frees an array after its last mention on a path, even if its address is used afterwards. So
# a function that takes `x.ctypes` of an array must mention the array once more, by `keep_alive(x)`,
# before each way out.


def require_kept_arrays(function: ast.FunctionDef) -> None:
    """Raise AssertionError unless arrays whose address is taken live until each `return`."""
    taken = _addressed(function)
    if not taken:
        return
    _require_one_assignment(function, taken.keys())
    assert isinstance(function.body[-1], ast.Return), f"`{function.name}` must end with `return`"
    for body in _bodies(function):
        for index, statement in enumerate(body):
            if isinstance(statement, ast.Return):
                needed = {name for name, line in taken.items() if line <= statement.lineno}
                missing = sorted(needed - _kept_before(body, index))
                assert not missing, (
                    f"line {statement.lineno} of `{function.name}`: `{missing[0]}` is freed before"
                    f" its address is last used; put `keep_alive({missing[0]})` before `return`"
                )


def _addressed(function: ast.FunctionDef) -> dict[str, int]:
    """Return the arrays whose address is taken, each with the first line that does."""
    found: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr == "ctypes":
            assert isinstance(node.value, ast.Name), "name the array whose address is taken"
            found[node.value.id] = min(node.lineno, found.get(node.value.id, node.lineno))
    return found


def _require_one_assignment(function: ast.FunctionDef, names: object) -> None:
    """Raise AssertionError if an array is made in a loop or assigned twice: numba frees it then."""
    top_level = {
        node.id for statement in function.body if isinstance(statement, ast.Assign)
        for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
    }  # fmt: skip
    stored = [
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    for name in names:
        assert name in top_level, f"make `{name}` outside of loops and branches"
        assert stored.count(name) == 1, f"`{name}` must stay the array whose address was taken"


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body


def _kept_before(body: list[ast.stmt], index: int) -> set[str]:
    """Return the names in the `keep_alive` statements right before `body[index]`."""
    kept: set[str] = set()
    for statement in reversed(body[:index]):
        match statement:
            case ast.Expr(ast.Call(ast.Name("keep_alive"), [ast.Name(name)])):
                kept.add(name)
            case _:
                break
    return kept


# Placeholders for numba's decorators and types: most processes find all kernels stored.
#
# `intrinsic`, `register_jitable` and `types` are used as those of numba are. What they need of it
# they import when the first kernel is compiled.


Function = TypeVar("Function", bound=Callable[..., object])

_TARGET = "gptrs_backend_numba.codegen.kernel_target"

_waiting: list[Callable[[], object]] = []
"""Registrations to make before the next kernel is compiled."""


class Intrinsic:
    """A function of compiled code: becomes `numba.extending.intrinsic` of its definition."""

    def __init__(self, define: Callable[..., object]) -> None:
        self.__name__ = define.__name__
        self.__qualname__ = define.__qualname__
        self.__doc__ = define.__doc__
        self.__module__ = define.__module__
        self._define = define
        _waiting.append(lambda: self._real)

    @cached_property
    def _real(self) -> object:
        return import_module("numba.extending").intrinsic(self._define)

    @property
    def _numba_type_(self) -> object:
        """Return the numba type of this object; numba asks objects that it does not know for it."""
        register_waiting()
        context = import_module(_TARGET).TARGET.typing_context
        return context.resolve_value_type(self._real)


def intrinsic(define: Callable[..., object]) -> Intrinsic:
    """Decorator: see `numba.extending.intrinsic`."""
    return Intrinsic(define)


def named_intrinsic(name: str) -> Callable[[Callable[..., object]], Intrinsic]:
    """Decorator: `intrinsic` of a function that is defined within another, for use as `name`."""

    def decorate(define: Callable[..., object]) -> Intrinsic:
        define.__name__ = define.__qualname__ = name
        return Intrinsic(define)

    return decorate


def named(name: str) -> Callable[[Function], Function]:
    """Decorator: rename a function that is defined within another, below `register_jitable`.

    The name must stand for one function of its module, in all processes.
    """

    def decorate(function: Function) -> Function:
        function.__name__ = function.__qualname__ = name
        return function

    return decorate


Made = TypeVar("Made", bound=Callable[..., Callable[..., object]])


def made(factory: Made) -> Made:
    """Decorator of a factory of functions of compiled code: one function for given arguments.

    It keeps how it was made, so that another process can make it to compile a kernel that uses it.
    """

    @cache
    def make(*arguments: object) -> Callable[..., object]:
        function = factory(*arguments)
        if isinstance(function, FunctionType | Intrinsic) and "<" not in function.__qualname__:
            vars(function).setdefault(_RECIPE, (wrapped, arguments))
        return function

    wrapped = cast("Made", update_wrapper(make, factory))
    return wrapped


_RECIPE = "recipe"


def recipe_of(function: object) -> tuple[object, tuple[object, ...]] | None:
    """Return the factory that `made` a function, and its arguments; None if none did."""
    return getattr(function, _RECIPE, None)


@overload
def register_jitable(function: Function, /) -> Function: ...
@overload
def register_jitable(**options: object) -> Callable[[Function], Function]: ...
def register_jitable(
    function: Function | None = None, /, **options: object
) -> Function | Callable[[Function], Function]:
    """Decorator: compiled code may call the function; see `numba.extending.register_jitable`."""
    if function is None:
        return partial(_wait, options)
    return _wait(options, function)


def _wait(options: dict[str, object], function: Function) -> Function:
    # The linker knows functions of stored kernels by name only: see `kernel.unique_name`.
    if "<" in function.__qualname__:
        raise TypeError(f"give `{function.__qualname__}` a name of its own by `named`")

    def register() -> None:
        real = import_module("numba.extending").register_jitable
        (real(**options) if options else real)(function)

    _waiting.append(register)
    return function


def register_waiting() -> None:
    """Register the waiting functions with numba."""
    if _waiting:
        for register in _waiting:
            register()
        _waiting.clear()
        import_module(_TARGET).TARGET.refresh()


class _Types:
    """The types of numba, by their names there."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module("numba.core.types"), name)


types = _Types()
"""Stands for `numba.types`; to be asked while code is generated, not on import."""
