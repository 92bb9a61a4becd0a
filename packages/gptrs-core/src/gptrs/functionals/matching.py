"""Patterns of functional calls in optimized programs, with readers of numeric arguments."""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.capture import execute
from gptrs.capture.graph import Argument, GraphSlice, Leaf
from gptrs.capture.tensor import Tensor
from gptrs.errors import GptrsError, UsageError
from gptrs.functionals.dispatch.examples import EXAMPLES, Call, pattern_names
from gptrs.ir.dtypes import DType, f16, f32
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import Claim, CustomCall, unclaimed
from gptrs.ir.printer import print_region
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.ir.size_guards import GuardedValues, SizeGuards, adopt
from gptrs.ir.symbolic_dim import ASSUMPTIONS
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.evaluation import Evaluator
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs.optimizer.rewrite.rewriter import recording
from gptrs.optimizer.rewrite.template import Definer, Template, TemplateMatch

Conversion = Callable[[object], object]
Same = Callable[[Call, Program], bool]
"""Returns whether a call is captured as the given program."""

_ROUNDING = 2.0**-7
"""Relative error of a number rounded to bf16."""


def _as_it_is(value: object) -> object:
    return value


def _only(value: object) -> object:
    (one,) = cast("Sequence[object]", value)
    return one


def _pairs(value: object) -> object:
    flat = cast("Sequence[object]", value)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _inner(value: object) -> object:
    """Return the entries of the spatial axes, between batch and channels."""
    return cast("Sequence[object]", value)[1:-1]


_CONVERSIONS: tuple[Conversion, ...] = (_as_it_is, _only, _pairs, _inner)


class Reader(Struct, frozen=True):
    """One attribute of one instruction of a template, and its conversion to an argument."""

    instruction: Instruction
    attribute: str
    conversion: Conversion
    absent: object = None
    """The argument for an attribute at its default."""

    def read(self, match: TemplateMatch) -> object:
        """Return the argument, read from the matched instruction."""
        return self.of(match.instructions[self.instruction].op)

    def of(self, op: Op) -> object:
        """Return the argument, read from an op like the instruction's."""
        value: object = getattr(op, self.attribute)
        array = getattr(value, "array", None)
        if array is not None and array.size == 1:  # a literal
            value = array.item()
        return self.absent if value is None else self.conversion(value)


def readers_of(
    names: Sequence[str], calls: Sequence[tuple[Call, Program]], same: Same
) -> dict[str, Reader]:
    """Return a reader for each argument in `names` that can be read off the first call.

    All `calls` have the same outline. A field qualifies if it holds the argument's value in every
    example, and if capturing with the value read gives the `same` program: values are rounded to
    the element type of the program, and a field could hold an equal number by chance.
    """
    (_, program), *_ = calls
    readers: dict[str, Reader] = {}
    for name in names:
        for reader in _readers(program):
            found = _fitting(name, reader, calls, same)
            if found is not None:
                readers[name] = found
                break
    return readers


def _readers(program: Program) -> Iterator[Reader]:
    for made in program.main.body.instructions:
        if isinstance(made.op, CustomCall):
            continue  # it is a composite, which has the same outline in all calls
        for attribute in made.op.attribute_types:
            for conversion in _CONVERSIONS:
                yield Reader(made, attribute, conversion)


def _fitting(
    name: str, reader: Reader, calls: Sequence[tuple[Call, Program]], same: Same
) -> Reader | None:
    """Return the reader with its value for an absent attribute; None if it fails for a call."""
    (_, first), *_ = calls
    number = first.main.body.instructions.index(reader.instruction)
    ops = [program.main.body.instructions[number].op for _, program in calls]
    absent = [
        call[name]
        for (call, _), op in zip(calls, ops, strict=True)
        if getattr(op, reader.attribute) is None
    ]
    if len(absent) == len(calls):
        return None
    reader = replace(reader, absent=absent[0] if absent else None)
    for (call, program), op in zip(calls, ops, strict=True):
        try:
            value = reader.of(op)
        except (TypeError, ValueError):  # a value that the conversion cannot take
            return None
        if not _equal(value, call[name]) or not same({**call, name: value}, program):
            return None
    return reader


def _equal(found: object, given: object) -> bool:
    if isinstance(given, tuple) and isinstance(found, tuple):
        several = cast("tuple[object, ...]", found), cast("tuple[object, ...]", given)
        if len(several[0]) != len(several[1]):
            return False
        return all(_equal(a, b) for a, b in zip(*several, strict=True))
    if isinstance(given, float) and isinstance(found, float):
        return math.isclose(found, given, rel_tol=_ROUNDING)
    return found == given and isinstance(found, int) == isinstance(given, int)


