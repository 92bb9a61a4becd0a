"""Match the arguments of a call with parameters: one order and one name, however passed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from gptrs.capture.jitting.pytree import Static, Structure, flatten, path_of, rebuild
from gptrs.capture.jitting.pytree_nodes import Refusal, Tree
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass

Names = Sequence[int | str] | int | str
"""Arguments by position or by name; a single one needs no list."""

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANY = inspect.Signature(
    [inspect.Parameter("args", _STARS[0]), inspect.Parameter("kwargs", _STARS[1])]
)
"""The signature of functions without one, such as some that are written in C."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument of a call."""

    label: str
    """The parameter; `args[1]` for one of `*args`, the keyword for one of `**kwargs`."""
    owner: str
    """The name of the parameter, which may hold several arguments."""
    given: int | str | None
    """Its position or keyword in the call, None for a default."""
    default: object = None
    keyword: str | None = None
    """The keyword under which the function gets it, None for by position."""
    donated: bool = False
    static: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class CallShape:
    """All calls with as many positional arguments and the same keywords."""

    function: str
    slots: tuple[Slot, ...]
    labels: tuple[str, ...]
    ordered: bool
    """Whether the positional arguments are exactly the slots."""

    def flatten(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], leaves: list[Tensor]
    ) -> tuple[Structure, ...]:
        """Append the tensors of a call to `leaves`; return the structure of each argument.

        UsageError names the part of an argument that cannot be passed.
        """
        values = args if self.ordered else [_value(slot, args, kwargs) for slot in self.slots]
        structures: list[Structure] = []
        for slot, value in zip(self.slots, values, strict=True):
            if slot.static:
                structures.append(_static(self.function, slot, value))
                continue
            try:
                structures.append(flatten(value, leaves))
            except Refusal as refusal:
                raise refused(
                    refusal, f"`{self.function}` cannot take", value, slot.label
                ) from None
        return tuple(structures)

    def call(
        self,
        function: Callable[..., object],
        structures: Sequence[Structure],
        leaves: Iterator[Tensor],
    ) -> object:
        """Call `function` with arguments of these structures and tensors."""
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for slot, structure in zip(self.slots, structures, strict=True):
            value = rebuild(structure, leaves)
            if slot.keyword is None:
                args.append(value)
            else:
                kwargs[slot.keyword] = value
        return function(*args, **kwargs)


def _value(slot: Slot, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    if isinstance(slot.given, int):
        return args[slot.given]
    return slot.default if slot.given is None else kwargs[slot.given]


def _static(function: str, slot: Slot, value: object) -> Static:
    if isinstance(value, Tensor | np.ndarray):
        raise UsageError(
            f"the static argument `{slot.label}` of `{function}` is a tensor",
            hint="static arguments are part of the program; take it off `static`",
        )
    static = Static(cast("Hashable", value))
    try:
        hash(static)
    except TypeError:
        raise UsageError(
            f"the static argument `{slot.label}` of `{function}` has no hash, it is a value of type"
            f" `{type(value).__name__}`",
            hint="pass something immutable, a tuple in place of a list",
        ) from None
    return static


def refused(refusal: Refusal, what: str, tree: Tree, name: str) -> UsageError:
    """Return the error for a refused part of `tree`, with its Python path."""
    path = path_of(refusal.value, tree, name) or name
    return UsageError(f"{what} {refusal.problem} as `{path}`", hint=refusal.hint)


class CallSignature:
    """The parameters of a function, and which of them are donated or static."""

    def __init__(
        self, function: Callable[..., object], name: str, donate: Names, static: Names
    ) -> None:
        self._function = name
        self._signature = _signature_of(function)
        self._donated = self._chosen("donate", donate)
        self._static = self._chosen("static", static)
        for both in sorted(self._donated & self._static):
            raise UsageError(f"argument `{both}` of `{name}` cannot be both donated and static")
        self._shapes: dict[Hashable, CallShape] = {}

    def shape(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> CallShape:
        """Return the shape of a call; TypeError if the function cannot be called that way."""
        key = (len(args), *kwargs) if kwargs else len(args)
        return self._shapes.get(key) or self._shapes.setdefault(
            key, self._shape(len(args), tuple(kwargs))
        )

    def _chosen(self, what: str, names: Names) -> frozenset[str]:
        listed = (names,) if isinstance(names, int | str) else names
        return frozenset(self.label(what, name) for name in listed)

    def label(self, what: str, name: int | str) -> str:
        """Return the label or owner of the named slots; UsageError if there can be none."""
        params = self._signature.parameters
        if isinstance(name, str):
            if name in params or self._star(inspect.Parameter.VAR_KEYWORD):
                return name
        else:
            positional = [param for param, found in params.items() if found.kind in _POSITIONAL]
            if 0 <= name < len(positional):
                return positional[name]
            star = self._star(inspect.Parameter.VAR_POSITIONAL)
            if star and name >= 0:
                return f"{star}[{name - len(positional)}]"
        found = ", ".join(map(str, params.values()))
        raise UsageError(
            f"`{what}` names argument `{name}`, which `{self._function}` does not have",
            hint=f"it takes ({found})",
        )

    def _star(self, kind: object) -> str | None:
        params = self._signature.parameters.items()
        return next((name for name, param in params if param.kind is kind), None)

    def _shape(self, count: int, keywords: tuple[str, ...]) -> CallShape:
        try:
            # Where each argument was given takes its place, so that binding sorts the places.
            bound = self._signature.bind(*range(count), **{name: name for name in keywords})
        except TypeError as error:
            raise TypeError(f"`{self._function}`: {error}") from None
        slots: list[Slot] = []
        for name, param in self._signature.parameters.items():
            slots += self._slots(param, cast("object", bound.arguments.get(name, _EMPTY)))
        labels = tuple(slot.label for slot in slots)
        ordered = [slot.given for slot in slots] == list(range(count))
        return CallShape(self._function, tuple(slots), labels, ordered)

    def _slots(self, param: inspect.Parameter, given: object) -> list[Slot]:
        name = param.name
        if given is _EMPTY:
            return [] if param.kind in _STARS else self._default(param)
        if isinstance(given, tuple):
            positions = enumerate(cast("tuple[int, ...]", given))
            return [self._slot(f"{name}[{i}]", name, position) for i, position in positions]
        if isinstance(given, dict):
            return [self._slot(key, name, key) for key in sorted(cast("dict[str, str]", given))]
        return [self._slot(name, name, cast("int | str", given))]

    def _slot(self, label: str, owner: str, given: int | str) -> Slot:
        keyword = given if isinstance(given, str) else None
        return Slot(label, owner, given, None, keyword, **self._roles(label, owner))

    def _roles(self, label: str, owner: str) -> dict[str, bool]:
        names = {label, owner}
        return {"donated": bool(names & self._donated), "static": bool(names & self._static)}

    def _default(self, param: inspect.Parameter) -> list[Slot]:
        """Return the slot of a default; none if it cannot be passed, so the function adds it."""
        default = cast("object", param.default)
        keyword = None if param.kind is inspect.Parameter.POSITIONAL_ONLY else param.name
        roles = self._roles(param.name, param.name)
        slot = Slot(param.name, param.name, None, default, keyword, **roles)
        try:
            flatten(default, [])
        except Refusal:
            return [slot] if slot.static else []
        return [slot]


def _signature_of(function: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:
        return _ANY
