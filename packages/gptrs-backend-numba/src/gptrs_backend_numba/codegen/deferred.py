"""Placeholders for numba's decorators and types: most processes find all kernels stored.

`intrinsic`, `register_jitable` and `types` are used as those of numba are. What they need of it
they import when the first kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from typing import TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., object])

_TARGET = "gptrs_backend_numba.codegen.kernel_target"

_waiting: list[Callable[[], object]] = []
"""Registrations to make before the next kernel is compiled."""


class Intrinsic:
    """A function of compiled code; stands for `numba.extending.intrinsic` of its definition."""

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
    """Tell numba of the functions that it has not heard of yet."""
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