# Patterns of calls, derived from example calls.


# Patterns of calls of functionals in optimized programs, derived from their own capture.
#
# An example call says how the functional is called: `pattern_example(x="f32[2, 3]")`. It is
# captured with placeholders for its tensors and brought into canonical form; the result without its
# types and numbers is the form to match. Where a program has that form, the types of the operands
# and the numbers among the attributes are read from it, and the functional is captured again with
# these; it is a call of the functional only if both agree instruction by instruction. So a pattern
# never matches anything else, and need not be written by hand.


Example = Mapping[str, object]
"""Arguments of an example call by parameter: a `TensorType` for a tensor."""


def capture(
    function: Callable[..., object],
    example: Example,
    evaluate: Evaluator | None = None,
    claim: Claim = unclaimed,
) -> Program:
    """Return the canonical program of a call; its parameters are the tensors, under their names.

    Composites that `claim` declines are inlined. Overrides are inactive, but assumptions about
    symbolic sizes hold. UsageError if the function does not return one tensor, or closes over
    tensors.
    """
    tensors = {name: given for name, given in example.items() if isinstance(given, TensorType)}
    leaves = [Argument(type_, position, None) for position, type_ in enumerate(tensors.values())]
    given = {**example, **{name: Tensor(leaf) for name, leaf in zip(tensors, leaves, strict=True)}}
    context = contextvars.Context()
    context.run(ASSUMPTIONS.set, ASSUMPTIONS.get())
    result = context.run(execute.capturing()(function), **given)
    if not isinstance(result, Tensor):
        kind = type(result).__name__
        raise UsageError(f"a pattern needs a function of one result, got a value of type `{kind}`")
    graph = GraphSlice([result.source])
    own: set[Leaf] = set(leaves)
    if not own.issuperset(graph.leaves):
        raise UsageError("a pattern needs a function that reads only its arguments")
    pipeline = Pipeline(inlining=Inlining(claim), evaluate=evaluate)
    with recording():  # the journal of the program in which calls are sought is not about this one
        return pipeline.before_folding(graph.lower(leaves))


class Variant(Struct, frozen=True):
    """A class of calls whose programs differ only in types and numbers."""

    template: Template
    operands: tuple[str, ...]
    constants: Mapping[str, object]
    """Arguments with equal values in all calls."""
    readers: Mapping[str, Reader]
    """Readers of the other arguments from a program."""


class CapturedCalls:
    """Captured calls of one function by arguments; keeps the most recent ones."""

    def __init__(
        self,
        function: Callable[..., object],
        evaluate: Evaluator | None = None,
        claim: Claim = unclaimed,
    ) -> None:
        self._function = function
        self._evaluate = evaluate
        self._claim = claim
        self._known = GuardedValues[Template | None]()

    def find(self, call: Example) -> tuple[Template | None, SizeGuards]:
        """Return the capture of a call, None if the function refuses it, and its guards.

        With symbolic sizes it holds for sizes like those of the enclosing `deciding` block.
        """
        key = tuple([(name, str(value), type(value)) for name, value in call.items()])
        return self._known.find(key, lambda: self._made(call))

    def _made(self, call: Example) -> Template | None:
        try:
            program = capture(self._function, call, self._evaluate, self._claim)
        except GptrsError:
            return None
        return Template(program.main.body)


