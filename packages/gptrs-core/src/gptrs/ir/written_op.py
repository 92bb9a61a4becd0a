"""An op as written in any form, a name and attributes, becomes a checked instance of its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from gptrs.errors import ProgramError
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.op import OPS, Op, Signature
from gptrs.ir.program import Region
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.v04.op_change import OpChange
from gptrs.quoting import did_you_mean, quoted

_SHOWN = 43


class SourcePlace(Protocol):
    """A place in the written program, to which an error points."""

    def error(self, message: str) -> ProgramError:
        """Return the error with this message for this place."""
        ...


class WrittenValue(SourcePlace, Protocol):
    """A value written for an attribute, in the text or JSON form."""

    def read(self, kind: AttributeKind, result: TensorType) -> object:
        """Return its value in an op with that result; ProgramError if it is not of `kind`."""
        ...


class WrittenOp:
    """The name of an op, where it stands, and its attributes, each with the place of its name.

    `change` says what has changed since the version in which the program is written.
    """

    def __init__(self, name: str, place: SourcePlace, change: OpChange) -> None:
        self._change = change
        today = change.op or name
        if today not in OPS:
            raise place.error(f"unknown op {quoted(name, _SHOWN)}{_suggestion(name)}")
        self.place = place
        self.attributes: dict[str, tuple[SourcePlace, WrittenValue]] = {}
        self._name = quoted(name, _SHOWN)
        self._class = OPS[today]

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions that the op carries."""
        return self._class.region_names

    def upgraded(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        """Return the regions as they are in today's version."""
        try:
            return self._change.upgrade_regions(regions)
        except ProgramError as error:
            raise self.place.error(str(error)) from None

    def resolve(
        self,
        annotated: Sequence[tuple[SourcePlace, TensorType]],
        operands: Sequence[TensorType],
        regions: Sequence[Signature],
        functions: Mapping[str, Signature],
    ) -> Op:
        """Return the op with these attributes.

        Raise ProgramError if it does not infer the annotated types.
        """
        if not annotated:
            raise self.place.error(f"{self._name} has at least one result, `()` is none")
        op = self._make(operands, [type_ for _, type_ in annotated])
        for name in op.callees():
            if name not in functions:
                what = f"{self._name} needs `@{name}`, no function above has the name"
                raise self.place.error(what)
        try:
            inferred = op.result_types(
                operands, (*regions, *(functions[name] for name in op.callees()))
            )
        except ProgramError as error:
            raise self.place.error(str(error)) from None
        if len(inferred) != len(annotated):
            what = f"{self._name} has {len(inferred)} results"
            raise annotated[0][0].error(f"{what}, got types for {len(annotated)}")
        for (place, written), type_ in zip(annotated, inferred, strict=True):
            if written != type_:
                raise place.error(f"{self._name} gives `{type_}` here, not `{written}`")
        return op

    def _make(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        values = self._values(results[0])
        try:
            self._change.upgrade(values, operands, results)
        except ProgramError as error:
            raise self.place.error(f"{self._name} {error}") from None
        for field in dataclasses.fields(cast("Any", self._class)):
            if field.default is dataclasses.MISSING and field.name not in values:
                written = self._class.attribute_kinds[field.name].written
                raise self.place.error(f"{self._name} needs attribute `{field.name}`, {written}")
        return cast("Callable[..., Op]", self._class)(**values)

    def _values(self, result: TensorType) -> dict[str, object]:
        """Return the attributes by their current names; removed attributes keep their own."""
        kinds = {**self._class.attribute_kinds, **self._change.kinds}
        values: dict[str, object] = {}
        for written, (place, value) in self.attributes.items():
            name = self._change.renamed.get(written, written)
            if name not in kinds:
                has = f"it has {', '.join(kinds)}" if kinds else "it has none"
                raise place.error(f"{self._name} has no attribute {quoted(written, _SHOWN)}; {has}")
            if name in values:
                raise place.error(f"`{name}` is given twice, once as {quoted(written, _SHOWN)}")
            values[name] = value.read(kinds[name], result)
        return values


def _suggestion(name: str) -> str:
    guess = did_you_mean(name, OPS, 3)
    return f"; {guess.rstrip()}" if guess else ""
