"""Random programs and damaged texts: valid, the same after a round trip, or refused."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import (
    OPS,
    Builder,
    Literal,
    Op,
    Program,
    TensorType,
    dtypes,
    parse_program,
    print_program,
    verify,
)

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
DTYPES = st.sampled_from(dtypes.ALL)


EXAMPLE = """\
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  return %1
}
"""


def fitting_attributes(shape: tuple[int, ...]) -> dict[str, st.SearchStrategy[object]]:
    """For each attribute name, values that mostly suit an operand of this shape."""
    rank = len(shape)
    axis = st.integers(0, max(rank - 1, 0))
    paired = st.sampled_from([(), (0,)])
    shapes = st.sampled_from([shape[::-1], (2, *shape), (-1,), (1, -1)])
    return {
        "axis": axis,
        "axes": st.sets(axis, max_size=rank).map(sorted).map(tuple),
        "permutation": st.permutations(range(rank)).map(tuple),
        "shape": st.one_of(shapes, SHAPES),
        "sizes": st.tuples(*(st.integers(0, dim) for dim in shape)),
        "starts": st.just((0,) * rank),
        "strides": st.sampled_from([None, (1,) * rank]),
        "value": st.builds(Literal.full, st.integers(0, 1), DTYPES, SHAPES),
        "direction": st.sampled_from(["lt", "le", "eq", "ge", "gt", "ne"]),
        "kind": st.sampled_from(["sum", "prod", "max", "min", "and", "or"]),
        "keepdims": st.booleans(),
        "dtype": DTYPES,
        "accum_dtype": st.one_of(st.none(), DTYPES),
        "out_dtype": st.one_of(st.none(), DTYPES),
        "contract_lhs": paired,
        "contract_rhs": paired,
        "batch_lhs": st.just(()),
        "batch_rhs": st.just(()),
    }


def draw_op(draw: st.DrawFn, name: str, shape: tuple[int, ...]) -> Op:
    cls = OPS[name]
    strategies = fitting_attributes(shape)
    return cls(**{key: draw(strategies[key]) for key in cls.attribute_types})


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program of the random ops that fit the values at hand."""
    builder = Builder()
    dtype, shape = draw(DTYPES), draw(SHAPES)
    types = [TensorType(dtype, shape), TensorType(dtypes.i1, shape), TensorType(dtype, (2, 3))]
    types.append(TensorType(draw(st.sampled_from(dtypes.INTEGERS)), (len(shape),)))
    names = [draw(st.sampled_from([None, f"p.{index}"])) for index in range(len(types))]
    values = [builder.param(*pair) for pair in zip(types, names, strict=True)]
    for name in draw(st.lists(st.sampled_from(sorted(OPS)), min_size=4, max_size=25)):
        first = draw(st.sampled_from(values))
        op = draw_op(draw, name, first.type.shape)
        count = len(op.operand_names) + (draw(st.integers(0, 2)) if op.variadic else 0)
        alike = [value for value in values if value.type == first.type]
        others = [draw(st.sampled_from(draw(st.sampled_from([alike, values]))))
                  for _ in range(count - 1)]  # fmt: skip
        try:
            values.extend(builder.emit_many(op, [first, *others][:count]).results)
        except ProgramError:
            continue
    return builder.program(*draw(st.lists(st.sampled_from(values), max_size=3)))


def outline(program: Program) -> list[object]:
    """All that a program says, with values replaced by the order of their definition."""
    body = program.main.body
    numbers = {value: index for index, value in enumerate(body.params)}
    lines: list[object] = [[(param.type, param.name) for param in body.params]]
    for instruction in body.instructions:
        operands = [numbers[value] for value in instruction.operands]
        types = [result.type for result in instruction.results]
        lines.append((instruction.op, operands, types))
        numbers.update({result: len(numbers) for result in instruction.results})
    return [*lines, [numbers[value] for value in body.results]]


@given(programs())
@settings(deadline=None, max_examples=150)
def test_generated_programs_are_valid_and_round_trip(program):
    verify(program)
    text = print_program(program)
    again = parse_program(text)
    verify(again)
    assert outline(again) == outline(program)
    assert print_program(again) == text


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_inference_answers_or_refuses(data):
    """Any attributes and any operand types: a type comes out, or a ProgramError."""
    op = draw_op(data.draw, data.draw(st.sampled_from(sorted(OPS))), data.draw(SHAPES))
    wild = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple)
    for name, hint in op.attribute_types.items():
        if hint == tuple[int, ...] and data.draw(st.booleans()):
            object.__setattr__(op, name, data.draw(wild))
    count = len(op.operand_names) + data.draw(st.integers(0, 1))
    operands = [TensorType(data.draw(DTYPES), data.draw(SHAPES)) for _ in range(count)]
    try:
        results = op.result_types(operands)
    except ProgramError:
        return
    assert results
    assert all(isinstance(type_, TensorType) for type_ in results)


@given(st.text(alphabet='%@xf32[](){}=:,->0.1 \n"/', max_size=60), st.integers(0, len(EXAMPLE)))
@settings(deadline=None, max_examples=400)
def test_damaged_texts_parse_or_are_refused(junk, at):
    for text in (EXAMPLE[:at] + junk + EXAMPLE[at:], EXAMPLE[:at] + junk, junk + EXAMPLE[at:]):
        try:
            program = parse_program(text)
        except ParseError:
            continue
        verify(program)