class FunctionalPattern:
    """Finds calls of one function, see `gptrs.optimizer.fusion.ProgramPattern`.

    In programs for a backend, `claim` is the backend's: composites that it claims are not inlined
    there.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        examples: list[Example],
        evaluate: Evaluator | None = None,
        claim: Claim = unclaimed,
    ) -> None:
        self.name = name
        self._function = function
        self._examples = examples
        self._evaluate = evaluate
        self._claim = claim
        self._captures = CapturedCalls(function, evaluate, claim)

    def evaluated_by(self, evaluate: Evaluator) -> FunctionalPattern:
        """Return the pattern for programs whose constants `evaluate` has folded."""
        return FunctionalPattern(self.name, self._function, self._examples, evaluate)

    @functools.cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The kinds of calls, each with its template; computed on first use."""
        groups: dict[object, list[tuple[Example, Program]]] = {}
        for example in self._examples:
            for kind in _in_small_floats(example):
                program = capture(self._function, kind, self._evaluate, self._claim)
                words = tuple(item for item in kind.items() if _is_word(item[1]))
                shape = (_outline(program.main.body), words)
                groups.setdefault(shape, []).append((kind, program))
        return tuple(self._variant(group) for group in groups.values())

    def find_call(self, result: Value, definition: Definer) -> FoundCall | None:
        """Return the call that computes `result`, None if there is none.

        Among several, prefers the one that covers the most instructions, so that a mask computed in
        a known way is not mistaken for an argument; then one without transposes.
        """
        made = definition(result)
        if made is None:
            return None
        found: list[FoundCall] = []
        for variant in self.variants:
            if variant.template.root is not type(made.op):
                continue
            candidate = variant.template.match(result, definition, exact=False)
            call = candidate and self._confirmed(variant, candidate, result, definition)
            if call:
                found.append(call)
        return max(found, key=_clarity, default=None)

    def _confirmed(
        self, variant: Variant, candidate: TemplateMatch, result: Value, definition: Definer
    ) -> FoundCall | None:
        params = zip(variant.operands, variant.template.params, strict=True)
        if any(param not in candidate.bound for param in variant.template.params):
            return None
        types = {name: candidate.bound[param].type for name, param in params}
        numbers = {name: reader.read(candidate) for name, reader in variant.readers.items()}
        attributes = {**variant.constants, **numbers}
        template, guards = self._captures.find({**types, **attributes})
        if template is None:
            return None
        match = template.match(result, definition, exact=True)
        if match is None:
            return None
        adopt(guards)
        operands = {
            name: match.bound[param]
            for name, param in zip(variant.operands, template.params, strict=True)
        }
        return FoundCall(
            self.name, operands, attributes, tuple(match.instructions.values()), result
        )

    def _variant(self, group: list[tuple[Example, Program]]) -> Variant:
        example, program = group[0]
        operands = tuple(name for name, given in example.items() if isinstance(given, TensorType))

        def same(call: Example, wanted: Program) -> bool:
            try:
                found = capture(self._function, call, self._evaluate, self._claim)
            except (GptrsError, TypeError, ValueError):  # an attempt with a value of another kind
                return False
            return print_region(found.main.body) == print_region(wanted.main.body)

        template = Template(program.main.body)
        numbers = [name for name in example if name not in operands and not _is_word(example[name])]
        readers = readers_of(numbers, group, same)
        _require_all_known(self.name, numbers, readers, [call for call, _ in group])
        constants = {
            name: given
            for name, given in example.items()
            if name not in operands and name not in readers
        }
        return Variant(template, operands, constants, readers)


def _clarity(call: FoundCall) -> tuple[int, int]:
    transposed = sum(bound.permutation is not None for bound in call.operands.values())
    return len(call.made), -transposed


def _require_all_known(
    name: str, numbers: list[str], readers: Mapping[str, Reader], calls: list[Example]
) -> None:
    for number in numbers:
        given = {repr(call[number]) for call in calls}
        if number not in readers and len(given) > 1:
            raise UsageError(
                f"the pattern `{name}` cannot read `{number}` off a program; its examples"
                f" have {' and '.join(sorted(given))}"
            )


def _is_word(given: object) -> bool:
    """Return whether an argument selects a kind of call rather than being a number in it."""
    return given is None or isinstance(given, bool | str | DType)


def _in_small_floats(example: Example) -> list[Example]:
    """Return the example, and an f16 variant, since small floats may be computed in f32."""
    small = {
        name: TensorType(f16, given.shape)
        if isinstance(given, TensorType) and given.dtype is f32
        else given
        for name, given in example.items()
    }
    return [example, small]


def _outline(region: Region) -> object:
    """Return the shape of a region: its ops, their string attributes, and its dataflow."""
    numbers: dict[Value, int] = {}
    for value in region.params:
        numbers[value] = len(numbers)
    lines: list[object] = []
    for made in region.instructions:
        op = made.op
        words = tuple(
            value for name in op.attribute_types if isinstance(value := getattr(op, name), str)
        )
        lines.append((op.name, words, tuple(numbers[operand] for operand in made.operands)))
        for value in made.results:
            numbers[value] = len(numbers)
    return tuple(lines), tuple(numbers[value] for value in region.results)


@functools.cache
def pattern(name: str) -> FunctionalPattern:
    """Return the pattern of the function called `name`; UsageError lists those that have one."""
    if name not in EXAMPLES:
        listed = ", ".join(pattern_names())
        raise UsageError(f"there is no pattern `{name}`", hint=f"there are: {listed}")
    function, calls = EXAMPLES[name]
    parameters = inspect.signature(function).parameters
    tensors = {key for key, each in parameters.items() if "Tensor" in str(each.annotation)}
    return FunctionalPattern(name, function, [_with_types(call, tensors) for call in calls])


def _with_types(call: Example, tensors: Collection[str]) -> Example:
    """Return the example with types instead of the texts in `tensors`."""
    return {
        name: parse_type(given) if name in tensors and isinstance(given, str) else given
        for name, given in call.items()
    }
