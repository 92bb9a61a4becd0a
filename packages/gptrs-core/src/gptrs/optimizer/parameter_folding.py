"""Splits off computations that depend only on parameters, so that they run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gptrs.ir.builder import splice, with_operands
from gptrs.ir.ops.control_flow import Call, Scan, While
from gptrs.ir.ops.layout import Reshape
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.optimizer.evaluation import CHEAP, cut, definitions, known_instructions
from gptrs.optimizer.passes.cleanup import carry_count, invariants, without_dead_code
from gptrs.optimizer.split import Recipe, Split

GROWTH_ALLOWED = 4_096
"""How many bytes larger than its sources a derived parameter may be."""
_VIEWS = (*CHEAP, Reshape)
"""Values not worth keeping on their own."""


def fold_parameters(program: Program, constant: Sequence[bool]) -> Split:
    """Split off computations that read only constants and the parameters that `constant` marks.

    The largest such parts of `@main` become recipes. Exceptions are free computations (reshapes,
    broadcasts), results larger than their parameters (wider types, repetitions), instructions that
    must not run ahead (see `known_instructions`), and values that are only returned, which the
    caller keeps anyway. Loops that read such a value compute it inside. A failing recipe fails when
    it is first needed. Constant parameters that are unused, or that only recipes read, are removed
    from the program. Functions are folded like `@main` for parameters that are constant in all of
    their calls in `@main`, which passes them the derived values.
    """
    lifted = _with_folded_functions(program, constant)
    if lifted is None:
        return _fold_main(program, constant)
    flags = [isinstance(source, int) and constant[source] for source in lifted.inputs]
    folded = _fold_main(lifted.program, flags)
    inputs = [lifted.inputs[each] if isinstance(each, int) else each for each in folded.inputs]
    return Split(folded.program, tuple(inputs))


def _fold_main(program: Program, constant: Sequence[bool]) -> Split:
    """Like `fold_parameters`, but only in `@main`."""
    region = program.main.body
    given = [param for param, flag in zip(region.params, constant, strict=True) if flag]
    known = known_instructions(region, given)
    foldable = {made for made, depends in known.items() if depends}
    wanted = _frontier(region, foldable, set(given))
    recipes = {value: _recipe(value, region) for value in wanted}
    derived = {value: Value(value.type) for value in recipes}
    reading = _reading(region, derived)
    body = _with_decoding_loops(reading, given)
    numbers = {param: position for position, param in enumerate(region.params)}
    read = {operand for made in body.instructions for operand in made.operands} | set(body.results)
    params = [p for p in region.params if p in read or not constant[numbers[p]]]
    inputs = (*(numbers[param] for param in params), *recipes.values())
    if body is reading and inputs == tuple(range(len(region.params))):
        return Split(program, inputs)
    main = Region((*params, *derived.values()), body.instructions, body.results)
    others = (f for f in program.functions if f.name != "main")
    return Split(Program((*others, Function("main", main))), inputs)


def _with_folded_functions(program: Program, constant: Sequence[bool]) -> Split | None:
    """Return `program` with calls that take derived parameters; None if no function has any."""
    main = program.main.body
    numbers = {param: n for n, param in enumerate(main.params) if constant[n]}
    calls: dict[str, list[Instruction]] = {}
    for made in main.instructions:
        if isinstance(made.op, Call):
            calls.setdefault(made.op.function, []).append(made)
    splits: dict[str, Split] = {}
    for function in program.functions:
        known = calls.get(function.name)
        if known is None:
            continue
        flags = [
            # All calls, as they share one body: a parameter that is constant in one layer only
            # stays an argument.
            all(made.operands[n] in numbers for made in known)
            for n in range(len(function.body.params))
        ]
        split = _fold_main(Program((Function("main", function.body),)), flags)
        if any(isinstance(source, Recipe) for source in split.inputs):
            splits[function.name] = split
    return _lifted(program, splits, numbers) if splits else None


def _lifted(program: Program, splits: Mapping[str, Split], numbers: Mapping[Value, int]) -> Split:
    main = program.main.body
    derived: dict[Value, Recipe] = {}
    kept: list[Instruction] = []
    for made in main.instructions:
        split = splits.get(made.op.function) if isinstance(made.op, Call) else None
        if split is not None:
            operands: list[Value] = []
            for source, param in zip(split.inputs, split.program.main.body.params, strict=True):
                if isinstance(source, int):
                    operands.append(made.operands[source])
                    continue
                operands.append(Value(param.type))
                inputs = tuple(numbers[made.operands[n]] for n in source.inputs)
                derived[operands[-1]] = Recipe(source.program, inputs)
            made = replace(made, operands=tuple(operands))
        kept.append(made)
    body = Region((*main.params, *derived), tuple(kept), main.results)
    functions = [
        Function(each.name, splits[each.name].program.main.body) if each.name in splits else each
        for each in program.functions
        if each.name != "main"
    ]
    inputs = (*range(len(main.params)), *derived.values())
    return Split(Program((*functions, Function("main", body))), inputs)


def _frontier(region: Region, foldable: set[Instruction], given: set[Value]) -> list[Value]:
    """Return the values to derive: those worth it that other instructions read."""
    sources: dict[Value, frozenset[Value]] = {param: frozenset([param]) for param in given}
    worth: dict[Value, bool] = {}
    for made in region.instructions:
        if made not in foldable:
            continue
        below = frozenset[Value]().union(*(sources.get(x, frozenset()) for x in made.operands))
        for value in made.results:
            sources[value] = below
            room = sum(param.type.nbytes for param in below) + GROWTH_ALLOWED
            # A weight that is widened or repeated would take more memory than it saves time: it is
            # computed in each run.
            worth[value] = value.type.nbytes <= room and not isinstance(made.op, _VIEWS)
    # Cheap values remain in the program, so their operands must be available there.
    defined = definitions(region)
    wanted: dict[Value, None] = {}
    outside = [made for made in region.instructions if made not in foldable]
    pending = [value for made in outside for value in made.operands]
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value not in worth or value in seen:
            continue
        seen.add(value)
        if worth[value]:
            wanted[value] = None
        else:
            pending.extend(defined[value].operands)
    # In the program's order, whatever the order of the search.
    return [value for value in worth if value in wanted]


def _with_decoding_loops(region: Region, given: Sequence[Value]) -> Region:
    """`while(s, f(w)): g(s, y) -> while(s, w): g(s, f(w))` for what `given` parameters decide.

    That is what widens or decodes stored weights. Kernels that read them as they are stored must
    see both: outside of the loop, a run of 16 decode steps of 4-bit weights decoded the whole model
    and then took 10 times as long.
    """
    if not any(isinstance(made.op, While | Scan) for made in region.instructions):
        return region
    known = {made for made, depends in known_instructions(region, given).items() if depends}
    defined = {value: made for made in known for value in made.results}
    kept: list[Instruction] = []
    renamed: dict[Value, Value] = {}
    for made in region.instructions:
        if isinstance(made.op, While | Scan):
            found = [at for at in invariants(made) if made.operands[at] in defined]
            if found:
                renamed.update((made.results[at], made.operands[at]) for at in found)
                made = _decoding(made, found, region)
        kept.append(with_operands(made, renamed))
    if not renamed:
        return region
    results = tuple(renamed.get(value, value) for value in region.results)
    return without_dead_code(Region(region.params, tuple(kept), results))


def _decoding(loop: Instruction, found: Sequence[int], region: Region) -> Instruction:
    """Return a loop that computes the operands `found`, which its body only reads, by itself."""
    values = [loop.operands[at] for at in found]
    chain = cut(values, region.params, definitions(region)).main.body
    read = {operand for made in chain.instructions for operand in made.operands}
    given = [param for param in region.params if param in read]
    count = carry_count(loop)
    rest = [at for at in range(count) if at not in found]

    def carried(values: Sequence[Value], more: Sequence[Value]) -> tuple[Value, ...]:
        return (*(values[at] for at in rest), *more, *values[count:])

    def decoding(inner: Region) -> Region:
        own = [Value(param.type) for param in given]
        instructions: list[Instruction] = []
        made = splice(Region(tuple(given), chain.instructions, chain.results), own, instructions)
        known = dict(zip([inner.params[at] for at in found], made, strict=True))
        instructions += [with_operands(each, known) for each in inner.instructions]
        body = inner is loop.regions[-1]
        results = carried(inner.results, own) if body else inner.results
        return Region(carried(inner.params, own), tuple(instructions), results)

    op = loop.op
    if isinstance(op, Scan):
        op = replace(op, carry_count=len(rest) + len(given))
    results = carried(loop.results, [Value(param.type) for param in given])
    regions = tuple(without_dead_code(decoding(inner)) for inner in loop.regions)
    return Instruction(op, carried(loop.operands, given), results, regions)


def _recipe(value: Value, region: Region) -> Recipe:
    program = cut([value], region.params, definitions(region))
    body = program.main.body
    read = {operand for made in body.instructions for operand in made.operands}
    inputs = tuple(number for number, param in enumerate(region.params) if param in read)
    params = tuple(region.params[number] for number in inputs)
    return Recipe(
        Program((Function("main", _nameless(Region(params, body.instructions, body.results))),)),
        inputs,
    )


def _nameless(region: Region) -> Region:
    """Return `region` without names, so that recipes of equal layers are equal and compiled
    once."""
    copies = {param: Value(param.type) for param in region.params}
    instructions: list[Instruction] = []
    for made in region.instructions:
        results = tuple(Value(value.type) for value in made.results)
        instructions.append(replace(with_operands(made, copies), results=results))
        copies.update(zip(made.results, results, strict=True))
    params = tuple(copies[param] for param in region.params)
    return Region(params, tuple(instructions), tuple(copies[value] for value in region.results))


def _reading(region: Region, derived: dict[Value, Value]) -> Region:
    """Return `region` that reads `derived` values instead of computing them."""
    instructions = tuple(with_operands(made, derived) for made in region.instructions)
    results = tuple(derived.get(value, value) for value in region.results)
    return without_dead_code(Region(region.params, instructions, results))
