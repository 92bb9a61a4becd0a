"""Captures calls of functionals as composites: one instruction each, with the body as
decomposition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.capture import execute
from gptrs.capture.jitting.captured_function import signature_context
from gptrs.capture.region import as_function, capture_body
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.functionals.dispatch.active_overrides import (
    ACTIVE,
    Arguments,
    Called,
    Keywords,
    nothing_overridden,
)
from gptrs.functionals.dispatch.override_policy import Benchmark
from gptrs.ir.attributes import Dictionary, DictionaryValue, FunctionName
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Function
from gptrs.ir.size_guards import GuardedValues, adopt

Body = Callable[..., object]

_PLAIN = (bool, int, float, str, DType)
_KEPT = 1024
"""Most kinds of calls kept per functional; a model with many sizes has a few dozen."""


class _Decomposed(Struct, frozen=True):
    op: Composite
    functions: tuple[Function, ...]
    """The decomposition, after its callees."""
    single: bool
    """Whether the functional returns one tensor rather than several."""
    called: frozenset[str] = frozenset()
    """The functionals that the portable body calls, directly or indirectly."""


class CompositeCalls:
    """Captures calls of one functional as composites, equal portable calls once per process.

    `kind` is the name with its version, `softmax.v1`. The tensors of a call are the operands, in
    parameter order; all other arguments, including defaults but not None, are attributes. A call is
    captured in place, as the primitives of its body, if one instruction cannot represent it: an
    argument cannot be an attribute, the body closes over tensors, ops run eagerly, or a `benchmark`
    policy times a functional in the body.

    Backends do not claim a kind with an implementation after a slash: `gelu.v1/fast`, or
    `attention.v1/overridden` if an override changes what the portable body captures.
    """

    def __init__(self, kind: str, portable: Body) -> None:
        parameters = inspect.signature(portable).parameters
        self.kind = kind
        self._known = GuardedValues[_Decomposed | None](_KEPT)
        self._defaults = {name: each.default for name, each in parameters.items()}

    def call(self, body: Body, name: str | None, args: Arguments, kwargs: Keywords) -> object:
        """Return the results of `body(*args, **kwargs)`, and raise its errors.

        `name` is the name of the implementation, None for the portable one.
        """
        if execute.eager():
            return body(*args, **kwargs)
        given = {**dict(zip(self._defaults, args, strict=False)), **kwargs}
        whole = {key: given.get(key, default) for key, default in self._defaults.items()}
        operands = {key: value for key, value in whole.items() if isinstance(value, Tensor)}
        attrs = self._attributes(whole)
        known = given.keys() <= whole.keys() and len(given) == len(args) + len(kwargs)
        if not operands or attrs is None or not known:
            return body(*args, **kwargs)

        def run(*placeholders: Tensor) -> object:
            tensors = dict(zip(operands, placeholders, strict=True))
            before = [tensors.get(each, value) for each, value in zip(given, args, strict=False)]
            return body(*before, **{each: tensors.get(each, kwargs[each]) for each in kwargs})

        found = self._found(name, run, operands, attrs)
        if found is None:
            return body(*args, **kwargs)
        results = apply_many(found.op, *operands.values(), functions=found.functions)
        return results[0] if found.single else results

    def _found(
        self, name: str | None, run: Body, operands: Mapping[str, Tensor], attrs: Dictionary
    ) -> _Decomposed | None:
        """Return a captured call; None if no function can represent it."""
        if name is not None:
            return self._anew(f"{self.kind}/{name}", run, operands, attrs)
        active, usual = ACTIVE.get(), self._usual(run, operands, attrs)
        if not active:
            return usual
        if usual is not None and isinstance(active, Called):
            active.names |= usual.called  # for a call within another
        touched = active.keys() if usual is None else active.keys() & usual.called
        if not touched:
            return usual
        if any(isinstance(active[each].policy, Benchmark) for each in touched):
            return None
        made = self._anew(self.kind, run, operands, attrs)
        if made is None or (usual is not None and made.op == usual.op):
            return made  # a decomposition is named by its content
        return replace(made, op=replace(made.op, kind=f"{self.kind}/overridden"))

    def _usual(
        self, run: Body, operands: Mapping[str, Tensor], attrs: Dictionary
    ) -> _Decomposed | None:
        """Return the call when nothing is overridden, shared by all equal calls."""
        types = tuple([operand.type for operand in operands.values()])
        with nothing_overridden() if ACTIVE.get() else nullcontext():
            key = tuple(operands), types, attrs, signature_context()

        def make() -> _Decomposed | None:
            with nothing_overridden() as called:
                made = _decomposed(self.kind, run, operands, attrs)
            return None if made is None else replace(made, called=frozenset(called.names))

        found, guards = self._known.find(key, make)
        adopt(guards)
        return found

    def _anew(
        self, kind: str, run: Body, operands: Mapping[str, Tensor], attrs: Dictionary
    ) -> _Decomposed | None:
        """Capture the call with its current body; calls with equal programs are equal.

        Other implementations may depend on anything, so the body runs each time.
        """
        made = _decomposed(kind, run, operands, attrs)
        return None if made is None else self._known.find(made.op, lambda: made)[0]

    def _attributes(self, given: Mapping[str, object]) -> Dictionary | None:
        """Return the arguments that are not tensors; None if one of them cannot be an attribute."""
        attrs: dict[str, DictionaryValue] = {}
        for name, value in given.items():
            if isinstance(value, Tensor) or (value is None and self._defaults[name] is None):
                continue
            plain = _plain(value)
            if plain is None:
                return None
            attrs[name] = plain
        return Dictionary.of(attrs)


def _plain(value: object) -> DictionaryValue | None:
    """Return an argument as an attribute, pairs of pairs flattened; None if impossible."""
    if type(value) in _PLAIN:
        return cast("DictionaryValue", value)
    if type(value) not in (tuple, list, range):
        return None
    flat: list[int] = []
    for each in cast("Sequence[object]", value):
        inner = _plain(each)
        if type(inner) is int:
            flat.append(inner)
        elif type(inner) is tuple:
            flat.extend(inner)
        else:
            return None
    return tuple(flat)


def _decomposed(
    kind: str, run: Body, operands: Mapping[str, Tensor], attrs: Dictionary
) -> _Decomposed | None:
    """Capture a call; None if no function can represent it."""
    returned: list[object] = []

    def body(*placeholders: Tensor) -> Tensor | Sequence[Tensor]:
        returned.append(run(*placeholders))
        return cast("Tensor | Sequence[Tensor]", returned[0])

    try:
        captured = capture_body(kind, body, [operand.type for operand in operands.values()])
    except Exception:
        return None  # the call in place raises it again, with its own tensors
    if captured.outside or not captured.results:
        return None
    made = as_function(captured)
    op = Composite(kind, FunctionName(made.name), " ".join(operands), attrs)
    return _Decomposed(op, (*captured.functions, made), isinstance(returned[0], Tensor))
