"""Patterns of calls of functionals in optimized programs, derived from their own capture.

An example call says how the functional is called: `pattern_example(x="f32[2, 3]")`. It is captured
with placeholders for its tensors and brought into canonical form; what comes out, without its types
and numbers, is the shape to look for. Where a program has that shape, the types of the operands and
the numbers among the attributes are read off, the functional is captured anew for these, and only
if the program does the same instruction by instruction is it a call of the functional. A pattern
thus never claims what is not there, and there is none to be written twice.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable, Collection, Mapping

from gptrs.capture import execute
from gptrs.capture.graph import Argument, GraphSlice, Leaf
from gptrs.capture.tensor import Tensor
from gptrs.errors import GptrsError, UsageError
from gptrs.functionals.matching.attribute_readers import Reader, readers_of
from gptrs.functionals.matching.examples import EXAMPLES, pattern_names
from gptrs.ir.dtypes import DType, f16, f32
from gptrs.ir.printer import print_region
from gptrs.ir.program import Program, Region, Value
from gptrs.ir.size_guards import GuardedValues, SizeGuards, adopt
from gptrs.ir.symbolic_dim import ASSUMPTIONS
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.evaluation import Evaluator
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.passes.inlining import Claim, Inlining, unclaimed
from gptrs.optimizer.pipeline import Pipeline
from gptrs.optimizer.rewrite.template import Definer, Template, TemplateMatch
from gptrs.quick_dataclass import dataclass

Example = Mapping[str, object]
"""Arguments of an example call by parameter: a `TensorType` for a tensor."""


def capture(
    function: Callable[..., object],
    example: Example,
    evaluate: Evaluator | None = None,
    claim: Claim = unclaimed,
) -> Program:
    """Return the canonical program of a call; its parameters are the tensors, under their names.

    Composites that `claim` leaves are inlined. No override is active; what is assumed about
    symbolic sizes is. UsageError where the function does not return one tensor, or reads tensors
    that it does not take.
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
        raise UsageError("a pattern needs a function that reads nothing but its arguments")
    pipeline = Pipeline(inlining=Inlining(claim), evaluate=evaluate)
    return pipeline.before_folding(graph.lower(leaves))


@dataclass(frozen=True)
class Variant:
    """Calls with the same program but for types and numbers."""

    template: Template
    operands: tuple[str, ...]
    constants: Mapping[str, object]
    """Arguments that are the same in all of them."""
    readers: Mapping[str, Reader]
    """Readers of the other arguments from a program."""


class CapturedCalls:
    """Captures of calls of one function by arguments; the last ones are kept."""

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

        With symbolic sizes it holds for sizes like those of the `deciding` block around.
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

    In programs for a backend, `claim` is that of the backend: what it claims is no longer there.
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

        Of several, the one that explains the most instructions, for a mask that was computed in a
        way that the function knows is not one that was given; then one that needs no transposes.
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
            except (GptrsError, TypeError, ValueError):  # a try with a value of another kind
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
    """Return whether an argument chooses a kind of call, rather than being a number in one."""
    return given is None or isinstance(given, bool | str | DType)


def _in_small_floats(example: Example) -> list[Example]:
    """Return the example, and in f16 for the floats that may be computed in f32."""
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
    """Return the example with types for texts in the place of `tensors`."""
    return {
        name: parse_type(given) if name in tensors and isinstance(given, str) else given
        for name, given in call.items()
    }
