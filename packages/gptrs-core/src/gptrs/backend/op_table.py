"""The table in which a backend states its kernels, by op class and element type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from keyword import iskeyword
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct, field

from gptrs.backend.contract import Backend
from gptrs.errors import UnsupportedError
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops.custom_call import Composite, CustomCall, Declined, functional_arguments
from gptrs.ir.program import Instruction, Program
from gptrs.ir.specialize import symbols
from gptrs.ir.tensor_type import TensorType

Kernel = TypeVar("Kernel")
Condition = Callable[[Op, Sequence[TensorType]], bool]


class ByName(Struct, frozen=True):
    """A kernel that takes the arguments of a functional by name, and perhaps `OWN` ones."""

    kernel: Callable[..., object]
    takes: frozenset[str]
    """Those of `OWN` that it takes."""

    def __call__(self, call: CustomCall, *tensors: object) -> object:
        """Call it with a tensor for each operand of `call`, and with the attributes."""
        own: dict[str, object] = {"donated": (), "shared": {}}
        given = {name: value for name, value in own.items() if name in self.takes}
        return self.kernel(**functional_arguments(call, tensors), **given)

    def fits(self, call: CustomCall) -> bool:
        """Return whether all operands of `call` have names that Python allows."""
        names = call.operands.split()
        return bool(names) and all(name.isidentifier() and not iskeyword(name) for name in names)


class Prepared(Struct, frozen=True):
    """A kernel that is made for each instruction: `make(op, operand types, result types)`."""

    make: Callable[[Op, Sequence[TensorType], Sequence[TensorType]], Callable[..., object]]


OWN = frozenset({"donated", "shared"})
"""Parameters of kernels by name that a `KernelSequence` fills in, see there."""


class OpTable(Struct, Generic[Kernel]):
    """Kernels by op class and element type, for the backend called `backend`."""

    backend: str
    _entries: dict[tuple[type[Op], DType], tuple[Kernel, Condition | None]] = field(
        default_factory=dict[tuple[type[Op], DType], tuple[Kernel, Condition | None]]
    )
    _composites: dict[str, tuple[Kernel, Condition | None]] = field(
        default_factory=dict[str, tuple[Kernel, Condition | None]]
    )
    """Predicates of claims by the target of the `custom_call` that replaces a composite."""

    def register(
        self,
        *ops: type[Op],
        dtypes: Iterable[DType],
        when: Condition | None = None,
        prepared: bool = False,
    ) -> Callable[[Kernel], Kernel]:
        """Decorator: register a kernel for these ops on these element types, where `when` holds.

        A `prepared` one is a function of the op, the types of its operands and those of its
        results, which returns the kernel: what depends on them is found once, not in each run. That
        kernel gets the bodies of regions and the tensors; `find` returns it as a `Prepared`.
        """

        def add(kernel: Kernel) -> Kernel:
            entry = cast("Kernel", Prepared(cast("Any", kernel))) if prepared else kernel
            for op in ops:
                for dtype in dtypes_:
                    if (op, dtype) in self._entries:
                        raise ValueError(f"`{op.name}` on {dtype} is registered twice")
                    self._entries[op, dtype] = (entry, when)
            return kernel

        dtypes_ = tuple(dtypes)
        return add

    def composite(
        self, kind: str, *, when: Condition | None = None, by_name: bool = False
    ) -> Callable[[Kernel], Kernel]:
        """Decorator: register a kernel for composites of `kind`, where `when` holds.

        It runs a `custom_call` with the composite's operands and `attrs`; `functional_arguments`
        returns both by parameter of the functional. A kernel `by_name` takes them so, and not the
        call; `find` returns it as a `ByName`. Composites that no kernel claims are inlined.
        ValueError for a kind that is already claimed, or that names another implementation, such as
        `gelu.v1/sigmoid`, whose results differ from the usual one.
        """

        def add(kernel: Kernel) -> Kernel:
            target = self._target(kind)
            if "/" in kind:
                raise ValueError(f"`{kind}` is of an override; claim it in a `claim` of your own")
            if target in self._composites:
                raise ValueError(f"`{kind}` is claimed twice")
            made = kernel
            if by_name:
                plain = cast("Callable[..., object]", kernel)
                takes = OWN.intersection(signature(plain).parameters)
                made = cast("Kernel", ByName(plain, takes))
            self._composites[target] = (made, when)
            return kernel

        return add

    def claim(
        self, op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> CustomCall | Declined | None:
        """Return the call of the kernel that claims a composite of these types, None if there is
        none."""
        found = self._composites.get(self._target(op.kind))
        if found is None:
            return None
        if found[1] is not None and not found[1](op, operands):
            return Declined(f"`when` of its kernel refuses {', '.join(map(str, operands))}")
        return CustomCall(self._target(op.kind), tuple(results), op.attrs, op.operands)

    def _target(self, kind: str) -> str:
        # Names of backends may have characters that targets may not, as in `my-gpu`.
        return f"{re.sub('[^a-z0-9_]', '_', self.backend.lower())}.{kind}"

    def changed(self, changes: Mapping[type[Op], Callable[[Kernel], Kernel]]) -> OpTable[Kernel]:
        """Return a copy of the table with the kernels of some ops replaced by a function."""
        entries = {
            (op, dtype): (changes[op](kernel) if op in changes else kernel, when)
            for (op, dtype), (kernel, when) in self._entries.items()
        }
        return OpTable(self.backend, entries, dict(self._composites))

    def find(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Kernel | None:
        """Return the kernel for `op` on these types, None if there is none."""
        kernel, when = self._entry(op, operands, results)
        return kernel if when is None or when(op, operands) else None

    def accepted(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Kernel:
        """Return the kernel for a program that was checked: `refusal` had no reason against it.

        `when` is not called again; it takes most of the time of `find`.
        """
        kernel, _ = self._entry(op, operands, results)
        assert kernel is not None, "refused before"
        return kernel

    def _entry(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> tuple[Kernel | None, Condition | None]:
        if isinstance(op, CustomCall) and op.target in self._composites:
            return self._composites[op.target][0], None  # `when` accepted the composite
        return self._entries.get((type(op), op.key_dtype(operands, results)), (None, None))

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why there is no kernel for `op` on these types, None if there is one."""
        if self.find(op, operands, results) is not None:
            return None
        if isinstance(op, CustomCall):
            return f"`custom_call` with target `{op.target}` (not one of its kernels)"
        taken = self.coverage().get(op.name)
        of = ", ".join(map(str, operands)) or str(results[0])
        if taken is None:
            return f"`{op.name}` of {of} (no kernel for this op)"
        return f"`{op.name}` of {of} (it takes {' '.join(map(str, taken))})"

    def coverage(self) -> dict[str, tuple[DType, ...]]:
        """Return the element types that each op has a kernel for, by op name."""
        found: dict[str, list[DType]] = {}
        for op, dtype in self._entries:
            found.setdefault(op.name, []).append(dtype)
        return {name: tuple(found[name]) for name in OPS if name in found}


