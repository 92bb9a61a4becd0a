"""The key of a program in the cache: its whole structure, with a digest for lookup."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.caching.source_identity import package_of, packages_digest
from gptrs.ir import literal_text
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.op import Op
from gptrs.ir.printer import print_program
from gptrs.ir.program import Function, Program, Region, Value
from gptrs.ir.tensor_type import TensorType

Aspect = Literal[
    "structure", "binding", "dtype", "shape", "attribute", "literal", "role", "backend"
]
"""A respect in which two programs can differ; see `ASPECTS`."""

ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
"""All aspects, the most structural one first. Together they are the whole key.

- structure: the ops in their order, how many operands each has, regions and functions;
- binding: the input or result that each operand and output refers to, and the weight of an input;
- dtype, shape: of the inputs, of literals, and of the parameters of regions;
- attribute: the attributes that are not literals;
- literal: the bits of literals, and the names of functions (they end in a digest of the body, so
  that they change with any literal there);
- role: how the caller treats each input;
- backend: the backend, its name, and everything else that affects compilation.

Derived facts, such as the types of results, are not part of a key.
"""


class ProgramKey(Struct, frozen=True, eq=False):
    """The key of a compiled program: equal keys mean the same program, bit for bit.

    `parts` holds one value for each of `ASPECTS`. Equality compares all of them; `digest` only
    finds candidates, so programs with equal digests are still distinguished. Digests are valid only
    in this process.
    """

    parts: tuple[Hashable, ...]
    hashes: tuple[int, ...]
    """The hash of each part."""
    digest: int
    instructions: int
    """Number of ops, including those in regions and functions."""
    literal_bytes: int
    """Bytes of all its literals."""

    def __hash__(self) -> int:
        return self.digest

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, ProgramKey)
            and self.hashes == other.hashes
            and self.parts == other.parts
        )


class KeyBuilder:
    """Collects the parts of a program, in execution order, then builds its key.

    There is a column for each aspect, with the entries of the ops in order. The structure
    determines how many entries of other columns belong to each op, so equal columns mean equal
    programs.
    """

    def __init__(self) -> None:
        self._structure: list[Hashable] = []
        self._binding: list[Hashable] = []
        self._dtypes: list[Hashable] = []
        self._shapes: list[Hashable] = []
        self._attributes: list[Hashable] = []
        self._literals: list[Hashable] = []
        self._roles: list[Hashable] = []
        self._instructions = 0
        self._literal_bytes = 0

    def add_input(self, type_: TensorType, role: InputRole, weight: int | None = None) -> None:
        """Add an input of the program. `weight` is the ParamKey of a parameter.

        A backend may cache work on a parameter, which is the same in every run of a program; hence
        the same program over different weights gets different keys.
        """
        self._add_type(type_)
        self._binding.append(weight)
        self._roles.append(role)

    def add_instruction(
        self, op: Op, operands: Sequence[int], regions: Sequence[Region] = ()
    ) -> None:
        """Add an instruction; the caller numbers inputs and results."""
        # The class, not its name: two plugins may have ops of one name.
        self._structure += (type(op), len(operands))
        self._binding += operands
        self._instructions += 1
        for name, kind in op.attribute_kinds.items():
            self._add_attribute(op, name, kind)
        for region in regions:
            self._add_region(region)

    def add_function(self, function: Function) -> None:
        """Add a function that instructions refer to."""
        self._structure.append("function")
        self._literals.append(function.name)
        self._add_region(function.body)

    def key(self, outputs: Sequence[int], backend: Backend, context: Hashable = ()) -> ProgramKey:
        """Return the key of the program that returns `outputs`, compiled by `backend`.

        `context` is everything else that affects compilation: programs with different contexts
        differ.
        """
        parts: tuple[Hashable, ...] = (
            tuple(self._structure),
            (*self._binding, "outputs", *outputs),
            tuple(self._dtypes),
            tuple(self._shapes),
            tuple(self._attributes),
            tuple(self._literals),
            tuple(self._roles),
            # By identity: two instances may differ in threads, device or plugins' state that no
            # attribute shows.
            (_Identity(backend), backend.name, context),
        )
        hashes = tuple(map(hash, parts))
        digest = digest_of(hashes)
        return ProgramKey(parts, hashes, digest, self._instructions, self._literal_bytes)

    def _add_type(self, type_: TensorType) -> None:
        self._dtypes.append(type_.dtype)
        self._shapes.append(type_.shape)

    def _add_attribute(self, op: Op, name: str, kind: AttributeKind) -> None:
        value: object = getattr(op, name)
        if isinstance(value, literal_text.Literal):
            self._add_type(value.type)
            self._attributes.append(None)
            # The bits: equality of numbers would join 0.0 with -0.0, and split equal NaN.
            self._literals.append(value.data)
            self._literal_bytes += len(value.data)
        elif value is not None and name in op.function_attributes:
            self._attributes.append(None)
            self._literals.append(value)
        else:  # as text, -0.0 differs from 0.0 and NaN equals NaN
            self._attributes.append(kind.print(value))

    def _add_region(self, region: Region) -> None:
        numbers = dict[Value, int]()
        self._structure += (len(region.params), len(region.instructions), len(region.results))
        for param in region.params:
            numbers[param] = len(numbers)
            self._add_type(param.type)
        for instruction in region.instructions:
            operands = [numbers[operand] for operand in instruction.operands]
            self.add_instruction(instruction.op, operands, instruction.regions)
            for result in instruction.results:
                numbers[result] = len(numbers)
        self._binding += [numbers[result] for result in region.results]


def digest_of(hashes: tuple[int, ...]) -> int:
    """Combine the hashes of all parts into one number; a collision costs only a comparison."""
    return hash(hashes)


class _Identity:
    """An object as a value that equals only itself, independent of its class's `__eq__`."""

    __slots__ = ("_object",)

    def __init__(self, object: object) -> None:
        self._object = object

    def __hash__(self) -> int:
        return id(self._object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._object is other._object


# Names of entries on disk: digests of everything that determines their content.


def entry_key(known: object, backend: Backend, packages: Iterable[str] = ()) -> str | None:
    """Return the name on disk of an entry determined by `known`, the code, and this machine.

    The `repr` of `known` must distinguish everything else that matters. The code comprises gptrs,
    the package of `backend`, and `packages`; the processor counts, since backends fuse for it. None
    if the sources do not identify a version, see `packages_digest`.
    """
    kind = type(backend)
    code = packages_digest({"gptrs", package_of(kind.__module__), *packages})
    if code is None or "<locals>" in kind.__qualname__:
        return None
    engine = backend.name, kind.__module__, kind.__qualname__
    # `-O` removes assertions, so that other code runs.
    everything = known, engine, code, sys.flags.optimize, _machine()
    return hashlib.blake2b(repr(everything).encode(), digest_size=20).hexdigest()


def optimization_key(
    program: Program, backend: Backend, roles: Sequence[InputRole], settings: Hashable, fold: bool
) -> str | None:
    """Return the name of the optimized form of `program` on `backend` under `settings`.

    `fold`: whether parameters are folded.
    """
    known = print_program(program), [role.value for role in roles], settings, fold
    return entry_key(known, backend)


@cache
def _machine() -> str:
    """Return the identity of this processor: backends fuse for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    # Not the whole text, as it holds the current frequency.
    kept = [line for line in lines.splitlines() if line.startswith(("model name", "flags"))]
    return "\n".join(kept)