def require_static(backend: Backend, program: Program) -> None:
    """Raise UnsupportedError if `program` has symbolic dims."""
    open_dims = [f"?{number}" for number in symbols(program)]
    if open_dims:
        raise UnsupportedError(
            f"backend `{backend.name}` compiles no symbolic dims, {', '.join(open_dims)}",
            hint="give them sizes with `gptrs.ir.specialize`",
        )


def refusals_of(
    backend: Backend, program: Program, instructions: Iterable[Instruction] | None = None
) -> list[str]:
    """Return why `backend` refuses instructions of `program`, each reason once.

    Covers everything reached from `@main`, or from these `instructions` of it: their regions and
    callees count.
    """
    bodies = {function.name: function.body for function in program.functions}
    pending = list(program.main.body.instructions if instructions is None else instructions)
    reached: set[str] = set()
    found: dict[str, None] = {}
    while pending:
        made = pending.pop(0)
        operands = [value.type for value in made.operands]
        reason = backend.refusal(made.op, operands, [value.type for value in made.results])
        if reason is not None:
            found[reason] = None
        inner = [*made.regions, *(bodies[n] for n in made.op.callees() if n not in reached)]
        reached.update(made.op.callees())
        pending[:0] = [each for region in inner for each in region.instructions]
    return list(found)


def require_supported(backend: Backend, program: Program, *, symbolic: bool = False) -> None:
    """Raise UnsupportedError with each op and dtype reached from `@main` that `backend` refuses.

    A program with symbolic dims is refused, too, unless `symbolic`.
    """
    if not symbolic:
        require_static(backend, program)
    refusals = refusals_of(backend, program)
    if refusals:
        shown = refusals[:5]
        more = f" and {len(refusals) - 5} more" if len(refusals) > 5 else ""
        raise UnsupportedError(
            f"backend `{backend.name}` does not support {'; '.join(shown)}{more}",
            hint="choose another backend with --backend, see `gptrs list backends`",
        )
